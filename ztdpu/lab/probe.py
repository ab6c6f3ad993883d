"""Send a few packets of each of several flows from one endpoint, marked so that captures know them again.

Started by `lab.connectivity`, as root of the endpoint:

    python -m ztdpu.lab.probe '[{"source": "10.1.0.10", "target": "10.1.0.11", "protocol": "udp", "port": 5005,
        "mark": "a1b2..", "attempts": 5}]'

A flow is TCP (connection attempts), UDP or ICMP (echo requests), IPv4 or IPv6.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ztdpu.lab.attacks.cross_tenant_tcp import make_attempts
from ztdpu.lab.attacks.tenant_packets import Frame, Order, make_datagrams, network_layer, send_frames

PAUSE_S = 0.002


def make_pings(order: Order) -> list[Frame]:
    """Return echo requests."""
    from scapy.layers.inet import ICMP
    from scapy.layers.inet6 import ICMPv6EchoRequest
    from scapy.packet import Raw

    if ":" in order.target:
        numbers = range(order.attempts)
        return [
            Frame(bytes(network_layer(order) / ICMPv6EchoRequest(id=order.port, seq=n, data=order.mark)))
            for n in numbers
        ]
    return [
        Frame(bytes(network_layer(order) / ICMP(type=8, id=order.port, seq=n) / Raw(order.mark)))
        for n in range(order.attempts)
    ]


MAKERS = {"tcp": make_attempts, "udp": make_datagrams, "icmp": make_pings}


def send_flows(flows: list[dict[str, Any]]) -> int:
    """Send them all; returns how many packets the interface took."""
    sent = 0
    for flow in flows:
        order = Order(
            source=flow["source"],
            target=flow["target"],
            port=flow["port"],
            attempts=flow["attempts"],
            mark=bytes.fromhex(flow["mark"]),
        )
        sent += send_frames(MAKERS[flow["protocol"]](order), pause_s=PAUSE_S)
    return sent


if __name__ == "__main__":
    print(json.dumps({"sent": send_flows(json.loads(sys.argv[1]))}))
