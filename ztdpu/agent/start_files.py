"""The files that the start-up file names: read once, at start, each refusal with its place and remedy.

Called by `agent.run`. What is read here anchors all trust of the device; nothing of it ever comes from control.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ztdpu.agent.configuration import AgentSpec
from ztdpu.errors import ConfigurationError, Location, StateError
from ztdpu.trust.certificate import load_anchors
from ztdpu.trust.sshsig import parse_public_keys

FILE_LIMIT_OCTETS: Final = 1024 * 1024
LOCK_NAME: Final = "agent.lock"
PATH_LIMIT_OCTETS: Final = 90
"""A socket's whole path has at most 107 octets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFiles:
    """What a device believes from the start."""

    bundle_pem: bytes
    manufacturer_roots: tuple[x509.Certificate, ...]
    operator_keys: tuple[Ed25519PublicKey, ...]
    join_token: str = field(repr=False)


def read_start_files(spec: AgentSpec) -> StartFiles:
    """Read them all. Raises ConfigurationError that names the file (and line) and what to do."""
    bundle = _read(spec.control.bundle_file)
    _certificates(spec.control.bundle_file, bundle)
    token_file = spec.join_token_file
    return StartFiles(
        bundle_pem=bundle,
        manufacturer_roots=tuple(_certificates(spec.manufacturer_roots_file, _read(spec.manufacturer_roots_file))),
        operator_keys=tuple(_operator_keys(spec.roster_keys_file)),
        join_token=_read(token_file).decode("ascii", "replace").strip() if token_file is not None else "",
    )


def make_state_dir(spec: AgentSpec) -> None:
    """Make the run-time directory and that of the floors, for this user alone. Raises ConfigurationError."""
    if len(os.fsencode(spec.state_dir)) > PATH_LIMIT_OCTETS:
        raise _refusal(spec.state_dir, "is too long for UNIX sockets", f"at most {PATH_LIMIT_OCTETS} octets")
    try:
        spec.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.state_dir.chmod(0o700)
        spec.floors_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        made = Path(error.filename or spec.state_dir)
        raise _refusal(made, f"cannot be made: {error.strerror}", "name a directory that is yours") from error


def lock_state_dir(spec: AgentSpec) -> int:
    """Take the directory for this process: two agents would cut each other's root of trust off.

    Returns a descriptor; the lock lasts until it is closed. Raises StateError when another agent has it.
    """
    descriptor = os.open(spec.state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            f"another agent runs on {spec.state_dir}", remedy="stop it first, or use another stateDir"
        ) from error
    return descriptor


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            octets = file.read(FILE_LIMIT_OCTETS + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}", "check path and permissions") from error
    if len(octets) > FILE_LIMIT_OCTETS:
        raise _refusal(path, f"is larger than {FILE_LIMIT_OCTETS} octets", "name the right file")
    return octets


def _certificates(path: Path, octets: bytes) -> Sequence[x509.Certificate]:
    try:
        return load_anchors(octets)
    except ValueError as error:
        raise _refusal(path, f"cannot be used: {error}", "name a file of PEM certificates") from error


def _operator_keys(path: Path) -> Sequence[Ed25519PublicKey]:
    return parse_public_keys(_read(path).decode("utf-8", "replace"), file=str(path))


def _refusal(path: Path, message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(message, remedy=remedy, where=Location(file=str(path), line=0, column=0))
