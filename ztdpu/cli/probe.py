"""`ztdpu attestation probe`: talk to one SPDM responder, verify everything it says, print it. No control needed."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.output import Format, FormatOption, plain, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.trust.inspection import Inspection
    from ztdpu.trust.profile import Profile

DEFAULT_PROFILE: Final = "bluefield-3"
_ROOT_LIMIT_OCTETS: Final = 1 << 20


def probe(
    spdm_tcp: Annotated[str, typer.Option("--spdm-tcp", metavar="HOST:PORT", help="Where an SPDM responder listens.")],
    root: Annotated[Path, typer.Option("--root", help="PEM certificates of the manufacturer roots to trust.")],
    profile: Annotated[str, typer.Option(help="Product; fixes version and algorithms.")] = DEFAULT_PROFILE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Verify one device over SPDM: chain, challenge, signed measurements. Exit status 1 when it is refused."""
    from ztdpu.rpc.spdm_tcp import SpdmPeer, collect_evidence, read_address
    from ztdpu.trust.inspection import inspect_device
    from ztdpu.trust.profile import load_profile
    from ztdpu.trust.spdm.requester import MeasurementSession

    known, roots = load_profile(profile), _read_roots(root)
    host, port = read_address(spdm_tcp, loopback_only=False)
    nonce = os.urandom(32)
    session = MeasurementSession(profile=known, nonce=nonce, challenge_nonce=os.urandom(32), now_s=time.monotonic())
    with SpdmPeer(host, port) as peer:
        evidence = collect_evidence(peer, session)
    found = inspect_device(evidence, profile=known, roots=roots, nonce=nonce, now=datetime.now(UTC))
    if output in (Format.JSON, Format.YAML):
        print_document(_document(found, known), output=output)
    else:
        _print(found, known, output)
    if found.findings:
        raise typer.Exit(1)


def _read_roots(path: Path) -> tuple[Any, ...]:
    from ztdpu.errors import ConfigurationError
    from ztdpu.trust.certificate import load_anchors

    try:
        with path.open("rb") as file:
            return load_anchors(file.read(_ROOT_LIMIT_OCTETS))
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"{path} cannot be read: {cause}", remedy="name the file of the root") from error


def _document(found: Inspection, profile: Profile) -> dict[str, Any]:
    return {
        "verdict": "verified" if not found.findings else "admits-faults",
        "profile": profile.name,
        "spdm": {
            "version": profile.spdm_version,
            "signature": profile.signature,
            "hash": profile.hash,
            "measurement_hash": profile.measurement_hash,
        },
        "device_id_sha256": found.chain.device_id_sha256.hex(),
        "ueid": found.chain.ueid.hex(),
        "boot": {"counter": found.chain.boot.counter, "nonce": found.chain.boot.nonce.hex()},
        "chain": _levels(found, profile),
        "measurements": _measurements(found),
        "findings": [dataclasses.asdict(one) for one in found.findings],
    }


def _levels(found: Inspection, profile: Profile) -> list[dict[str, Any]]:
    fwids = {one.level: one.digest.hex() for one in found.chain.fwids}
    return [
        {
            "level": number,
            "role": str(level.role),
            "subject": certificate.subject.rfc4514_string(),
            "fwid": fwids.get(number, ""),
        }
        for number, (level, certificate) in enumerate(zip(profile.levels, found.chain.certificates, strict=True))
    ]


def _measurements(found: Inspection) -> list[dict[str, Any]]:
    return [
        {"index": int(one.place), "component": one.component, "dimension": str(one.dimension), "value": one.seen}
        for one in found.appraisal.checks
        if one.place.isdigit()
    ]


def _print(found: Inspection, profile: Profile, output: Format) -> None:
    print(f"verified: chain to the root, challenge, signed measurements; profile {profile.name}")
    print(f"SPDM {profile.spdm_version}, {profile.signature}, {profile.hash}, measurements {profile.measurement_hash}")
    print(f"DeviceID {found.chain.device_id_sha256.hex()}, boot {found.chain.boot.counter}\n")
    print_rows(
        _levels(found, profile), columns=("level", "role", "subject", "fwid"), shrink=("fwid", "subject"), output=output
    )
    print()
    print_rows(
        _measurements(found), columns=("index", "component", "dimension", "value"), shrink=("value",), output=output
    )
    for finding in found.findings:
        print(f"\n{finding.code}: {plain(finding.message)}", file=sys.stderr)
