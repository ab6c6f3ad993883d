"""`ztdpu policy sign-roster`: the roster that a policy wants, shown before an operator signs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ztdpu.errors import ConfigurationError, Location, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ztdpu.trust.roster import Roster

_DIGEST_OCTETS = 32
_DIFFERENT = 4


def sign_roster(
    directory: Annotated[Path, typer.Argument(metavar="POLICY_DIR", help="Directory of policy files.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="The roster; its signature stands beside it, in OUT.sig.")],
    signature: Annotated[
        Path | None, typer.Option("--signature", help="The signature's file.", show_default="OUT.sig")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Private key of an operator (Ed25519, OpenSSH). Without it ssh-keygen signs."),
    ] = None,
    trust_domain: Annotated[
        str, typer.Option("--trust-domain", help="Wanted for a first roster.", show_default="that of the roster")
    ] = "",
    device_id: Annotated[
        list[str] | None, typer.Option("--device-id", metavar="NAME=SHA256", help="DeviceID hash of a new device.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Operators' public keys: the present roster must be signed by one.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Sign nothing: say how roster and directory differ (exit status 4).")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Sign without asking.")] = False,
) -> None:
    """Make the roster that a policy directory wants, show what changes, and sign it.

    Network ids and known DeviceIDs stay as they are; the serial rises with every change.
    """
    import secrets

    from ztdpu.policy.load import load_directory
    from ztdpu.policy.roster_file import describe_changes, plan_roster, read_wishes

    signature = signature or out.with_name(f"{out.name}.sig")
    before = _read_roster(out, signature, keys)
    if before is None and not trust_domain:
        raise UsageError(f"there is no roster {out} yet", remedy="name its --trust-domain")
    after = plan_roster(
        read_wishes(load_directory(directory)),
        trust_domain=trust_domain or (before.trust_domain if before else ""),
        before=before,
        device_ids=_parse_device_ids(device_id or ()),
        draw_network_id=lambda: secrets.token_bytes(16),
    )
    changes = describe_changes(before, after)
    print("\n".join(changes) if changes else f"{out}: serial {after.serial}, nothing changes")
    if check:
        raise typer.Exit(_DIFFERENT if changes else 0)
    if changes:
        _agree(before.serial if before else 0, after.serial, is_agreed=yes)
        _write(after, out, signature, key)


def _read_roster(out: Path, signature: Path, keys: Path | None) -> Roster | None:
    from ztdpu.trust.roster import decode_roster, verify_roster
    from ztdpu.trust.sshsig import parse_public_keys

    if not out.exists():
        if keys is not None:
            raise UsageError(f"there is no roster {out} to check", remedy="leave --keys away for a first one")
        return None
    blob = out.read_bytes()
    if keys is None:
        return decode_roster(blob)
    operators = parse_public_keys(keys.read_text(), file=str(keys))
    return verify_roster(blob, signature.read_text(), operators, 0)


def _parse_device_ids(words: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for word in words:
        name, _, digest = word.partition("=")
        try:
            found[name] = bytes.fromhex(digest)
        except ValueError:
            found[name] = b""
        if len(found[name]) != _DIGEST_OCTETS:
            raise UsageError(f"--device-id {word[:80]!r}", remedy="write NAME=SHA256, 64 hexadecimal digits")
    return found


def _agree(before: int, after: int, *, is_agreed: bool) -> None:
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to agree", remedy="look at the changes above, then say --yes")
    typer.confirm(f"sign this as serial {after} (it was {before})?", abort=True, err=True)


def _write(roster: Roster, out: Path, signature: Path, key: Path | None) -> None:
    from ztdpu.trust.roster import encode_roster
    from ztdpu.trust.roster import sign_roster as sign

    blob = encode_roster(roster)
    if key is None:
        _replace(out, blob)
        signature.unlink(missing_ok=True)
        print(f"{out}: serial {roster.serial}, not signed yet", file=sys.stderr)
        print(f"  next: ssh-keygen -Y sign -f OPERATOR_KEY -n ztdpu-roster {out}", file=sys.stderr)
        return
    armour = sign(blob, _load_key(key))
    _replace(signature, armour.encode())
    _replace(out, blob)
    print(f"{out}: serial {roster.serial}, signed; `ztdpu policy sync` puts it in force", file=sys.stderr)


def _load_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    remedy = "a key with a passphrase, or on a security key: leave --key away and sign with ssh-keygen"
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = str(error).splitlines()[0]
        raise ConfigurationError(f"no private key in it: {what}", remedy=remedy, where=_at(path)) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigurationError("not an Ed25519 key", remedy="ssh-keygen -t ed25519", where=_at(path))
    return key


def _at(path: Path) -> Location:
    return Location(file=str(path), line=0)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)  # noqa: PTH105 - the atomic call by its name
