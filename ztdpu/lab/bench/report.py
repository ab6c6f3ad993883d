"""The bench's result for people: what it was measured on, then one table per section.

Called by `__main__`. Takes the document that is also written as JSON and adds nothing to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ztdpu.lab.bench.ground import SEALED
from ztdpu.lab.bench.overlay import verdict

Row = Sequence[str]
_LEAST_COLUMNS: Final = 116
"""Tables in a pipe or a narrow window are not squeezed."""


def print_report(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Print everything that was measured."""
    console = console or Console()
    console.width = max(console.width, _LEAST_COLUMNS)
    _print_machine(document, console)
    for section, found in document["sections"].items():
        for title, heads, rows, note in _TABLES[section](found):
            console.print(_table(title, heads, rows))
            if note:
                console.print(f"  [dim]{escape(note)}[/dim]", highlight=False)
            console.print()
    for section, why in document["skipped"].items():
        console.print(f"[yellow]{section} was skipped[/yellow]: {escape(why)}", highlight=False)
    if "overlay" in document["sections"]:
        for words in verdict(document["sections"]["overlay"]["rows"]):
            console.print(f"[bold green]{escape(words)}[/bold green]", highlight=False)
    console.print(f"[dim]{document['seconds']:.0f} s[/dim]", highlight=False)


def _print_machine(document: Mapping[str, Any], console: Console) -> None:
    machine = document["machine"]
    grid = Table.grid(padding=(0, 2))
    load = " ".join(f"{value:.2f}" for value in machine["load"])
    after = " ".join(f"{value:.2f}" for value in machine.get("load_after", ()))
    for name, value in (
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['memory_mib'] / 1024:.1f} GiB"),
        ("kernel", machine["kernel"]),
        ("interpreter", machine["interpreter"]),
        ("cryptography", machine["cryptography"]),
        ("ztdpu", f"{machine['ztdpu']} {machine['commit']}".strip()),
        ("wireguard-go", document["wireguard_go"]),
        ("load", f"{load} before, {after} after" + _busy(machine)),
        ("when", f"{machine['date']}, {document['rounds']} alternating rounds"),
    ):
        grid.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(grid)
    console.print()


def _busy(machine: Mapping[str, Any]) -> str:
    """Say when somebody else was using the machine before we began."""
    return "  (busy before we began: believe ratios, not figures)" if machine["load"][0] > machine["cores"] / 2 else ""


def _table(title: str, heads: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(escape, row), style="bold" if row[0] == SEALED else None)
    return table


def spread_text(found: Mapping[str, Any], digits: int = 2) -> str:
    """Return the median, and least and most in parentheses."""
    return f"{found['median']:,.{digits}f} ({found['least']:,.{digits}f}\u2013{found['most']:,.{digits}f})"


