"""What the demo found and whether it is good enough. Pure: takes counts, keeps the result, names each fault.

Called by `lab.demo`. The figures come from captures and control; here they are only judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ztdpu.lab.fabric.choice import Fabric, Isolation
from ztdpu.model.device import DeviceStatus

LEAST_ACCURACY: Final = 0.9
MOST_DIFFERENCE: Final = 1e-5
LEAST_PPS: Final = 1_000
LONGEST_REVOCATION_MS: Final = 1_000.0
_SECOND_NS: Final = 1_000_000_000
_TRAINING_KEYS: Final = (
    "ranks", "steps", "loss_first", "loss_last", "accuracy", "max_abs_diff_to_single_process",
)  # fmt: skip
_ATTACK_KEYS: Final = ("name", "expected", "reason", "attempts", "seen", "delivered", "twin_delivered")


@dataclass(slots=True)
class Scorecard:
    """Result so far; `faults` say in words why it is not good enough. Each `note_` returns a line for people."""

    fabric: Fabric = Fabric.NETNS
    isolation: Isolation = Isolation.FULL
    devices: list[dict[str, Any]] = field(default_factory=list)
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    attacks: list[dict[str, Any]] = field(default_factory=list)
    wire: dict[str, int] = field(default_factory=dict)
    revocation: dict[str, Any] = field(default_factory=dict)
    no_training: str = ""
    """Why nobody trained; empty when somebody did."""
    faults: list[str] = field(default_factory=list)

    def document(self, *, seconds: float) -> dict[str, Any]:
        """Return the result as `ztdpu demo -o json` prints it."""
        return {
            "ok": not self.faults,
            "seconds": round(seconds, 1),
            "fabric": str(self.fabric),
            "isolation": str(self.isolation),
            "devices": self.devices,
            "tenants": self.tenants,
            "attacks": self.attacks,
            "wire": self.wire,
            "revocation": self.revocation,
            **({"no_training": self.no_training} if self.no_training else {}),
        }

    def note_devices(self, standing: Sequence[DeviceStatus]) -> str:
        """Every device is affirming and holds a lease."""
        for status in standing:
            device = {"name": status.name, "tier": status.tier, "lease_s": round(status.lease_s, 1)}
            self.devices.append(device)
            self._require(status.tier == "affirming", f"{status.name} is {status.tier}, not affirming")
            self._require(status.lease_s > 0, f"{status.name} has no lease")
        self._require(bool(standing), "there is no device")
        return ", ".join(f"{status.name} {status.tier}" for status in standing)

    def note_training(self, tenant: str, reports: Sequence[Mapping[str, Any]]) -> str:
        """Learned as well as one process would, from one report per rank, rank 0 first."""
        result = {key: reports[0][key] for key in _TRAINING_KEYS}
        self.tenants[tenant] = result
        accuracy, difference = result["accuracy"], result["max_abs_diff_to_single_process"]
        self._require(result["ranks"] == len(reports), f"{tenant}: {len(reports)} of {result['ranks']} ranks reported")
        self._require(accuracy >= LEAST_ACCURACY, f"{tenant}: accuracy {accuracy} is below {LEAST_ACCURACY}")
        self._require(difference <= MOST_DIFFERENCE, f"{tenant}: {difference} away from what one process computes")
        return f"{tenant} {accuracy:.1%} right"

    def note_no_training(self, why: str) -> str:
        """There is no training here: said, and no fault."""
        self.no_training = why
        return why

    def note_attack(
        self, *, name: str, expected: str, reason: str, attempts: int, seen: int, delivered: int, twin_delivered: int
    ) -> str:
        """Every attempt was seen where it entered, none arrived, and the same tool does arrive where it may."""
        values = (name, expected, reason, attempts, seen, delivered, twin_delivered)
        self.attacks.append(dict(zip(_ATTACK_KEYS, values, strict=True)))
        self._require(attempts > 0, f"{name}: nothing was tried")
        self._require(seen == attempts, f"{name}: {seen} of {attempts} attempts were seen where they enter")
        self._require(delivered == 0, f"{name}: {delivered} of {attempts} got through")
        self._require(twin_delivered == attempts, f"{name}: {twin_delivered} of {attempts} allowed ones got through")
        self._require(reason == expected, f"{name}: the reason is {reason or 'not said'}, not {expected}")
        return f"{attempts} tried, {delivered} through: {reason or 'no reason'}"

    def note_revocation(self, device: str, stamps_unix_ns: Sequence[Sequence[int]], acknowledged_unix_ns: int) -> str:
        """How long packets from and to a revoked device were still accepted; one list of times per receiver."""
        before = [
            sum(acknowledged_unix_ns - _SECOND_NS <= t <= acknowledged_unix_ns for t in one) for one in stamps_unix_ns
        ]
        after = [stamp for one in stamps_unix_ns for stamp in one if stamp > acknowledged_unix_ns]
        last_ms = round((max(after) - acknowledged_unix_ns) / 1e6, 1) if after else 0.0
        pps = min(before, default=0)
        self.revocation = {
            "device": device,
            "pps_before": pps,
            "ack_to_last_packet_ms": last_ms,
            "packets_after_ack": len(after),
        }
        self._require(pps >= LEAST_PPS, f"only {pps} packets a second flowed before the revocation")
        self._require(last_ms <= LONGEST_REVOCATION_MS, f"packets were accepted for {last_ms} ms after the revocation")
        return f"last packet {last_ms:.1f} ms later" if after else "not one packet later"

    def note_bystander(self, tenant: str, steps: int, reports: Sequence[Mapping[str, Any]]) -> str:
        """Work on devices that stay went on after the revocation, and a training learned as well.

        Without reports the steps are datagrams of a stream. Call it after `note_revocation`.
        """
        if not reports:
            self.revocation[f"{tenant}_packets_during_revocation"] = steps
            self._require(steps > 0, f"{tenant} did not go on while a device was revoked")
            return f"{tenant} goes on, {steps} packets since"
        accuracy, difference = reports[0]["accuracy"], reports[0]["max_abs_diff_to_single_process"]
        self.revocation |= {f"{tenant}_steps_during_revocation": steps, f"{tenant}_accuracy": accuracy}
        self._require(steps > 0, f"{tenant} did not train on while a device was revoked")
        self._require(accuracy >= LEAST_ACCURACY, f"{tenant}: accuracy {accuracy} is below {LEAST_ACCURACY}")
        self._require(difference <= MOST_DIFFERENCE, f"{tenant}: {difference} away from what one process computes")
        return f"{tenant} trains on, {steps} steps since"

    def note_wire(self, wire: Mapping[str, Any], fence: Mapping[str, Any]) -> str:
        """What br0 showed, and that the same search finds the canary where it is in clear."""
        self.wire = {
            "psp_packets": wire["psp_packets"],
            "clear_packets": wire["clear_packets"],
            "canary_hits": wire["canary_hits"],
            "canary_hits_without_encryption": fence["canary_hits"],
        }
        self._require(wire["psp_packets"] > 0, "no PSP packet was seen on br0")
        self._require(wire["clear_packets"] == 0, f"in clear on br0: {wire['clear_samples']}")
        self._require(wire["canary_hits"] == 0, f"the canary was readable on br0 {wire['canary_hits']} times")
        self._require(fence["canary_hits"] > 0, "the canary was not found even where it is in clear")
        self._require(wire["lost"] == 0, f"the capture on br0 missed {wire['lost']} packets")
        return f"{wire['psp_packets']} sealed packets, {wire['clear_packets']} in clear"

    def note_fault(self, fault: str) -> None:
        """Something broke: the run is not ok."""
        self.faults.append(fault)

    def _require(self, condition: bool, fault: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not condition:
            self.faults.append(fault)
