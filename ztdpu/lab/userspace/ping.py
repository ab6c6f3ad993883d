"""`ping` at an endpoint in memory: echo requests of our own making, through the device like any other packet.

ztdpu lab exec blue-0 -- ping -c3 blue-1
"""

from __future__ import annotations

import argparse
import sys
import time
from ipaddress import ip_address
from typing import Final

from ztdpu.errors import ZtdpuError
from ztdpu.lab.capture import Wanted
from ztdpu.lab.userspace.datagrams import find_ends
from ztdpu.lab.userspace.packets import echo_request
from ztdpu.lab.userspace.tap import Tap, open_own_tap, own_place

_INTERFACE: Final = "ztdpu0"
_PAYLOAD_OCTETS: Final = 56
_LOOK_S: Final = 0.002


def send_one(tap: Tap, ends: tuple[str, str], number: int, *, patience_s: float) -> float | None:
    """Send one request and return the seconds until its answer came, None when none did."""
    source, target = (ip_address(end).packed for end in ends)
    mark = number.to_bytes(2, "big") + time.time_ns().to_bytes(8, "big")
    tap.watch(_INTERFACE, Wanted(direction="in", marks=(("echo", mark),)))
    start = time.monotonic()
    tap.send_packet(echo_request(source, target, number, mark.ljust(_PAYLOAD_OCTETS, b".")))
    while not tap.counts().marks["echo"][0]:
        if time.monotonic() - start > patience_s:
            return None
        time.sleep(_LOOK_S)
    return time.monotonic() - start


def main() -> None:
    """Run from the command line; exit status 1 when no answer came."""
    parser = argparse.ArgumentParser(prog="ping", description="Send echo requests from an endpoint in memory.")
    parser.add_argument("host", help="endpoint or address")
    parser.add_argument("-c", dest="count", type=int, default=3, help="how many")
    parser.add_argument("-W", dest="patience_s", type=float, default=1.0, help="seconds to wait for an answer")
    parser.add_argument("-i", dest="interval_s", type=float, default=0.5, help="seconds between two")
    given = parser.parse_args()
    try:
        ends = find_ends(given.host)
        with open_own_tap() as tap:
            print(f"PING {given.host} ({ends[1]}) from {own_place()}, an endpoint in memory")
            answers = 0
            for number in range(1, given.count + 1):
                seconds = send_one(tap, ends, number, patience_s=given.patience_s)
                if seconds is not None:
                    answers += 1
                    print(
                        f"{_PAYLOAD_OCTETS} bytes from {ends[1]}: seq={number} time={seconds * 1000:.1f} ms", flush=True
                    )
                if number < given.count:
                    time.sleep(given.interval_s)
    except ZtdpuError as error:
        sys.exit(f"error: {error}")
    print(f"{given.count} sent, {answers} answered")
    sys.exit(0 if answers else 1)


if __name__ == "__main__":
    main()
