"""`ztdpu identity`: list, show, bundle, rotate-authority. Keys themselves are never shown."""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.connection import ServerOption, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.errors import NotFoundError, StateError, UsageError
from ztdpu.model.identity import AuthorityRotation, Expiry, Identities, IdentityKind, IdentityStatus, RotationStep

if TYPE_CHECKING:
    from cryptography import x509

app = typer.Typer(help="Identities, their ends, and the authority behind them.", no_args_is_help=True)

COLUMNS: Final = ("kind", "name", "state", "left", "authority", "bundle", "serial")
WIDE: Final = ("spki_sha256", "not_after")
IDENTITY_FILE: Final = "identity.json"
"""As `agent.identity_keeper` writes it."""


@app.command("list")
def list_identities(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """List authorities, control's certificate and SVIDs of devices, with the time that each has left."""
    with connect(server) as client:
        found = client.list_identities()
    _print(found, found.identities, output=output)


@app.command()
def show(
    device: Annotated[str | None, typer.Option("--device", help="What control issued to this device.")] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="What the agent with this stateDir holds; asks nobody.")
    ] = None,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what control holds, what a device was given, or what an agent on this machine holds."""
    if device is not None and state is not None:
        raise UsageError("--device asks control, --state reads a directory: name one")
    if state is not None:
        _show_agent(state, output=output)
        return
    with connect(server) as client:
        found = client.list_identities()
    kinds = (IdentityKind.DEVICE,) if device else (IdentityKind.AUTHORITY, IdentityKind.CONTROL)
    chosen = [one for one in found.identities if one.kind in kinds and (not device or _name(one) == device)]
    if not chosen:
        raise NotFoundError(f"no identity of a device {device!r}", remedy="`ztdpu identity list`; did it attest?")
    _print(found, chosen, output=output)


@app.command()
def bundle(
    pem: Annotated[bool, typer.Option("--pem", help="PEM certificates, as for an agent's bundleFile.")] = False,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Print the bundle of the trust domain: with -o json the SPIFFE document, a JWK set."""
    with connect(server) as client:
        found = client.get_bundle()
    if pem:
        from ztdpu.trust.bundle_document import read_bundle_document

        print(read_bundle_document(found.document, trust_domain=found.trust_domain).pem.decode(), end="")
        return
    document = json.loads(found.document)
    if output in (Format.JSON, Format.YAML):
        print_document(document, output=output)
        return
    print_rows(
        [
            {"use": one["use"], "curve": one["crv"], "key_id": one.get("kid", ""), "x": one["x"]}
            for one in document["keys"]
        ],
        columns=("use", "curve", "key_id", "x"),
        shrink=("x", "key_id"),
        output=output,
    )
    print(f"{found.trust_domain}: sequence {found.sequence}, look again after {document['spiffe_refresh_hint']} s")


@app.command("rotate-authority")
def rotate_authority(
    step: Annotated[RotationStep, typer.Argument(help="prepare, then activate, then retire.")],
    force: Annotated[bool, typer.Option("--force", help="Although devices lag: they are shut out.")] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=0, max=3600, help="Seconds to wait for devices that lag.")
    ] = 0,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")] = "rotation",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take one step of replacing the authority; none interrupts anybody unless it is forced."""
    until = time.monotonic() + wait_s
    with connect(server) as client:
        while True:
            try:
                answer = client.rotate_authority(step, reason=reason, force=force)
                break
            except StateError as error:
                if time.monotonic() >= until or "rotation" in error.message:
                    raise
                if sys.stderr.isatty():
                    print(f"waiting: {error.message}", file=sys.stderr)
                time.sleep(1)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(answer), output=output)
        return
    _say(step, answer)


