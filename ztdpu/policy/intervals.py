"""Sets of ports as sorted, disjoint, inclusive ranges that do not touch. Pure; for `policy.reach` and what uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = tuple[Range, ...]

ALL_PORTS: Final[Ranges] = ((0, 65535),)


def merge(ranges: Iterable[Range]) -> Ranges:
    """Return the union of ranges in any order."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    """Return what is in both."""
    if left in (right, ALL_PORTS):
        return right
    if right == ALL_PORTS:
        return left
    found: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            found.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def subtract(left: Ranges, right: Ranges) -> Ranges:
    """Return what is in `left` and not in `right`."""
    found: list[Range] = []
    j = 0
    for first, last in left:
        start = first
        while j < len(right) and right[j][1] < start:
            j += 1
        k = j
        while k < len(right) and right[k][0] <= last:
            if right[k][0] > start:
                found.append((start, right[k][0] - 1))
            start = right[k][1] + 1
            k += 1
        if start <= last:
            found.append((start, last))
    return tuple(found)


def size(ranges: Ranges) -> int:
    """Return how many ports there are."""
    return sum(last - first + 1 for first, last in ranges)
