"""`ztdpu attestation`: what control found out about a device."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.model.administration import AttestationReport

app = typer.Typer(help="What control found out about a device.", no_args_is_help=True)


@app.callback()
def _app() -> None:
    """What control found out about a device."""


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the device.")],
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the last appraisal: tier, trustworthiness vector, every finding with what was expected and seen."""
    with connect(server) as client:
        report = client.get_attestation(name)
    if output in (Format.JSON, Format.YAML):
        print_document(_document(report), output=output)
        return
    print(f"{report.device}: {report.state}, tier {report.tier}, appraised {as_time(report.appraised_unix_ms)}")
    print(f"profile {report.profile}")
    print(f"DeviceID {report.device_id_sha256 or 'not pinned'}")
    for dimension, claim in _vector(report.ear).items():
        print(f"  {dimension:<20} {claim}")
    if not report.findings:
        print("no findings: everything is as expected")
        return
    print_rows(
        [dataclasses.asdict(one) for one in report.findings],
        columns=("code", "index", "component", "dimension", "claim", "seen", "expected", "source"),
        wide=("message",),
        output=output,
    )


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="Name of the device.")],
    file: Annotated[Path, typer.Argument(help="Where to write the evidence.")],
    server: ServerOption = None,
) -> None:
    """Write the evidence of the last appraisal to a file, as control stored it."""
    with connect(server) as client:
        report = client.get_attestation(name)
    file.write_bytes(report.evidence)
    print(f"{file}: {len(report.evidence)} octets of evidence from {report.device}")


def _document(report: AttestationReport) -> dict[str, Any]:
    evidence = base64.b64encode(report.evidence).decode()
    return dataclasses.asdict(report) | {"evidence": evidence, "vector": _vector(report.ear)}


def _vector(ear: str) -> dict[str, int]:
    """For display only: control's own statement, read without verifying it."""
    if ear.count(".") != 2:
        return {}
    payload = ear.split(".")[1]
    document = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    vectors = [sub.get("ear_trustworthiness_vector", {}) for sub in document.get("submods", {}).values()]
    return dict(vectors[0]) if vectors else {}
