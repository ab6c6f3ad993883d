"""`ztdpu attestation`: what control found out about a device, and the same from a file without control."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.connection import ServerOption, as_age, as_time, connect
from ztdpu.cli.output import Format, FormatOption, plain, print_document, print_rows, wrapped
from ztdpu.cli.probe import probe
from ztdpu.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ztdpu.model.administration import AttestationReport
    from ztdpu.model.attestation import Check, Finding
    from ztdpu.policy.verify_evidence import Verification

app = typer.Typer(help="What control found out about a device; evidence files.", no_args_is_help=True)

DIGEST_SHOWN: Final = 12
"""Hexadecimal digits of a digest that a table shows; wide, json and yaml show all."""
COLUMNS: Final = ("place", "component", "result", "seen", "expected", "source")


class EarForm(StrEnum):
    """Forms of a signed attestation result."""

    JWT = "jwt"
    CWT = "cwt"


NameArgument = Annotated[str, typer.Argument(help="Name of the device.")]
app.command()(probe)


@app.callback()
def _app() -> None:
    """What control found out about a device; evidence files."""


@app.command()
def show(
    name: NameArgument,
    ear: Annotated[
        EarForm | None, typer.Option("--ear", help="Print only the signed result: jwt as text, cwt in hexadecimal.")
    ] = None,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the last appraisal: verdict, trustworthiness vector, every measurement with what was expected and seen."""
    with connect(server) as client:
        report = client.get_attestation(name)
    if ear is not None:
        _print_ear(report, ear)
        return
    if output in (Format.JSON, Format.YAML):
        print_document(_document(report), output=output)
        return
    age = as_age(report.appraised_unix_ms)
    print(f"{report.device}: {report.tier}, appraised {as_time(report.appraised_unix_ms)} ({age} ago)")
    print(f"  state       {report.state}")
    print(f"  profile     {report.profile}")
    print(f"  DeviceID    {report.device_id_sha256 or 'not pinned'}")
    if report.policy:
        print(f"  judged by   policy {report.policy}, reference values {report.references}")
    _print_vector(_vector(report.ear))
    _print_checks(report.checks, output)
    _print_findings(report.findings)


