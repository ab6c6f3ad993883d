"""Two instances of wireguard-go in a lab's place of two devices, for comparison.

The shape is that of ztdpu: a TUN device in the tenant's namespace, an encrypting process and its UDP socket in
the device's namespace, the same veths below. Configured over its own socket (the cross-platform interface of
WireGuard), so `wg` is not needed. Called by `ground`. Keys are made here, live for one run and protect nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ztdpu.errors import MachineError
from ztdpu.lab.namespaces.links import run_batches

PROGRAM: Final = "wireguard-go"
HOW_TO_INSTALL: Final = "apt-get install wireguard-go wireguard-tools"
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")
OVERHEAD_OCTETS: Final = 60
"""Outer IPv4 and UDP 28, message header 16, tag 16."""
_SOCKETS: Final = Path("/var/run/wireguard")
_PORT: Final = 51_820
_LAST_WITHOUT_OFFLOAD: Final = 2023_02_23
"""Date in the last version before vectorised input and output."""
_START_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Where one instance stands."""

    device_namespace: str
    endpoint_namespace: str
    underlay_address: str
    """IPv4."""


def is_installed() -> bool:
    """Tell whether there is a wireguard-go to compare with."""
    return shutil.which(PROGRAM) is not None


def describe() -> str:
    """Return its version, or how to get it."""
    if not is_installed():
        return f"not installed: {HOW_TO_INSTALL}"
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return said.strip() + remark(said) if said.strip() else PROGRAM


def remark(version: str) -> str:
    """Say of an old version that it is one: a reader should not take it for what WireGuard can do today."""
    found = re.search(r"0\.0\.(\d{8})", version)
    is_old = found is not None and int(found[1]) <= _LAST_WITHOUT_OFFLOAD
    return " (without segmentation offload; versions since 2023 have it and are several times faster)" if is_old else ""


@contextmanager
def pair(sides: Sequence[Side], *, mtu_octets: int, marker: str) -> Iterator[list[int]]:
    """Run both instances, connected; yields their pids, ends them afterwards. MachineError when one does not start.

    `marker` goes into their environment: `lab down` finds them by it if we are killed.
    """
    running: list[subprocess.Popen[bytes]] = []
    keys = [X25519PrivateKey.generate() for _ in sides]
    try:
        for number, side in enumerate(sides):
            running.append(_start(side, _name(number), marker))
        for number, side in enumerate(sides):
            other = 1 - number
            text = uapi_text(
                keys[number], keys[other], peer_endpoint=f"{sides[other].underlay_address}:{_PORT}",
                peer_address=ADDRESSES[other],
            )  # fmt: skip
            _configure(_name(number), text, running[number])
            _plug(side, _name(number), ADDRESSES[number], mtu_octets - OVERHEAD_OCTETS)
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def uapi_text(own: X25519PrivateKey, peer: X25519PrivateKey, *, peer_endpoint: str, peer_address: str) -> str:
    """Return the `set` operation for an instance with one peer."""
    return (
        "set=1\n"
        f"private_key={own.private_bytes_raw().hex()}\n"
        f"listen_port={_PORT}\n"
        f"public_key={peer.public_key().public_bytes_raw().hex()}\n"
        f"endpoint={peer_endpoint}\n"
        "replace_allowed_ips=true\n"
        f"allowed_ip={peer_address}/32\n\n"
    )


def _name(number: int) -> str:
    """Name of an interface; the two need different ones, they share a directory of sockets."""
    return f"ztdpu-wg{number}"


def _start(side: Side, name: str, marker: str) -> subprocess.Popen[bytes]:
    variable, _, value = marker.partition("=")
    environment = os.environ | {variable: value, "LOG_LEVEL": "error"}
    command = ["ip", "netns", "exec", side.device_namespace, PROGRAM, "-f", name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _configure(name: str, text: str, process: subprocess.Popen[bytes]) -> None:
    path = _SOCKETS / f"{name}.sock"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as handle:
                handle.connect(str(path))
                handle.sendall(text.encode())
                answer = handle.recv(4096).decode()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise MachineError(f"{PROGRAM} does not start", remedy=f"try `{PROGRAM} -f {name}` by hand") from None
            time.sleep(0.02)
            continue
        if "errno=0" not in answer:
            raise MachineError(f"{PROGRAM} refuses its configuration: {answer.strip()}")
        return


def _plug(side: Side, name: str, address: str, mtu_octets: int) -> None:
    """Move the interface to the tenant; wireguard-go itself notices within a second that it is up there."""
    run_batches({side.device_namespace: [f"link set {name} netns {side.endpoint_namespace}"]})
    run_batches(
        {side.endpoint_namespace: [
            f"link set {name} mtu {mtu_octets}", f"addr add {address}/24 dev {name}", f"link set {name} up",
        ]}
    )  # fmt: skip
