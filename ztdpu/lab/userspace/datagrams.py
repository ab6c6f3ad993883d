"""A sender and a sink of UDP datagrams at an endpoint in memory: what `lab.traffic` uses where there are no sockets.

Datagrams are made here, octet by octet, and go in through the endpoint's tap; those that arrive are counted there.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ztdpu.errors import UsageError
from ztdpu.lab.capture import Wanted
from ztdpu.lab.layout import family
from ztdpu.lab.processes import MARKER
from ztdpu.lab.record import require_record
from ztdpu.lab.userspace.packets import UDP, udp_packet
from ztdpu.lab.userspace.tap import open_own_tap, own_place

_INTERFACE: Final = "ztdpu0"
_LOWEST_PORT, _PORTS = 20_000, 40_000


def find_ends(host: str) -> tuple[str, str]:
    """Return our own address and that of `host`, an address or the name of an endpoint; one IP version.

    UsageError when there is no such endpoint for us.
    """
    plan = require_record(Path(os.environ[MARKER])).plan
    own = plan.endpoint(own_place())
    try:
        targets: tuple[str, ...] = (str(ip_address(host)),)
    except ValueError:
        known = {one.name: one.addresses for one in plan.mates(own)}
        if host not in known:
            raise UsageError(f"no endpoint {host!r} for {own.name}", remedy=f"it sees: {', '.join(known)}") from None
        targets = known[host]
    for target in targets:
        for source in own.addresses:
            if family(source) == family(target):
                return source, target
    raise UsageError(f"{own.name} has no address of the IP version of {host}")


class DatagramSender:
    """Sends to one port, as a connected socket does."""

    def __init__(self, host: str, port: int) -> None:
        self._source, self._target = find_ends(host)
        self._port = port
        self._own_port = _LOWEST_PORT + os.getpid() % _PORTS
        self._made: tuple[bytes, bytes] = (b"", b"")
        self._tap = open_own_tap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._tap:
            self._tap.synchronize()

    def send(self, payload: bytes) -> None:
        """Send one datagram."""
        if self._made[0] != payload:  # the same one again, mostly
            self._made = payload, udp_packet(self._source, self._target, self._own_port, self._port, payload)
        self._tap.send_packet(self._made[1])


class DatagramSink:
    """Counts what comes to a port."""

    def __init__(self, port: int) -> None:
        self._tap = open_own_tap()
        self._tap.watch(_INTERFACE, Wanted(protocol=UDP, port=port, direction="in"))

    def finish(self) -> int:
        """Return how many came."""
        with self._tap:
            return self._tap.counts().matched
