"""Flows: the direction seen from an endpoint, and protocols."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Direction(StrEnum):
    """Seen from the tenant's endpoint, as in Kubernetes NetworkPolicy."""

    EGRESS = "egress"
    INGRESS = "ingress"


class Protocol(IntEnum):
    """IP protocol numbers that policy can name; `ANY` is how tables spell "all of these"."""

    ANY = 0
    ICMP = 1
    TCP = 6
    UDP = 17
    ICMPV6 = 58