def _say(step: RotationStep, answer: AuthorityRotation) -> None:
    print(f"authority {answer.authority} is {answer.state}; bundle {answer.bundle_sequence}")
    behind = ", ".join(answer.devices_behind)
    following = {
        RotationStep.PREPARE: f"next: activate, when these believe it: {behind}" if behind else "next: activate",
        RotationStep.ACTIVATE: "next: retire, when every device has a new SVID (one attestation interval)",
        RotationStep.RETIRE: "done: the authority before is refused from now on",
    }
    print(following[step])
    if behind and step is not RotationStep.PREPARE:
        print(f"not waited for: {behind}")


def _print(found: Identities, chosen: Any, *, output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        document = dataclasses.asdict(found) | {"identities": [_row(one) for one in chosen]}
        print_document(document, output=output)
        return
    rows = [_row(one) | {"bundle": one.bundle_sequence or "", "serial": one.serial[:16]} for one in chosen]
    print_rows(rows, columns=COLUMNS, wide=WIDE, shrink=("serial", "bundle"), output=output)
    ending = [_name(one) for one in chosen if one.expiry is not Expiry.OK]
    if ending:
        print(f"\nabout to end, or over: {', '.join(ending)}")


def _row(one: IdentityStatus) -> dict[str, Any]:
    left_s = one.not_after_unix_s - time.time()
    words = _duration(left_s) if left_s > 0 else "over"
    return dataclasses.asdict(one) | {
        "name": _name(one),
        "seconds_left": round(left_s),
        "left": words if one.expiry is Expiry.OK else f"{words} ({one.expiry})" if left_s > 0 else words,
        "not_after": time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(one.not_after_unix_s)),
    }


def _name(one: IdentityStatus) -> str:
    if one.kind is IdentityKind.AUTHORITY:
        return one.authority
    return one.spiffe_id.rpartition("/")[2]


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _show_agent(state: Path, *, output: Format) -> None:
    """Read what the agent's `identity_keeper` wrote."""
    from cryptography import x509

    path = state / IDENTITY_FILE
    try:
        document = json.loads(path.read_text())
        authorities = x509.load_pem_x509_certificates(document["bundle"].encode())
        chain = x509.load_pem_x509_certificates(document["svid"].encode()) if document["svid"] else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} cannot be read", remedy="is this an agent's stateDir, and did it connect?") from error
    from ztdpu.trust.spiffe_id import control_dns_name

    rows = [_of_certificate(IdentityKind.DEVICE, one, authorities) for one in chain[:1]]
    rows += [_of_certificate(IdentityKind.AUTHORITY, one, [one]) for one in authorities]
    found = Identities(
        trust_domain=document["trust_domain"], bundle_sequence=document["bundle_sequence"], identities=rows
    )
    _print(found, rows, output=output)
    if output is Format.TABLE:
        sequence = document["bundle_sequence"] or "of the start-up file"
        print(f"believes {control_dns_name(document['trust_domain'])} by bundle {sequence}")


def _of_certificate(
    kind: IdentityKind, certificate: x509.Certificate, authorities: list[x509.Certificate]
) -> IdentityStatus:
    from contextlib import suppress

    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    from ztdpu.model.identity import judge_expiry
    from ztdpu.trust.certificate import spki_sha256

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    signer = ""
    for one in authorities:
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(one)
            signer = spki_sha256(one.public_key())[:8].hex()  # type: ignore[arg-type]  # an EC key, or it signed nothing
            break
    since, until = (int(one.timestamp()) for one in (certificate.not_valid_before_utc, certificate.not_valid_after_utc))
    return IdentityStatus(
        kind=kind,
        spiffe_id=names.get_values_for_type(x509.UniformResourceIdentifier)[0],
        state="",
        serial=f"{certificate.serial_number:x}",
        spki_sha256=spki_sha256(certificate.public_key()).hex(),  # type: ignore[arg-type]
        not_before_unix_s=since,
        not_after_unix_s=until,
        authority=signer,
        expiry=judge_expiry(kind, not_before_unix_s=since, not_after_unix_s=until, now_unix_s=time.time()),
    )
