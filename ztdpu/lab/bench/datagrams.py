"""Section datagrams: packets of 64 octets, how many a second and how long there and back, over each path.

The same small sender and answerer (`probe`) for all. Rates climb in steps; a path's figure is the most it
delivered a second with at most one packet in a hundred lost. Round trips are one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ztdpu.lab.bench.figures import best_rate, percentile, ratio, spread
from ztdpu.lab.bench.ground import PLAINTEXT, WIREGUARD, Ground, Say, Way, ask
from ztdpu.lab.bench.probe import PAYLOAD_OCTETS

RATES: Final = (10_000, 20_000, 30_000, 45_000, 65_000, 90_000, 120_000, 160_000, 220_000)
LOSS_LIMIT: Final = 0.01
_SHARES: Final = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99}


def measure(ground: Ground, *, rounds: int, step_s: float, turns_s: float, say: Say) -> dict[str, Any]:
    """Run the rounds of one lab; return a row per path."""
    results: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ground.paths}
    for number in range(rounds):
        for way in ground.paths:
            results[way.name].append(_one(ground, way, step_s, turns_s))
        said = ", ".join(
            f"{name} {found[-1]['pps']:,.0f}/s {found[-1]['p50_us']:.0f} us" for name, found in results.items()
        )
        say(f"datagrams, round {number + 1} of {rounds}: {said}")
    return {
        "payload_octets": PAYLOAD_OCTETS,
        "loss_limit": LOSS_LIMIT,
        "mtu_octets": ground.mtu_octets,
        "rows": [row(way.name, results) for way in ground.paths],
    }


def _one(ground: Ground, way: Way, step_s: float, turns_s: float) -> dict[str, Any]:
    rates = ",".join(map(str, RATES))
    climbed = ask(
        ground, way, "rates", "--rates", rates, "--seconds", str(step_s), timeout_s=len(RATES) * (step_s + 1) + 20
    )
    turned = ask(ground, way, "turns", "--seconds", str(turns_s), timeout_s=turns_s + 20)
    return read_round(climbed["steps"], turned["times_us"], turned["lost"])


def read_round(steps: Sequence[Mapping[str, Any]], times_us: Sequence[float], lost: int) -> dict[str, Any]:
    """Return the figures of one round of one path."""
    pairs = [(step["offered_pps"], step["delivered_pps"]) for step in steps]
    return {
        "pps": best_rate(pairs, loss_limit=LOSS_LIMIT),
        "flood_offered_pps": steps[-1]["offered_pps"],
        "flood_delivered_pps": steps[-1]["delivered_pps"],
        "flood_loss": steps[-1]["loss"],
        **{name: percentile(times_us, share) if times_us else 0.0 for name, share in _SHARES.items()},
        "turns": len(times_us),
        "turns_lost": lost,
        "steps": list(steps),
    }


def row(path: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return one line of the table: spreads over the rounds, ratios round by round."""
    own = results[path]

    def beside(other: str, figure: str) -> float | None:
        there = [found[figure] for found in results.get(other, ())]
        return ratio([found[figure] for found in own], there) if there and other != path else None

    return {
        "path": path,
        "pps": spread([found["pps"] for found in own], digits=0),
        "pps_of_plaintext": beside(PLAINTEXT, "pps"),
        "pps_of_wireguard_go": beside(WIREGUARD, "pps"),
        "flood_offered_pps": spread([found["flood_offered_pps"] for found in own], digits=0),
        "flood_delivered_pps": spread([found["flood_delivered_pps"] for found in own], digits=0),
        "flood_loss": spread([found["flood_loss"] for found in own], digits=4),
        **{name: spread([found[name] for found in own], digits=1) for name in _SHARES},
        "p50_of_wireguard_go": beside(WIREGUARD, "p50_us"),
        "turns": sum(found["turns"] for found in own),
        "turns_lost": sum(found["turns_lost"] for found in own),
        "steps": [found["steps"] for found in own],
    }
