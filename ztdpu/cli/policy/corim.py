"""`ztdpu policy import-corim`: a manufacturer's reference manifest as a policy document."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ztdpu.cli.output import Format, plain, print_document
from ztdpu.errors import ConfigurationError, CorimError, Location, PolicyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric import ec

_KEY_LIMIT_OCTETS = 16 * 1024
_LINES_LIMIT = 40


def import_corim(
    file: Annotated[Path, typer.Argument(help="The manifest (CoRIM, CBOR).")],
    profile: Annotated[str, typer.Option("--profile", help="Profile of the devices that it is about.")],
    name: Annotated[str, typer.Option("--name", help="Name of the document.", show_default="PROFILE-imported")] = "",
    key: Annotated[
        Path | None, typer.Option("--key", metavar="PEM", help="Public key of the signer; a signed manifest needs it.")
    ] = None,
    unsigned: Annotated[  # noqa: FBT002 - typer makes a flag of it
        bool, typer.Option("--unsigned", help="Take a manifest that nobody signed.")
    ] = False,
    leave_out: Annotated[  # noqa: FBT002 - typer makes a flag of it
        bool, typer.Option("--leave-out", help="Print what maps, though other parts of the manifest do not.")
    ] = False,
) -> None:
    """Print the ReferenceValues document that a CoRIM stands for, to be put into a policy file and reviewed.

    What has no place in the document is named, and nothing is printed then without --leave-out.
    """
    from ztdpu.policy.corim_import import import_corim as map_corim
    from ztdpu.policy.documents.base import is_name
    from ztdpu.trust.corim import LIMIT_OCTETS, read_corim
    from ztdpu.trust.profile import load_profile

    if (key is None) != unsigned:
        raise UsageError("is the manifest signed or not?", remedy="name the signer's --key, or say --unsigned")
    target, document_name = load_profile(profile), name or f"{profile}-imported"
    if not is_name(document_name):
        raise UsageError(f"{document_name!r} is no name of a document", remedy="use lower-case letters, digits and '-'")
    blob, signer = _read(file, LIMIT_OCTETS), _read_key(key) if key else None
    try:
        manifest = read_corim(blob, now=datetime.now(tz=UTC), key=signer)
    except CorimError as error:
        raise PolicyError(
            error.message,
            remedy="ask its publisher, or name another file or key",
            where=Location(file=str(file), line=0),
        ) from error
    imported = map_corim(manifest, name=document_name, profile=target)
    _report(file, imported.left_out, is_allowed=leave_out)
    if not imported.document:
        raise PolicyError(
            f"nothing in the manifest is about {profile}",
            remedy="is it the right --profile?",
            where=Location(file=str(file), line=0),
        )
    said = f"signed by {plain(manifest.signer)!r}" if manifest.is_signed else "not signed"
    print(f"# From CoRIM {plain(manifest.name)!r}, {said}.")
    print_document(imported.document, output=Format.YAML)


def _report(file: Path, left_out: Sequence[str], *, is_allowed: bool) -> None:
    """Name what is not in the document; PolicyError unless that is allowed."""
    for line in left_out[:_LINES_LIMIT]:
        print(f"{file}: {'left out' if is_allowed else 'does not map'}: {plain(line)}", file=sys.stderr)
    if len(left_out) > _LINES_LIMIT:
        print(f"{file}: and {len(left_out) - _LINES_LIMIT} more", file=sys.stderr)
    if left_out and not is_allowed:
        count = f"{len(left_out)} parts of the manifest have" if len(left_out) > 1 else "one part of it has"
        raise PolicyError(
            f"{count} no place in reference values",
            remedy="read above which; if the rest is good without: --leave-out",
            where=Location(file=str(file), line=0),
        )


def _read(path: Path, limit_octets: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(limit_octets + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}", remedy="name a file", where=Location(file=str(path), line=0)
        ) from error
    if len(content) > limit_octets:
        raise ConfigurationError(f"has over {limit_octets} octets", where=Location(file=str(path), line=0))
    return content


def _read_key(path: Path) -> ec.EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read(path, _KEY_LIMIT_OCTETS)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in ("secp256r1", "secp384r1", "secp521r1"):
        raise ConfigurationError(
            "is no public key on P-256, P-384 or P-521",
            remedy="name a PEM file that begins with BEGIN PUBLIC KEY",
            where=Location(file=str(path), line=0),
        )
    return key
