"""A sender and a sink of UDP datagrams at a steady rate, for the demo and the tests. Standard library only.

    python -m ztdpu.lab.traffic sink --port 5001 [--deaf]
    python -m ztdpu.lab.traffic send --host blue-1 --port 5001 --rate 2000 [--payload HEX] [--count N] [--wait]

The sender goes on until its count is reached, without one until its standard input closes. Both end with
one JSON object. An address that cannot be reached is no error: the packet is counted as refused.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

from ztdpu.lab.capture import TAP_VARIABLE

if TYPE_CHECKING:
    from ztdpu.lab.userspace.datagrams import DatagramSender

_TICK_S: Final = 0.004
_BURST: Final = 24
"""Packets at once: catching up must not overrun a virtual function's queue, which is short on purpose."""
_PAYLOAD_OCTETS: Final = 64
_WAY_S: Final = 0.05


def input_is_closed() -> bool:
    """Tell whether whoever started us closed our standard input."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 4096)


def _open_sender(host: str, port: int) -> socket.socket | DatagramSender:
    """Return something connected to a port."""
    if TAP_VARIABLE in os.environ:
        from ztdpu.lab.userspace.datagrams import DatagramSender

        return DatagramSender(host, port)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    handle = socket.socket(family, kind, protocol)
    try:
        handle.connect(address)
    except OSError:
        handle.close()
        raise
    return handle


def send(host: str, port: int, *, rate: int, payload: bytes, count: int, wait: bool = False) -> dict[str, float]:
    """Send at `rate` a second; behind schedule it catches up, so the mean holds on a busy machine.

    With `wait` one short datagram finds the way (addresses, keys); the rest follows at a line on standard input.
    """
    body = payload or bytes(_PAYLOAD_OCTETS)
    sent = refused = 0
    with _open_sender(host, port) as handle:
        if wait:
            handle.send(b".")
            time.sleep(_WAY_S)
            print(json.dumps({"waiting": True}), flush=True)
            os.read(0, 1)
            if isinstance(handle, socket.socket):
                handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # forget that nobody listened for the first one
        print(json.dumps({"sending": True}), flush=True)
        start = time.monotonic()
        while sent < count if count else not input_is_closed():
            due = int((time.monotonic() - start) * rate) + 1
            for _ in range(min(due - sent, (count or due) - sent, _BURST)):
                try:
                    handle.send(body)
                except OSError:
                    refused += 1
                sent += 1
            time.sleep(_TICK_S)
    return {"sent": sent, "refused": refused, "seconds": round(time.monotonic() - start, 3)}


def sink(port: int, *, deaf: bool) -> dict[str, int]:
    """Take datagrams on a port, both families, until standard input closes; a deaf one only holds the port."""
    received = 0
    if TAP_VARIABLE in os.environ:
        return _sink_at_tap(port)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as handle:
        handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        handle.bind(("::", port))
        print(json.dumps({"listening": True}), flush=True)
        while True:
            readable, _, _ = select.select([0] if deaf else [handle.fileno(), 0], [], [])
            if handle.fileno() in readable:
                handle.recv(65_536)
                received += 1
            elif not os.read(0, 4096):
                return {"received": received}


def _sink_at_tap(port: int) -> dict[str, int]:
    """The same where the endpoint is in memory: the tap counts, deaf or not."""
    from ztdpu.lab.userspace.datagrams import DatagramSink

    taker = DatagramSink(port)
    print(json.dumps({"listening": True}), flush=True)
    while os.read(0, 4096):
        pass
    return {"received": taker.finish()}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Send or take UDP datagrams.")
    commands = parser.add_subparsers(dest="command", required=True)
    sender = commands.add_parser("send")
    sender.add_argument("--host", required=True)
    sender.add_argument("--port", type=int, required=True)
    sender.add_argument("--rate", type=int, default=2000)
    sender.add_argument("--payload", default="", help="hexadecimal")
    sender.add_argument("--count", type=int, default=0)
    sender.add_argument("--wait", action="store_true", help="send when a line comes on standard input")
    taker = commands.add_parser("sink")
    taker.add_argument("--port", type=int, required=True)
    taker.add_argument("--deaf", action="store_true", help="hold the port, read nothing: captures count")
    given = parser.parse_args()
    if given.command == "sink":
        report: dict[str, float] = {**sink(given.port, deaf=given.deaf)}
    else:
        payload = bytes.fromhex(given.payload)
        report = send(given.host, given.port, rate=given.rate, payload=payload, count=given.count, wait=given.wait)
    json.dump(report, sys.stdout)
    print()


if __name__ == "__main__":
    main()
