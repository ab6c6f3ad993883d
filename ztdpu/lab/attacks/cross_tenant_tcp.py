"""Attack: open TCP connections to another tenant's endpoint, with packets of our own making.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.cross_tenant_tcp --source 10.1.0.10 --target 10.2.0.10 --port 2049 --attempts 20

The twin is the same against an allowed target.
"""

from __future__ import annotations

from ztdpu.lab.attacks.tenant_packets import Frame, Order, network_layer, run

SEQUENCE_OCTETS = 4


def mark_of(port: int, mark: bytes) -> bytes:
    """Return what a SYN carries of a mark: destination port and sequence number stand side by side."""
    return port.to_bytes(2, "big") + mark[:SEQUENCE_OCTETS]


def make_attempts(order: Order) -> list[Frame]:
    """Return one connection attempt (SYN) per packet, each from a port of its own."""
    from scapy.layers.inet import TCP

    network, sequence = network_layer(order), int.from_bytes(order.mark[:SEQUENCE_OCTETS], "big")
    return [
        Frame(bytes(network / TCP(sport=order.first_port + number, dport=order.port, flags="S", seq=sequence)))
        for number in range(order.attempts)
    ]


if __name__ == "__main__":
    run("Open TCP connections to somebody else's endpoint.", make_attempts, make_attempts)
