"""Section overlay (and profile): one TCP stream from tenant to tenant, beside plaintext and wireguard-go.

Rounds alternate over the paths. iperf3 sends for a few seconds with cubic named on both sides, so that the
machine's default algorithm does not decide. While it does, the CPU time of every process that works for the path
is read from /proc; iperf3 says its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError
from ztdpu.lab import processes
from ztdpu.lab.bench.figures import ratio, spread
from ztdpu.lab.bench.ground import PLAINTEXT, SEALED, WIREGUARD, Ground, Say, Way

ALGORITHM: Final = "cubic"
_FIRST_PORT: Final = 5200
_OMIT_S: Final = 0.5
_START_TIMEOUT_S: Final = 10.0
_STALL_S: Final = 15.0
"""A stream that is this late does not end: it is counted as stalled and made again."""
_MOST_STALLS: Final = 2
_TICK: Final = os.sysconf("SC_CLK_TCK")

MACHINE: Final = "whole machine"
"""Row of everything that ran meanwhile, others' processes and interrupts included."""

Cpu = dict[str, tuple[float, float]]
"""Role -> (user, system) seconds."""


def measure(ground: Ground, *, rounds: int, seconds: float, say: Say) -> dict[str, Any]:
    """Run the rounds of one lab; return rows of throughput and rows of CPU time."""
    servers = {way.name: _FIRST_PORT + number for number, way in enumerate(ground.paths)}
    for way in ground.paths:
        ground.crew.start(way.destination, "iperf3", "-s", "-p", str(servers[way.name]), "--logfile", "/dev/null")
    results: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ground.paths}
    for number in range(rounds):
        for way in ground.paths:
            results[way.name].append(_stream(ground, way, servers[way.name], seconds))
        said = ", ".join(f"{name} {found[-1]['gbits']:.2f}" for name, found in results.items())
        say(f"overlay, MTU {ground.mtu_octets}, round {number + 1} of {rounds}: {said} Gbit/s")
    resident = {
        way.name: {role: processes.resident_octets(pid) for role, pid in way.pids.items()} for way in ground.paths
    }
    return {
        "rows": [throughput_row(way, ground.mtu_octets, results) for way in ground.paths],
        "profile": [
            row for way in ground.paths for row in profile_rows(way.name, ground.mtu_octets, results, resident)
        ],
    }


