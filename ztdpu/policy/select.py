"""Selectors to endpoints, and endpoints to prefixes. Pure; called by `compile` and `explain`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from ztdpu.model.endpoint import Endpoint
from ztdpu.packet.tables import Prefix
from ztdpu.policy.documents import AddressRange, LabelRequirement, Selector

EVERYWHERE: Final = (Prefix(address=bytes(4), length=0), Prefix(address=bytes(16), length=0))
"""All of both address families."""


def is_selected(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether `labels` meet every requirement; an empty selector selects everything (Kubernetes)."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _meets(requirement, labels) for requirement in selector.match_expressions
    )


def _meets(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case "In":
            return present and labels[requirement.key] in requirement.values
        case "NotIn":
            # As in Kubernetes: an endpoint without the label is not in the set either.
            return not present or labels[requirement.key] not in requirement.values


def host_prefixes(endpoints: Iterable[Endpoint]) -> tuple[Prefix, ...]:
    """One prefix per overlay address, sorted."""
    packed = {address.packed for endpoint in endpoints for address in endpoint.addresses}
    return tuple(Prefix(address=address, length=8 * len(address)) for address in sorted(packed, key=_family_first))


def block_prefix(block: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Prefix:
    """A CIDR block as a prefix."""
    return Prefix(address=block.network_address.packed, length=block.prefixlen)


def range_prefixes(block: AddressRange) -> tuple[tuple[Prefix, ...], tuple[Prefix, ...]]:
    """(included, excepted) of an ipBlock."""
    return (block_prefix(block.cidr),), tuple(block_prefix(hole) for hole in block.except_)


def covers(block: Prefix, other: Prefix) -> bool:
    """Whether every address of `other` lies in `block`."""
    if len(block.address) != len(other.address) or other.length < block.length:
        return False
    shift = 8 * len(block.address) - block.length
    return int.from_bytes(block.address) >> shift == int.from_bytes(other.address) >> shift


def _family_first(address: bytes) -> tuple[int, bytes]:
    return len(address), address
