"""The emulated root of trust as a process of its own: holds the device's secrets, answers at two doors.

    python -m ztdpu.agent.root_of_trust --secrets FILE --profile NAME --spdm-socket PATH --binding-socket PATH
        [--agent-uid N] [--parent-fd N] [--ready-fd N] [--fault firmware-altered] [--fault-socket PATH]

Started by the agent's daemon, never imported by it. Start: read secrets, raise the boot counter, write it
back and sync it, boot, listen. Only then anything is answered, so that no two boots share a counter.

Both doors are SOCK_SEQPACKET UNIX sockets with mode 0600, one datagram is one message:

- SPDM door: SPDM messages as they are. Every connection is a session of its own.
- binding door: `trust.root.encode_bind_request` and its answer. The peer's uid must be the agent's.
- fault door, in labs only (--fault-socket): the word of a preset of `trust.faults`; answered with `ok` or a refusal.
  Without that option the process holds nothing that could misbehave.

One thread, one selector loop. When the other end of --parent-fd closes, the process ends. Linux only
(SO_PEERCRED). A peer that sends too much, or does not take its answer, loses its connection.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ztdpu.agent.socket_files import remove_unserved
from ztdpu.errors import BindingError, ConfigurationError, ZtdpuError
from ztdpu.trust.faults import FaultyRoot, Preset
from ztdpu.trust.firmware import FirmwareFault, alter_firmware
from ztdpu.trust.manufacture import DeviceSecrets, decode_secrets, encode_secrets
from ztdpu.trust.profile import load_profile
from ztdpu.trust.root import (
    DOOR_LIMIT_OCTETS,
    EmulatedRoot,
    RootOfTrust,
    decode_bind_request,
    encode_bind_answer,
    encode_bind_refusal,
)

CONNECTIONS_LIMIT: Final = 16
"""At each door for the agent's user, and as many for all others together; a further one is closed at once. So who
opens the SPDM door, which anybody may, and says nothing keeps no agent from attesting."""
FAULT_SET: Final = b"ok"
_BACKLOG: Final = 64
_BOOT_NONCE_OCTETS: Final = 16
_SECRETS_LIMIT_OCTETS: Final = 1 << 20
_CREDENTIALS: Final = struct.Struct("iII")

Answer = Callable[[bytes], bytes]
Queue = tuple[socket.socket, bool]
"""A door, and whether the peer is of the agent's user."""


def read_secrets(path: Path) -> DeviceSecrets:
    """Read a secrets file that belongs to nobody else.

    Raises:
        ConfigurationError: missing, readable by others, or malformed.

    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigurationError(f"{path} can be read by others", remedy=f"chmod 600 {path}")
            text = file.read(_SECRETS_LIMIT_OCTETS).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", remedy="check secretsFile of the agent") from error
    return decode_secrets(text)


def write_secrets(path: Path, secrets: DeviceSecrets) -> None:
    """Write a secrets file (0600) so that a crash leaves the old one or the new one, and it is on disk on return.

    Raises:
        ConfigurationError: the file cannot be written.

    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # left by a crash between here and the rename
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(encode_secrets(secrets))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ConfigurationError(f"{path} cannot be written: {error}", remedy="check the folder's owner") from error


def draw_secrets(path: Path) -> DeviceSecrets:
    """Read the secrets of a device with the counter of a new boot, which is written back before this returns.

    Raises:
        ConfigurationError: missing, malformed, or cannot be written.

    """
    secrets = read_secrets(path)
    raised = dataclasses.replace(secrets, boot_counter=secrets.boot_counter + 1)
    write_secrets(path, raised)
    return raised


def boot_root(path: Path, *, profile_name: str, fault: FirmwareFault | None = None) -> EmulatedRoot:
    """Boot the device whose secrets are in a file: the counter there rises, durably, before this returns.

    Raises:
        ConfigurationError: secrets or profile are missing, malformed or do not fit each other.

    """
    profile = load_profile(profile_name)
    secrets = draw_secrets(path)
    return EmulatedRoot(
        secrets=secrets,
        profile=profile,
        firmware=secrets.firmware if fault is None else alter_firmware(profile, secrets.firmware, fault),
        boot_counter=secrets.boot_counter,
        boot_nonce=os.urandom(_BOOT_NONCE_OCTETS),
        random=os.urandom,
        clock=time.monotonic,
    )


def boot_faulty_root(path: Path, *, profile_name: str, fault: FirmwareFault | None = None) -> FaultyRoot:
    """Boot a device that can be told to misbehave; see `boot_root`."""
    return FaultyRoot(
        draw_secrets=lambda: draw_secrets(path),
        profile=load_profile(profile_name),
        random=os.urandom,
        clock=time.monotonic,
        firmware_fault=fault,
    )


def open_door(path: Path) -> socket.socket:
    """Listen at a door; what a process before us left there is taken away.

    Raises StateError when another process serves it.
    """
    remove_unserved(path)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        door.bind(str(path))
    finally:
        os.umask(before)
    door.listen(_BACKLOG)
    return door