def throughput_row(way: Way, mtu_octets: int, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return one line of the table: a path's spread and its ratios to the others, round by round."""
    own = [found["gbits"] for found in results[way.name]]

    def beside(other: str) -> float | None:
        there = [found["gbits"] for found in results.get(other, ())]
        return ratio(own, there) if there and other != way.name else None

    return {
        "path": way.name,
        "mtu_octets": mtu_octets,
        "inner_mtu_octets": way.mtu_octets,
        "gbits": spread(own),
        "of_plaintext": beside(PLAINTEXT),
        "of_wireguard_go": beside(WIREGUARD),
        "retransmits": spread([found["retransmits"] for found in results[way.name]], digits=0),
        "stalls": sum(found.get("stalls", 0) for found in results[way.name]),
        "congestion": ALGORITHM,
    }


def profile_rows(
    path: str,
    mtu_octets: int,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    resident: Mapping[str, Mapping[str, int]],
) -> list[dict[str, Any]]:
    """Return a line per process: CPU seconds per gigabyte moved over all rounds, share of one core, memory after."""
    found = results[path]
    gigabytes = sum(one["octets"] for one in found) / 1e9
    elapsed = sum(one["seconds"] for one in found)
    rows = []
    for role in found[0]["cpu"]:
        user = sum(one["cpu"][role][0] for one in found)
        system = sum(one["cpu"][role][1] for one in found)
        rows.append(
            {
                "path": path,
                "mtu_octets": mtu_octets,
                "process": role,
                "user_s": round(user, 2),
                "system_s": round(system, 2),
                "s_per_gigabyte": round((user + system) / gigabytes, 3) if gigabytes else None,
                "of_one_core": round((user + system) / elapsed, 3) if elapsed else None,
                "resident_mib": round(resident.get(path, {}).get(role, 0) / 2**20, 1) or None,
            }
        )
    return rows


def _stream(ground: Ground, way: Way, port: int, seconds: float) -> dict[str, Any]:
    """Send one stream; try again while the server is not there yet."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    script = f"iperf3 -c {way.address} -p {port} -t {seconds} -O {_OMIT_S} -C {ALGORITHM} -J | tr -d '\\n\\t'; echo"
    stalls = 0
    while True:
        before = read_cpu(way.pids)
        try:
            report = ground.crew.start(way.source, "sh", "-c", script).finish(timeout_s=seconds + _STALL_S)
        except MachineError as error:
            stalls += 1
            if stalls > _MOST_STALLS:
                raise MachineError(f"iperf3 over {way.name}, MTU {ground.mtu_octets}: {error}") from error
            deadline = time.monotonic() + _START_TIMEOUT_S
            continue
        after = read_cpu(way.pids)
        if "sum_received" in report.get("end", {}):
            return {**read_report(report, spent(before, after)), "stalls": stalls}
        if time.monotonic() > deadline:
            raise MachineError(f"iperf3 over {way.name}: {report.get('error', 'no result')}")
        time.sleep(0.2)


def read_report(report: Mapping[str, Any], cpu: Cpu) -> dict[str, Any]:
    """Read what counts from iperf3's report. MachineError when the algorithm was not the one asked for."""
    end = report["end"]
    algorithms = {end.get("sender_tcp_congestion", ALGORITHM), end.get("receiver_tcp_congestion", ALGORITHM)}
    if algorithms != {ALGORITHM}:
        raise MachineError(f"iperf3 ran with {', '.join(sorted(algorithms))}, not {ALGORITHM}")
    received, used = end["sum_received"], end["cpu_utilization_percent"]
    took = received["seconds"] + _OMIT_S
    share = took / 100
    own: Cpu = {
        "iperf3 sender": (used["host_user"] * share, used["host_system"] * share),
        "iperf3 receiver": (used["remote_user"] * share, used["remote_system"] * share),
    }
    # CPU time is read around the whole stream, so the octets of the omitted start belong to it.
    whole = received["bytes"] * took / received["seconds"]
    return {
        "gbits": received["bits_per_second"] / 1e9,
        "octets": whole,
        "seconds": took,
        "retransmits": end.get("sum_sent", {}).get("retransmits", 0),
        "cpu": {**own, **cpu},
    }


def read_cpu(pids: Mapping[str, int]) -> Cpu:
    """Return user and system seconds that machine and processes used so far; zero for one that is gone."""
    read: Cpu = {MACHINE: _machine_cpu()}
    for role, pid in pids.items():
        read[role] = (0.0, 0.0)
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            read[role] = (int(fields[11]) / _TICK, int(fields[12]) / _TICK)
    return read


def _machine_cpu() -> tuple[float, float]:
    """Everything that ran on any core: (user and nice, system with interrupts); proc(5), stat."""
    with suppress(OSError):
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
        return (fields[0] + fields[1]) / _TICK, (fields[2] + fields[5] + fields[6]) / _TICK
    return 0.0, 0.0


def spent(before: Cpu, after: Cpu) -> Cpu:
    """Return what was used between two readings."""
    return {role: (after[role][0] - user, after[role][1] - system) for role, (user, system) in before.items()}


def verdict(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the one-line sums that a reader wants first."""
    return [
        f"MTU {row['mtu_octets']}: {row['gbits']['median']:.2f} Gbit/s sealed"
        + (f", {row['of_plaintext']:.2f} of plaintext" if row["of_plaintext"] else "")
        + (f", {row['of_wireguard_go']:.1f} times wireguard-go" if row["of_wireguard_go"] else "")
        for row in rows
        if row["path"] == SEALED
    ]