def ratio_text(value: float | None) -> str:
    """Return a ratio with two digits, a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


Section = tuple[str, Sequence[str], Sequence[Row], str]
"""Title, heads, rows, a note below."""
Tables = Sequence[Section]


def _overlay(found: Mapping[str, Any]) -> Tables:
    tables: list[Section] = []
    for mtu in dict.fromkeys(row["mtu_octets"] for row in found["rows"]):
        rows = [
            (
                row["path"], spread_text(row["gbits"]), ratio_text(row["of_plaintext"]),
                ratio_text(row["of_wireguard_go"]), f"{row['retransmits']['median']:.0f}",
            )
            for row in found["rows"]
            if row["mtu_octets"] == mtu
        ]  # fmt: skip
        heads = ("path", "Gbit/s", "of plaintext", "of wireguard-go", "retransmits")
        stalls = {row["path"]: row["stalls"] for row in found["rows"] if row["mtu_octets"] == mtu and row["stalls"]}
        note = ", ".join(f"{path}: {count} streams did not end and were made again" for path, count in stalls.items())
        tables.append((f"one TCP stream, tenant to tenant, MTU {mtu}, cubic", heads, rows, note))
    processes = [
        (
            row["path"], str(row["mtu_octets"]), row["process"], f"{row['user_s']:.2f}", f"{row['system_s']:.2f}",
            ratio_text(row["s_per_gigabyte"]), ratio_text(row["of_one_core"]),
            "-" if row["resident_mib"] is None else f"{row['resident_mib']:.0f}",
        )
        for row in found["profile"]
    ]  # fmt: skip
    columns = ("path", "MTU", "process", "user s", "system s", "s per GB", "of a core", "MiB after")
    tables.append(("CPU time while these streams ran", columns, processes, "iperf3's own figures for iperf3"))
    return tables


def _datagrams(found: Mapping[str, Any]) -> Tables:
    rates = [
        (
            row["path"], spread_text(row["pps"], 0), ratio_text(row["pps_of_plaintext"]),
            ratio_text(row["pps_of_wireguard_go"]), spread_text(row["flood_delivered_pps"], 0),
            f"{row['flood_loss']['median']:.1%}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    turns = [
        (
            row["path"], *(spread_text(row[name], 0) for name in ("p50_us", "p90_us", "p99_us")),
            ratio_text(row["p50_of_wireguard_go"]), f"{row['turns']:,}", str(row["turns_lost"]),
        )
        for row in found["rows"]
    ]  # fmt: skip
    limit = f"{found['loss_limit']:.0%}"
    return [
        (
            f"datagrams of {found['payload_octets']} octets, MTU {found['mtu_octets']}",
            (
                "path",
                f"per second, loss under {limit}",
                "of plaintext",
                "of wireguard-go",
                "flooded: delivered",
                "loss",
            ),
            rates,
            "plaintext shows what sender and answerer, both Python, can do on this machine",
        ),
        (
            "round trip, one at a time, microseconds",
            ("path", "p50", "p90", "p99", "p50 of wireguard-go", "turns", "lost"),
            turns,
            "",
        ),
    ]


def _appraisal(found: Mapping[str, Any]) -> Tables:
    rows = [(row["step"], spread_text(row["cost_us"], 0), f"{row['per_second']:,.0f}") for row in found["rows"]]
    hostile = found["hostile_chains"]
    note = (
        f"evidence {found['evidence_octets']:,} octets, key binding {found['binding_octets']:,};"
        f" {hostile['chains']} hostile chains, all refused, the slowest in {hostile['slowest_ms']:.1f} ms"
        f" ({hostile['slowest']})"
    )
    return [(f"attestation, profile {found['profile']}, one core", ("step", "us", "per second"), rows, note)]


def _enrolment(found: Mapping[str, Any]) -> Tables:
    row = (
        f"{found['enrolled']:,} of {found['devices']:,}", f"{found['in_flight']}", f"{found['idle']}",
        f"{found['trickling']}", *(f"{found[name]:,.0f}" for name in ("median_ms", "p99_ms", "worst_ms")),
    )  # fmt: skip
    heads = ("enrolled", "at once", "idle TLS", "trickling", "median ms", "p99 ms", "worst ms")
    refused = found["refused"]
    note = f"control: {found['control_cpu_ms']:.1f} ms of CPU each; devices share the machine and cost about as much"
    note = f"{len(refused)} refused: {refused[0]}" if refused else note
    return [("enrolments with join tokens, one control", heads, [row], note)]


def _fleet(found: Mapping[str, Any]) -> Tables:
    rows = [
        (
            f"{row['agents']:,}", f"{row['control_mib']:.0f}", f"{row['opened_per_s']:.0f}",
            f"{row['stream_cpu_ms']:.1f}", *(f"{row[name]:.0f}" for name in ("push_median_ms", "push_p99_ms")),
            f"{row['push_last_ms']:.0f}", f"{row['push_cpu_ms']:.2f}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    heads = (
        "agents", "control MiB", "streams opened/s", "CPU ms each",
        "push median ms", "p99 ms", "last ms", "CPU ms each",
    )  # fmt: skip
    note = f"control without agents: {found['rows'][0]['empty_mib']:.0f} MiB; a push counts from the operator's call"
    return [("agents' streams on one control (mutual TLS, hello, roster, tables)", heads, rows, note)]


def _exchange(found: Mapping[str, Any]) -> Tables:
    rows = [
        (
            str(row["networks"]), spread_text(row["whole_us"], 0), f"{row['per_second']:,.0f}",
            *(f"{row[name]:,}" for name in ("request_octets", "offer_octets", "installed_octets")),
        )
        for row in found["rows"]
    ]  # fmt: skip
    heads = ("networks", "us, both ends", "per second", "request octets", "offer octets", "installed octets")
    steps = [(str(row["networks"]), *(f"{cost:.0f}" for cost in row["steps_us"].values())) for row in found["rows"]]
    return [
        ("key exchange between two devices (ML-KEM-768 + X25519, ECDSA P-256)", heads, rows, ""),
        ("its steps, microseconds", ("networks", *found["rows"][0]["steps_us"]), steps, ""),
    ]


def _policy(found: Mapping[str, Any]) -> Tables:
    def table(columns: Mapping[str, str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows = [(row["cluster"], *(f"{row[name]['median']:,.2f}" for name in columns)) for row in found["rows"]]
        return ("cluster", *columns.values()), rows

    made, made_rows = table(
        {
            "load_ms": "read files",
            "compile_one_ms": "compile one",
            "compile_all_ms": "compile all",
            "decode_ms": "decode",
            "build_firewall_ms": "firewall",
            "swap_same_ms": "swap",
        }
    )
    octets = [(*row, f"{one['blob_octets']:,}") for row, one in zip(made_rows, found["rows"], strict=True)]
    asked, asked_rows = table(
        {"world_ms": "all tables", "test_ms": "test", "diff_ms": "diff", "prove_ms": "prove"},
    )
    return [
        ("policy, milliseconds", (*made, "octets"), octets, "decode, firewall and swap happen in the worker"),
        (
            "policy before it bites, milliseconds",
            asked,
            asked_rows,
            "`policy test` also reads files; `diff` is the tables of two policies, and what differs",
        ),
    ]


def _firewall(found: Mapping[str, Any]) -> Tables:
    rows = [
        (f"{row['rules']:,}", *(f"{row[name]['median']:.3f}" for name in ("established_us", "denied_us", "match_us")))
        for row in found["rows"]
    ]
    heads = ("rules", "established flow", "denied packet", "rule index alone")
    return [("firewall, microseconds a packet", heads, rows, f"parsing a packet: {found['parse_us']['median']:.2f} us")]


def _sealing(found: Mapping[str, Any]) -> Tables:
    names = ("seal_us", "unseal_us", "in_place_seal_us", "in_place_open_us")
    rows = [
        (
            f"{row['octets']:,}", *(f"{row[name]['median']:.2f}" for name in names),
            f"{row['in_place_gigabytes_per_s']:.2f}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    heads = ("octets", "seal", "unseal", "AEAD in place", "opening in place", "GB/s in place")
    note = f"replay window, look and update: {found['replay_window_us']:.2f} us"
    return [(f"sealing, {found['suite']}, microseconds a packet", heads, rows, note)]


_TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], Tables]]] = {
    "overlay": _overlay,
    "datagrams": _datagrams,
    "appraisal": _appraisal,
    "enrolment": _enrolment,
    "fleet": _fleet,
    "exchange": _exchange,
    "policy": _policy,
    "firewall": _firewall,
    "sealing": _sealing,
}
