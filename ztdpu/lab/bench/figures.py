"""Arithmetic of the bench: spreads over rounds, ratios, percentiles, costs per call. Pure but for `time_calls`.

Called by the sections. A ratio is the median of the ratios of each round, because neighbours in time share the
machine's mood; it is not the ratio of two medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

_BATCHES: Final = 5


def spread(values: Sequence[float], *, digits: int = 3) -> dict[str, Any]:
    """Return median, least and most of the rounds, and the rounds themselves. ValueError without any."""
    if not values:
        raise ValueError("no rounds were measured")
    return {
        "median": round(median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
        "rounds": [round(value, digits) for value in values],
    }


def ratio(values: Sequence[float], base: Sequence[float]) -> float | None:
    """Return the median over rounds of value / base of the same round; None when a base is zero or none is there."""
    if len(values) != len(base):
        raise ValueError("a ratio needs the same rounds on both sides")
    if not base or not all(base):
        return None
    return round(median(value / below for value, below in zip(values, base, strict=True)), 3)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile (`share` in 0 to 1) of values in rising order. ValueError without any."""
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[min(rank, len(ordered)) - 1]


def best_rate(steps: Sequence[tuple[float, float]], *, loss_limit: float) -> float:
    """Return the highest delivered rate among (offered, delivered) a second that lost no more than `loss_limit`."""
    kept = [delivered for offered, delivered in steps if offered > 0 and 1 - delivered / offered <= loss_limit]
    return max(kept, default=0.0)


def time_calls(
    call: Callable[[], object], *, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Call again and again for about `seconds`; return the cost of one call in microseconds as a spread of batches.

    `clock` `time.process_time` counts what this process used of its core, whatever else the machine does.
    """
    call()  # what only the first call costs (imports, caches) is not a cost of calls
    start = clock()
    call()
    once = max(clock() - start, 1e-7)
    count = max(1, int(seconds / _BATCHES / once))
    costs = []
    for _ in range(_BATCHES):
        start = clock()
        for _ in range(count):
            call()
        costs.append((clock() - start) / count * 1e6)
    return {**spread(costs), "calls": count * _BATCHES}


def per_second(cost_us: float) -> float:
    """Return how many calls of that cost one core makes in a second."""
    return round(1e6 / cost_us, 1) if cost_us > 0 else 0.0
