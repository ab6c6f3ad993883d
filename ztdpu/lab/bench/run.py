"""The bench as a whole: which sections there are, what a run of each takes, one document at the end.

Called by `__main__` and the tests. A section that cannot run here says why in the document; one that breaks ends
the run, after its lab was taken down.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError, UsageError
from ztdpu.lab.bench import (
    appraisal,
    datagrams,
    enrolment,
    exchange,
    firewall,
    fleet,
    overlay,
    policy,
    sealing,
    wireguard,
)
from ztdpu.lab.bench.ground import BENCH_PREFIX, BENCH_STATE, Say, clear_away, ground
from ztdpu.lab.bench.machine import describe_machine, read_load

FORMAT: Final = 1
LAB_SECTIONS: Final = ("overlay", "datagrams")
"""Those that send packets: root, namespaces, iperf3."""
CORE_SECTIONS: Final = ("appraisal", "enrolment", "fleet", "exchange", "policy", "firewall", "sealing")
"""Those that need no rights; `enrolment` and `fleet` start a control of their own on loopback."""
SECTIONS: Final = (*LAB_SECTIONS, *CORE_SECTIONS)
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "profile": ("overlay",),
    "trust": ("appraisal", "enrolment", "fleet"),
}
"""The profile is taken during the overlay's rounds; trust is one appraisal, many enrolments, many streams."""
MTUS: Final = (9000, 1500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long things are measured."""

    rounds: int
    stream_s: float
    datagram_step_s: float
    turns_s: float
    core_s: float
    """For each section that runs in process."""
    policy_runs: int
    enrolments: int
    fleet: tuple[int, ...]
    """Agents' streams on one control, rising."""


FULL: Final = Effort(
    rounds=5,
    stream_s=3.0,
    datagram_step_s=0.3,
    turns_s=1.0,
    core_s=4.0,
    policy_runs=3,
    enrolments=500,
    fleet=(100, 300, 1000),
)
QUICK: Final = Effort(
    rounds=2, stream_s=1.0, datagram_step_s=0.15, turns_s=0.4, core_s=1.0, policy_runs=1, enrolments=60, fleet=(20, 60)
)


def choose_sections(words: Sequence[str]) -> tuple[str, ...]:
    """Return the sections that were asked for in the bench's order, all when none was. UsageError names them."""
    wanted = {section for word in words for section in ALIASES.get(word, (word,))}
    unknown = sorted(wanted.difference(SECTIONS))
    if unknown:
        raise UsageError(f"no section {unknown[0]!r}", remedy=f"sections: {', '.join((*SECTIONS, *ALIASES))}")
    return tuple(section for section in SECTIONS if not wanted or section in wanted)


class Bench:
    """One run."""

    def __init__(
        self, *, effort: Effort, say: Say, state: Path = BENCH_STATE, prefix: str = BENCH_PREFIX, insist: bool = False
    ) -> None:
        """`insist`: sections were named, so one that cannot run is an error and not a remark."""
        self._effort = effort
        self._say = say
        self._state = state.absolute()
        self._prefix = prefix
        self._insist = insist
        self.document: dict[str, Any] = {}
        """What was measured so far."""

    def run(self, sections: Sequence[str]) -> dict[str, Any]:
        """Run the sections; raises ZtdpuError when one breaks. Labs are down afterwards in any case."""
        start = time.monotonic()
        document = self.document = {
            "format": FORMAT,
            "machine": describe_machine(),
            "wireguard_go": wireguard.describe(),
            "rounds": self._effort.rounds,
            "sections": {},
            "skipped": {},
        }
        self._run_labs([section for section in sections if section in LAB_SECTIONS], document)
        for section in sections:
            if section in CORE_SECTIONS:
                self._say(section)
                document["sections"][section] = self._core(section)
        document["machine"]["load_after"] = read_load()
        document["seconds"] = round(time.monotonic() - start, 1)
        return document

    def _core(self, section: str) -> dict[str, Any]:
        seconds = self._effort.core_s
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "appraisal": lambda: appraisal.measure(seconds=seconds),
            "enrolment": lambda: enrolment.measure(devices=self._effort.enrolments),
            "fleet": lambda: fleet.measure(sizes=self._effort.fleet),
            "exchange": lambda: exchange.measure(seconds=seconds),
            "policy": lambda: policy.measure(runs=self._effort.policy_runs),
            "firewall": lambda: firewall.measure(seconds=seconds),
            "sealing": lambda: sealing.measure(seconds=seconds),
        }
        return measures[section]()

    def _run_labs(self, sections: Sequence[str], document: dict[str, Any]) -> None:
        if not sections:
            return
        if os.geteuid() != 0:
            why = "needs root: sudo make bench"
            if self._insist:
                raise MachineError(f"section {sections[0]} needs root", remedy="sudo make bench, or other sections")
            document["skipped"] = dict.fromkeys(sections, why)
            self._say(f"{', '.join(sections)} skipped: {why}")
            return
        clear_away(self._state)
        found = document["sections"]
        for mtu_octets in MTUS if "overlay" in sections else MTUS[:1]:
            with ground(state=self._state, prefix=self._prefix, mtu_octets=mtu_octets, say=self._say) as lab:
                if "overlay" in sections:
                    measured = overlay.measure(
                        lab, rounds=self._effort.rounds, seconds=self._effort.stream_s, say=self._say
                    )
                    kept = found.setdefault("overlay", {"rows": [], "profile": []})
                    for key, rows in measured.items():
                        kept[key] += rows
                if "datagrams" in sections and mtu_octets == MTUS[0]:
                    found["datagrams"] = datagrams.measure(
                        lab, rounds=self._effort.rounds, step_s=self._effort.datagram_step_s,
                        turns_s=self._effort.turns_s, say=self._say,
                    )  # fmt: skip


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write the result as JSON. MachineError when it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}", remedy="name another file: --out") from error