@app.command()
def export(
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write it. Default: DEVICE.evidence.")
    ] = None,
    server: ServerOption = None,
) -> None:
    """Write the last appraisal to one signed file: evidence, key binding, result, and what it was judged by.

    `ztdpu attestation verify` appraises it again, anywhere, without control.
    """
    with connect(server) as client:
        content = client.export_attestation(name)
    path = file or Path(f"{name}.evidence")
    path.write_bytes(content)
    print(f"{path}: {len(content)} octets of evidence from {name}")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="From `ztdpu attestation export`.")],
    policy: Annotated[Path, typer.Option("--policy", metavar="DIR", help="Policy directory to judge by.")],
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="PEM", help="The manufacturer's roots that you trust; else those in the file."),
    ] = None,
    ear_key: Annotated[
        Path | None,
        typer.Option("--ear-key", metavar="PEM", help="Control's `ear.pem` that you know; else the key in the file."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Appraise an evidence file again, offline. Exit status 1: it does not verify, or the policy gives it no lease."""
    from ztdpu.policy.verify_evidence import verify_evidence

    verification = verify_evidence(file, policy, roots_file=root, ear_key_file=ear_key)
    if output in (Format.JSON, Format.YAML):
        print_document(_verification_document(verification), output=output)
    else:
        _print_verification(file, verification, output)
    if not verification.may_hold_lease:
        raise typer.Exit(1)


def _print_verification(file: Path, verification: Verification, output: Format) -> None:
    verified, policy = verification.verified, verification.policy
    said, appraisal = verified.result, verified.appraisal
    lease = "gets a lease" if verification.may_hold_lease else "gets no lease"
    print(f"{verified.file.device}: {appraisal.tier.word}, {lease} by policy {policy.name}")
    print(f"  file        {file}, signature good")
    print(f"  appraised   {as_time(verified.file.appraised_unix_ms)}, for which moment it was judged again")
    print(f"  profile     {appraisal.profile}, boot {appraisal.boot_counter}")
    print(f"  DeviceID    {appraisal.device_id_sha256.hex()}")
    print(f"  key binding {'sequence ' + str(verified.binding.sequence) if verified.binding else 'none'}")
    agrees = "the same" if verified.agrees else f"{said.status.word}, which is another verdict"
    print(f"  control     said {agrees}")
    _print_vector({str(name): claim for name, claim in appraisal.vector.items()})
    _print_checks(appraisal.checks, output)
    _print_findings(appraisal.findings)
    if not verification.own_roots:
        print("the manufacturer's roots are those in the file: name your own with --root", file=sys.stderr)
    if not verification.own_ear_key:
        print("control's key is the one in the file: name the one you know with --ear-key", file=sys.stderr)


def _verification_document(verification: Verification) -> dict[str, Any]:
    verified = verification.verified
    appraisal, file = verified.appraisal, verified.file
    from ztdpu.trust.evidence_file import fingerprint

    return {
        "device": file.device,
        "trust_domain": file.trust_domain,
        "tier": appraisal.tier.word,
        "lease": verification.may_hold_lease,
        "policy": verification.policy.name,
        "references": appraisal.references,
        "profile": appraisal.profile,
        "appraised_unix_ms": file.appraised_unix_ms,
        "device_id_sha256": appraisal.device_id_sha256.hex(),
        "boot_counter": appraisal.boot_counter,
        "key_binding_sequence": verified.binding.sequence if verified.binding else None,
        "vector": {str(name): claim for name, claim in appraisal.vector.items()},
        "checks": [dataclasses.asdict(one) for one in appraisal.checks],
        "findings": [dataclasses.asdict(one) for one in appraisal.findings],
        "control_said": verified.result.status.word,
        "control_agrees": verified.agrees,
        "anchors": {
            "manufacturer_roots": "named" if verification.own_roots else "from the file",
            "manufacturer_roots_sha256": [fingerprint(der) for der in file.manufacturer_roots],
            "ear_key": "named" if verification.own_ear_key else "from the file",
            "ear_key_sha256": fingerprint(file.ear_key),
        },
    }


def _print_vector(vector: Mapping[str, int]) -> None:
    from ztdpu.model.attestation import Dimension
    from ztdpu.trust.claims import word_of_claim

    for name, claim in vector.items():
        print(f"  {name:<18} {claim:>3}  {word_of_claim(Dimension(name), claim)}")


def _print_checks(checks: Sequence[Check], output: Format) -> None:
    if not checks:
        return
    print()
    print_rows(
        [check_row(one, is_short=output is Format.TABLE) for one in checks],
        columns=COLUMNS,
        shrink=("expected", "seen", "component"),
        floors={"expected": 13, "seen": 13, "component": 22},
        optional=("source",),
        output=output,
    )


def check_row(one: Check, *, is_short: bool) -> dict[str, Any]:
    """One line of the table."""
    row = dataclasses.asdict(one) | {"result": str(one.result)}
    if is_short:
        is_same = one.expected == (one.seen,) and len(one.seen) > DIGEST_SHOWN
        expected = "the same" if is_same else [_short(word) for word in one.expected]
        row |= {"seen": _short(one.seen), "expected": expected}
        row["source"] = one.source.rpartition("/")[2]
    return row


def _short(word: str) -> str:
    is_digest = len(word) > 4 * DIGEST_SHOWN and set(word) <= set("0123456789abcdef")
    return f"{word[:DIGEST_SHOWN]}…" if is_digest else word


def _print_findings(findings: Iterable[Finding]) -> None:
    print()
    lines = [part for line in findings_lines(findings) for part in wrapped(plain(line))]
    print("\n".join(lines) if lines else "no findings: everything is as expected")


def findings_lines(findings: Iterable[Finding], indent: str = "") -> list[str]:
    """All findings for people; those with one code share a heading, one line each below it."""
    groups: dict[tuple[str, str, int], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, str(one.dimension), one.claim), []).append(one)
    lines: list[str] = []
    for (code, dimension, claim), alike in groups.items():
        if len(alike) == 1:
            lines += finding_lines(alike[0], indent)
            continue
        lines.append(f"{indent}{code}, {len(alike)} times; {dimension} becomes {claim}")
        lines += [f"{indent}  {_in_one_line(one)}" for one in alike]
    return lines


def _in_one_line(one: Finding) -> str:
    place = f"index {one.index}: " if one.index is not None else ""
    expected = f"; expected {', '.join(map(_short, one.expected))}" if one.expected else ""
    seen = f", seen {_short(one.seen)}" if one.seen else ""
    return f"{place}{one.message}{expected}{seen}{f'; by {one.source}' if one.source else ''}"


def finding_lines(one: Finding, indent: str = "") -> list[str]:
    """A finding for people: what, where, expected, seen, and the line of the document that expected it."""
    place = f" (index {one.index})" if one.index is not None else ""
    lines = [f"{indent}{one.code}{place}: {one.message}; {one.dimension} becomes {one.claim}"]
    if one.expected:
        lines.append(f"{indent}  expected  {', '.join(map(_short, one.expected))}")
    if one.seen:
        lines.append(f"{indent}  seen      {_short(one.seen)}")
    if one.source:
        lines.append(f"{indent}  by        {one.source}")
    return lines


def _document(report: AttestationReport) -> dict[str, Any]:
    evidence = base64.b64encode(report.evidence).decode()
    changed = {"evidence": evidence, "vector": _vector(report.ear), "ear_cwt": report.ear_cwt.hex()}
    return dataclasses.asdict(report) | changed


def _print_ear(report: AttestationReport, form: EarForm) -> None:
    token = report.ear if form is EarForm.JWT else report.ear_cwt.hex()
    if not token:
        raise StateError(
            f"control has no signed result of {report.device} as {form}",
            remedy="its key of results was replaced: wait for the next attestation",
        )
    print(token)


def _vector(ear: str) -> dict[str, int]:
    """For display only: control's own statement, read without verifying it."""
    if ear.count(".") != 2:
        return {}
    payload = ear.split(".")[1]
    document = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    submods = document.get("submods", {})
    vectors = [sub.get("ear_trustworthiness_vector", {}) for name, sub in submods.items() if "/" not in name]
    return dict(vectors[0]) if vectors else {}