def close_door(path: Path, inode: int) -> None:
    """Take the socket file away, unless a process after us has put its own there."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


class Doors:
    """The selector loop over both doors and their connections."""

    def __init__(self, root: RootOfTrust, *, spdm: socket.socket, binding: socket.socket, agent_uid: int) -> None:
        self._root = root
        self._agent_uid = agent_uid
        self._selector = selectors.DefaultSelector()
        self._connections: Counter[Queue] = Counter()
        self._running = True
        self._watch(spdm, lambda: self._accept(spdm, self._open_spdm))
        self._watch(binding, lambda: self._accept(binding, self._open_binding))

    def watch_faults(self, door: socket.socket, root: FaultyRoot) -> None:
        """Serve the fault door, to whoever its file mode lets in."""
        self._watch(door, lambda: self._accept(door, lambda _peer: lambda word: _set_preset(root, word)))

    def watch_parent(self, descriptor: int) -> None:
        """End the loop when the other end of this pipe closes."""
        self._selector.register(descriptor, selectors.EVENT_READ, self._stop)

    def run(self) -> None:
        """Serve until the parent is gone."""
        while self._running:
            for key, _ in self._selector.select():
                key.data()

    def _watch(self, peer: socket.socket, ready: Callable[[], None]) -> None:
        self._selector.register(peer, selectors.EVENT_READ, ready)

    def _stop(self) -> None:
        self._running = False

    def _accept(self, door: socket.socket, admit: Callable[[socket.socket], Answer | None]) -> None:
        try:
            peer, _ = door.accept()
        except OSError:
            return  # the peer went away between the wake-up and here
        peer.setblocking(False)
        queue = door, _read_uid(peer) == self._agent_uid
        answer = admit(peer) if self._connections[queue] < CONNECTIONS_LIMIT else None
        if answer is None:
            peer.close()
            return
        self._connections[queue] += 1
        self._watch(peer, lambda: self._serve(queue, peer, answer))

    def _open_spdm(self, _peer: socket.socket) -> Answer:
        return self._root.open_session().answer

    def _open_binding(self, peer: socket.socket) -> Answer | None:
        uid = _read_uid(peer)
        if uid != self._agent_uid:
            print(f"binding door: uid {uid} is not the agent's, refused", file=sys.stderr, flush=True)
            return None
        return self._bind

    def _bind(self, message: bytes) -> bytes:
        try:
            return encode_bind_answer(self._root.bind_keys(decode_bind_request(message)))
        except BindingError as error:
            return encode_bind_refusal(error.message)

    def _serve(self, queue: Queue, peer: socket.socket, answer: Answer) -> None:
        try:
            message = peer.recv(DOOR_LIMIT_OCTETS + 1)
            if 0 < len(message) <= DOOR_LIMIT_OCTETS:
                reply = answer(message)
                if reply:  # a device that is silent on purpose says nothing
                    peer.send(reply)
                return
        except OSError:
            pass  # gone, or does not take its answers: closed below
        self._selector.unregister(peer)
        peer.close()
        self._connections[queue] -= 1


def _set_preset(root: FaultyRoot, word: bytes) -> bytes:
    try:
        root.set_preset(Preset(word.decode(errors="replace")))
    except ValueError:
        return b"no such preset"
    except ZtdpuError as error:
        return error.message.encode()
    print(f"fault preset in force: {root.preset}", file=sys.stderr, flush=True)
    return FAULT_SET


def _read_uid(peer: socket.socket) -> int:
    """User behind a connection, as the kernel saw it when it was made."""
    _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; see the module."""
    options = _parse(arguments)
    doors = [options.spdm_socket, options.binding_socket, *([options.fault_socket] if options.fault_socket else [])]
    # A hang-up of the terminal reaches the whole group; the agent decides when its root of trust ends.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    boot = boot_faulty_root if options.fault_socket else boot_root
    try:
        root = boot(options.secrets, profile_name=options.profile, fault=options.fault)
        spdm, binding, *fault = [open_door(path) for path in doors]
    except (ZtdpuError, OSError) as error:
        print(f"root of trust: {error}", file=sys.stderr)
        return 2
    inodes = [path.stat().st_ino for path in doors]
    loop = Doors(root, spdm=spdm, binding=binding, agent_uid=options.agent_uid)
    if fault and isinstance(root, FaultyRoot):
        loop.watch_faults(fault[0], root)
    if options.parent_fd is not None:
        loop.watch_parent(options.parent_fd)
    if options.ready_fd is not None:
        os.write(options.ready_fd, b"\n")
        os.close(options.ready_fd)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            loop.run()
    finally:
        for path, inode in zip(doors, inodes, strict=True):
            close_door(path, inode)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ztdpu.agent.root_of_trust", description="Emulated root of trust.")
    parser.add_argument("--secrets", type=Path, required=True, help="JSON, 0600; its boot counter is raised")
    parser.add_argument("--profile", required=True, help="product profile, like bluefield-3")
    parser.add_argument("--spdm-socket", type=Path, required=True)
    parser.add_argument("--binding-socket", type=Path, required=True)
    parser.add_argument("--agent-uid", type=int, default=os.geteuid(), help="who may bind keys (own uid)")
    parser.add_argument("--parent-fd", type=int, help="end when the other end of this pipe closes")
    parser.add_argument("--ready-fd", type=int, help="a newline is written here once both doors are open")
    parser.add_argument("--fault", type=FirmwareFault, choices=list(FirmwareFault), help="boot a faulty firmware")
    parser.add_argument("--fault-socket", type=Path, help="labs only: a third door that makes the device misbehave")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
