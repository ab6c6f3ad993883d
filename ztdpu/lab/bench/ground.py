"""A lab of the bench's own, and the paths through it that are compared.

Called by `overlay` and `datagrams`. Every path starts and ends at a place of the same lab and crosses the same
veths and br0, so what differs is what stands between. Lab commands run as processes: they fork, and a bench that
is interrupted still takes its lab down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError, ZtdpuError
from ztdpu.lab import processes
from ztdpu.lab.bench import wireguard
from ztdpu.lab.crew import Crew
from ztdpu.lab.layout import DEFAULT_STATE
from ztdpu.lab.record import require_record

BENCH_STATE: Final = DEFAULT_STATE.with_name("bench")
BENCH_PREFIX: Final = "ztdpu-bench"
PROBE: Final = "ztdpu.lab.bench.probe"
PLAINTEXT: Final = "plaintext"
SEALED: Final = "ztdpu"
WIREGUARD: Final = "wireguard-go"
PROBE_PORT: Final = 5100
_DEVICES: Final = ("dpu-0", "dpu-1")
_ENDPOINTS: Final = ("blue-0", "blue-1")
_REACH_S: Final = 20.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way from a place to another."""

    name: str
    source: str
    """Target of the lab that sends."""
    destination: str
    address: str
    """IPv4 address of the destination on this way."""
    mtu_octets: int
    """Of the interface that the sender writes to."""
    pids: dict[str, int] = field(default_factory=dict)
    """What works for this path besides sender and receiver: role -> pid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A lab that is up, its crew, and the paths in the order in which they take turns."""

    crew: Crew
    paths: tuple[Way, ...]
    mtu_octets: int


@contextmanager
def ground(*, state: Path, prefix: str, mtu_octets: int, say: Say) -> Iterator[Ground]:
    """Bring a lab up, open every path, take it all down at the end whatever happens.

    Raises MachineError when the lab does not start or a path does not open.
    """
    say(f"lab up, MTU {mtu_octets}")
    try:
        _lab(state, "up", "--prefix", prefix, "--mtu", str(mtu_octets))
        with Crew(state) as crew, _wireguard(state, mtu_octets) as pids:
            paths = tuple(_paths(state, mtu_octets, pids))
            made = Ground(crew=crew, paths=paths, mtu_octets=mtu_octets)
            for path in paths:
                _open(made, path)
            yield made
    finally:
        with suppress(ZtdpuError):
            _lab(state, "down")


def _paths(state: Path, mtu_octets: int, wireguard_pids: dict[str, int]) -> Iterator[Way]:
    plan = require_record(state).plan
    far = plan.endpoint(_ENDPOINTS[1])
    yield Way(
        name=PLAINTEXT, source=_DEVICES[0], destination=_DEVICES[1],
        address=plan.device(_DEVICES[1]).underlay_address, mtu_octets=mtu_octets,
    )  # fmt: skip
    if wireguard_pids:
        yield Way(
            name=WIREGUARD, source=_ENDPOINTS[0], destination=_ENDPOINTS[1], address=wireguard.ADDRESSES[1],
            mtu_octets=mtu_octets - wireguard.OVERHEAD_OCTETS, pids=wireguard_pids,
        )  # fmt: skip
    yield Way(
        name=SEALED, source=_ENDPOINTS[0], destination=_ENDPOINTS[1], address=far.addresses[0],
        mtu_octets=far.mtu_octets, pids=_own_pids(state),
    )  # fmt: skip


def _own_pids(state: Path) -> dict[str, int]:
    document = json.loads(_lab(state, "status", "-o", "json"))
    sides = zip(("sender's", "receiver's"), document["devices"], strict=False)
    return {
        f"{side} {role}": device[f"{role}_pid"]
        for side, device in sides
        for role in ("worker", "agent", "root_of_trust")
    }


@contextmanager
def _wireguard(state: Path, mtu_octets: int) -> Iterator[dict[str, int]]:
    """Run a wireguard-go on each device, its interface in the tenant's namespace; nothing when it is not installed."""
    if not wireguard.is_installed():
        yield {}
        return
    plan = require_record(state).plan
    sides = [
        wireguard.Side(
            device_namespace=plan.namespace(device),
            endpoint_namespace=plan.namespace(endpoint),
            underlay_address=plan.device(device).underlay_address,
        )
        for device, endpoint in zip(_DEVICES, _ENDPOINTS, strict=True)
    ]
    with wireguard.pair(sides, mtu_octets=mtu_octets, marker=f"{processes.MARKER}={state}") as pids:
        yield dict(zip(("sender's wireguard-go", "receiver's wireguard-go"), pids, strict=True))


def _open(ground: Ground, path: Way) -> None:
    """Start the answerer of a path and wait until it is reached: handshakes are over then."""
    server = ground.crew.start_python(path.destination, PROBE, "serve", "--port", str(port_of(ground, path)))
    server.read_line()
    client = ground.crew.start_python(
        path.source, PROBE, "reach", "--host", path.address, "--port", str(port_of(ground, path)),
        "--seconds", str(_REACH_S),
    )  # fmt: skip
    client.finish(timeout_s=_REACH_S + 10)


def port_of(ground: Ground, path: Way) -> int:
    """Return the port of a path's answerer: paths may end in the same place."""
    return PROBE_PORT + [one.name for one in ground.paths].index(path.name)


def ask(ground: Ground, path: Way, command: str, *options: str, timeout_s: float) -> dict[str, Any]:
    """Run a probe over a path; return what it measured."""
    port = str(port_of(ground, path))
    hand = ground.crew.start_python(path.source, PROBE, command, "--host", path.address, "--port", port, *options)
    return hand.finish(timeout_s=timeout_s)


def clear_away(state: Path) -> None:
    """Take down what an earlier bench left there."""
    with suppress(ZtdpuError):
        _lab(state, "down")


def _lab(state: Path, verb: str, *options: str) -> str:
    command = [sys.executable, "-m", "ztdpu", "lab", verb, "--state", str(state), *options]
    start = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        words = ended.stderr[ended.stderr.find("error:") :] if "error:" in ended.stderr else ended.stderr
        took = time.monotonic() - start
        raise MachineError(f"lab {verb} after {took:.0f} s: {words.removeprefix('error:').strip()}")
    return ended.stdout
