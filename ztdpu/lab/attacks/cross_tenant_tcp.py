"""Attack: open TCP connections to another tenant's endpoint, with packets of our own making.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.cross_tenant_tcp --source 10.1.0.10 --target 10.2.0.10 --port 2049 --attempts 20

The same program against an allowed target is the positive twin. Sends on the virtual function itself, past
the tenant's own kernel and whatever it would refuse.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

INTERFACE = "ztdpu0"
ETHERTYPE_IPV4 = 0x0800
FIRST_PORT = 40_000


def make_attempts(source: str, target: str, port: int, attempts: int) -> list[bytes]:
    """Return one connection attempt (SYN) per packet, each from a port of its own."""
    from scapy.layers.inet import IP, TCP

    return [
        bytes(
            IP(src=source, dst=target, id=number + 1) / TCP(sport=FIRST_PORT + number, dport=port, flags="S", seq=7919)
        )
        for number in range(attempts)
    ]


def send_packets(packets: list[bytes], *, pause_s: float) -> int:
    """Put packets on the virtual function; returns how many the interface took."""
    taken = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as handle:
        for packet in packets:
            taken += handle.sendto(packet, (INTERFACE, ETHERTYPE_IPV4)) == len(packet)
            time.sleep(pause_s)
    return taken


def main() -> None:
    """Run the attack."""
    parser = argparse.ArgumentParser(description="Open TCP connections to somebody else's endpoint.")
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two packets")
    given = parser.parse_args()
    packets = make_attempts(given.source, given.target, given.port, given.attempts)
    sent = send_packets(packets, pause_s=given.pause)
    json.dump({"attempts": given.attempts, "sent": sent}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
