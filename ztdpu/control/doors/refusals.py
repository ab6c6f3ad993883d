"""Refusals of callers that need no identity to be refused: audited at a bounded rate, counted without one.

Every leaf is a synchronous commit and stays for ever, so a stranger must not write as many as he likes: a token bucket
for each address and one for all. What goes beyond is counted, and told by one summarising leaf a minute. The bucket of
an address is also what slows guesses of join tokens down; another address is not held up by it.
Called by the interceptor and the attestation servicer, swept by `run`. Decides nothing about identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters

ADDRESS_BURST: Final = 32.0
ADDRESS_RATE_PER_S: Final = 1.0
TOTAL_BURST: Final = 256.0
TOTAL_RATE_PER_S: Final = 2.0
ADDRESSES_LIMIT: Final = 4096
SUMMARY_S: Final = 60.0


@dataclass(slots=True)
class TokenBucket:
    """`burst` at once, then `rate_per_s`."""

    burst: float
    rate_per_s: float
    tokens: float
    since_s: float

    def has_one(self, now_s: float) -> bool:
        """Whether there is a token; spends none."""
        self.tokens = min(self.burst, self.tokens + max(0.0, now_s - self.since_s) * self.rate_per_s)
        self.since_s = now_s
        return self.tokens >= 1

    def take(self, now_s: float) -> bool:
        """Spend one if there is one."""
        if not self.has_one(now_s):
            return False
        self.tokens -= 1
        return True


class Refusals:
    """One per control process."""

    def __init__(self, fleet: Fleet, meters: Meters, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._meters = meters
        self._now_s = now_s
        self._buckets: dict[str, TokenBucket] = {}
        self._total = TokenBucket(TOTAL_BURST, TOTAL_RATE_PER_S, TOTAL_BURST, now_s())
        self._untold = 0
        self._summarised_s = now_s() - SUMMARY_S

    def audit(self, event: AuditEvent, peer: str) -> None:
        """Write the leaf, or count it for the next summary. `peer` is the transport's name of the caller."""
        now_s = self._now_s()
        if self._bucket(peer, now_s).take(now_s) and self._total.take(now_s):
            self._fleet.audit(event)
            return
        self._untold += 1
        self._meters.refusals_summarised.inc()

    def may_guess(self, peer: str) -> bool:
        """Whether this address may still show a join token that could be wrong."""
        now_s = self._now_s()
        return self._bucket(peer, now_s).has_one(now_s)

    def sweep(self) -> None:
        """One leaf about everything that got none, once a minute. StateError when it cannot be written."""
        now_s = self._now_s()
        if not self._untold or now_s - self._summarised_s < SUMMARY_S:
            return
        self._fleet.audit(
            AuditEvent(
                actor="control",
                role="control",
                action="summarise-refusals",
                subject="",
                outcome=AuditOutcome.REFUSED,
                reason="rate",
                detail={"refusals": self._untold},
            )
        )
        self._untold, self._summarised_s = 0, now_s

    def _bucket(self, peer: str, now_s: float) -> TokenBucket:
        address = address_of(peer)
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= ADDRESSES_LIMIT:
                self._forget(now_s)
            bucket = self._buckets[address] = TokenBucket(ADDRESS_BURST, ADDRESS_RATE_PER_S, ADDRESS_BURST, now_s)
        return bucket

    def _forget(self, now_s: float) -> None:
        """Full buckets say nothing; without any the oldest goes, and the one for all still holds."""
        full = [name for name, one in self._buckets.items() if one.has_one(now_s) and one.tokens >= one.burst]
        for name in full or [next(iter(self._buckets))]:
            del self._buckets[name]


def address_of(peer: str) -> str:
    """The address in gRPC's `ipv4:ADDRESS:PORT` or `ipv6:[ADDRESS]:PORT`; else `peer` itself."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
