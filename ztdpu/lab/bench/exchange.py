"""Section exchange: what it costs two devices to agree on keys, step by step, and how many octets cross control.

Both ends in one process, sans-IO, a clock of our own that jumps past the limits of how often a device may ask.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ztdpu.errors import StateError
from ztdpu.keys.events import Activate, Allocate, Install
from ztdpu.keys.exchange import Exchange, Party, Peer
from ztdpu.keys.kem import kem_key_from_parts
from ztdpu.lab.bench.figures import per_second, spread
from ztdpu.lab.layout import TRUST_DOMAIN
from ztdpu.model.sa import SOFT_LIMIT_OCTETS, SOFT_LIMIT_S, PspVersion, SaGrant, SaWant

NETWORKS: Final = (1, 16)
_EPOCH: Final = 1
_APART_S: Final = 60.0
_STEPS: Final = ("kem key", "request", "take request", "offer", "take offer", "installed", "take installed")


def measure(*, seconds: float) -> dict[str, Any]:
    """Run exchanges that carry one network and many; `seconds` is for the whole section."""
    return {"rows": [_row(count, seconds / len(NETWORKS)) for count in NETWORKS]}


def _row(networks: int, seconds: float) -> dict[str, Any]:
    pair = Pair(networks)
    pair.run()
    costs: dict[str, list[float]] = defaultdict(list)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not costs:
        for step, cost in pair.run().items():
            costs[step].append(cost)
    whole = [sum(step) for step in zip(*costs.values(), strict=True)]
    return {
        "networks": networks,
        "exchanges": len(whole),
        "whole_us": {**spread(whole, digits=1), "rounds": []},
        "per_second": per_second(spread(whole)["median"]),
        "steps_us": {step: round(spread(costs[step])["median"], 1) for step in _STEPS},
        "request_octets": pair.octets["request"],
        "offer_octets": pair.octets["offer"],
        "installed_octets": pair.octets["installed"],
    }


class Pair:
    """Device `a` wants to send to `b` in some networks."""

    def __init__(self, networks: int) -> None:
        self.octets: dict[str, int] = {}
        self._now_s = 1_000.0
        self._next_spi = 1
        ids = [number.to_bytes(16, "big") for number in range(1, networks + 1)]
        self._wants = [SaWant(network_id=one, network_generation=1, key_epoch=_EPOCH) for one in ids]
        keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("dpu-0", "dpu-1")}
        parties = {name: _party(name) for name in keys}
        self._a, self._b = (
            Exchange(trust_domain=TRUST_DOMAIN, me=parties[name], offer_key=keys[name]) for name in keys
        )
        for exchange, other in ((self._a, "dpu-1"), (self._b, "dpu-0")):
            exchange.set_generation(1)
            exchange.set_peer(Peer(other, parties[other], keys[other].public_key(), frozenset(ids)))
            for one in ids:
                exchange.set_epoch_key(one, 1, _EPOCH, hashlib.sha256(one).digest())

    def run(self) -> dict[str, float]:
        """Do one whole exchange; return what each step took, in microseconds."""
        self._now_s += _APART_S
        now_s, clock = self._now_s, _Laps()
        kem = kem_key_from_parts(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())
        clock.lap("kem key")
        request = self._a.request("dpu-1", self._wants, now_s=now_s, request_id=os.urandom(16), kem_private_key=kem)
        clock.lap("request")
        asked = self._b.receive("dpu-0", request, now_s=now_s)
        clock.lap("take request")
        if not isinstance(asked, Allocate):
            raise StateError("the bench's own request is not taken")
        offer = self._b.offer(asked.request_hash, [self._grant(want) for want in asked.wants], now_s=now_s)
        clock.lap("offer")
        offered = self._a.receive("dpu-1", offer, now_s=now_s)
        clock.lap("take offer")
        if not isinstance(offered, Install):
            raise StateError("the bench's own offer is not taken")
        installed = self._a.installed(offered.offer_hash, [grant.spi for grant in offered.grants], now_s=now_s)
        clock.lap("installed")
        confirmed = self._b.receive("dpu-0", installed, now_s=now_s)
        clock.lap("take installed")
        if not isinstance(confirmed, Activate):
            raise StateError("the bench's own confirmation is not taken")
        self.octets = {"request": len(request), "offer": len(offer), "installed": len(installed)}
        return clock.laps_us

    def _grant(self, want: SaWant) -> SaGrant:
        self._next_spi += 1
        return SaGrant(
            network_id=want.network_id, use=want.use, lane=want.lane, psp_version=PspVersion.AES_GCM_256,
            spi=self._next_spi, key=os.urandom(32), ttl_s=SOFT_LIMIT_S, soft_limit_octets=SOFT_LIMIT_OCTETS,
        )  # fmt: skip


class _Laps:
    """Time between two calls."""

    def __init__(self) -> None:
        self.laps_us: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_us[name] = (now - self._last) * 1e6
        self._last = now


def _party(name: str) -> Party:
    digest = hashlib.sha256(name.encode()).digest()
    return Party(b"\x01" + digest, hashlib.sha256(digest).digest(), digest[:16])
