"""All attacks of one lab, each with its positive twin, counted by captures where it enters and where it would arrive.

    cast: who attacks whom -> captures that know every attack's mark -> per attack: run it, run the twin, read
    the reason from the device's own counters (or from control's findings and audit log)

Used by the demo and `ztdpu check connectivity`. Judges nothing: a `Trial` is figures, `lab.scorecard` judges.
Changes nothing that stays in the lab, apart from attestations in the name of a spare device.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from ztdpu.errors import UsageError
from ztdpu.lab.attacks.cross_tenant_tcp import mark_of
from ztdpu.lab.crew import Crew, Hand
from ztdpu.lab.layout import UNDERLAY_OVERHEAD_OCTETS, DevicePlan, EndpointPlan, LabPlan, family, port_name
from ztdpu.lab.manufacture import AGENT_FILE
from ztdpu.lab.sidecar_trial import try_sidecar
from ztdpu.model.verdict import Reason
from ztdpu.rpc.client import ControlClient

ATTEMPTS: Final = 20
IDENTITY_ATTEMPTS: Final = 3
FORBIDDEN_PORT: Final = 2049
ALLOWED_PORT: Final = 5005
_LENDER_PORT: Final = 7999
_ENROLMENT_PORT: Final = 7401
_MARK_OCTETS: Final = 12
_HELD_PAYLOAD_OCTETS: Final = 613
"""A length that training does not use, so that the wire can tell the packets apart without reading them."""
_COUNTERS_S: Final = 5.0
"""Agents report once a second."""
_ARRIVAL_S: Final = 2.0
_DRAIN_S: Final = 0.1
"""How long what a tenant has sent may take to the fabric."""
NEED_A_SPARE: Final = ("altered-firmware", "relayed-attestation")
_PASSING: Final = frozenset({Reason.RULE_ALLOWED, Reason.FLOW_ESTABLISHED, Reason.FLOW_RELATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who plays what."""

    attacker: EndpointPlan
    mate: EndpointPlan
    """Of the attacker's tenant, on another device: what is allowed."""
    victim: EndpointPlan
    """Of another tenant, with an address of its own."""
    namesakes: tuple[EndpointPlan, ...]
    """Other tenants' endpoints with the mate's address: what is allowed must not end there."""
    spare: str
    """A device without endpoints and agent; empty when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attack in figures."""

    name: str
    expected: str
    """Words of `Reason`, codes of findings, or the code of a refusal."""
    reason: str
    """What the device or control says; empty: nothing that accounts for every attempt."""
    attempts: int
    seen: int
    delivered: int
    twin_delivered: int


def choose_cast(plan: LabPlan, *, spare: str = "") -> Cast:
    """Pick the roles. UsageError when the lab has not two tenants, one of them on two devices."""
    for attacker in plan.endpoints:
        mates = [one for one in plan.endpoints if one.tenant == attacker.tenant and one.device != attacker.device]
        others = [one for one in plan.endpoints if one.tenant != attacker.tenant]
        own = {address for one in plan.endpoints if one.tenant == attacker.tenant for address in one.addresses}
        # Not one that a Peering lets somebody of the attacker's tenant reach: some of that may pass.
        met = {name for one in plan.peerings if attacker.tenant in one.tenants for name in one.members}
        strangers = [one for one in others if one.name not in met and not own & set(one.addresses)]
        victims = [one for one in strangers if _is_alike(one, attacker)]
        mates = [one for one in mates if _is_alike(one, attacker)]
        if mates and victims:
            mate = mates[0]
            namesakes = tuple(one for one in others if set(one.addresses) & set(mate.addresses))
            return Cast(attacker=attacker, mate=mate, victim=victims[0], namesakes=namesakes, spare=spare)
    raise UsageError(
        "this lab has no two tenants with different addresses, one of them on two devices",
        remedy="ztdpu lab up with the example policy",
    )


def _is_alike(one: EndpointPlan, other: EndpointPlan) -> bool:
    """Whether the first addresses, which attacks use, are of one IP version."""
    return family(one.addresses[0]) == family(other.addresses[0])


class Campaign:
    """The attacks on one running lab. `start` first, then each of `attacks` once, in order."""

    def __init__(self, crew: Crew, control: ControlClient, plan: LabPlan, cast: Cast, *, wire: Hand) -> None:
        """`wire` is a capture that runs on br0."""
        self._crew = crew
        self._control = control
        self._plan = plan
        self._cast = cast
        self._wire = wire
        self._captures: dict[str, Hand] = {}
        self._marks = {name: secrets.token_bytes(_MARK_OCTETS) for name in _marks()}

    def start(self) -> None:
        """Start counting at the attacker, at its mate, and wherever nothing may arrive."""
        options = [option for name in self._marks for option in ("--mark", f"{name}={self._octets(name).hex()}")]
        cast = self._cast
        places = [cast.attacker.name, cast.mate.name, cast.victim.name, *(one.name for one in cast.namesakes)]
        hands = self._crew.start_captures([(place, "ztdpu0", options) for place in places])
        self._captures = dict(zip(places, hands, strict=True))

    def attacks(self) -> Iterator[tuple[str, Callable[[], Trial]]]:
        """Name each attack and how to run it; those on attestation only where the lab has a spare device."""
        tenant, wire = self._attack_from_tenant, self._attack_on_wire
        victim, mate = self._cast.victim, self._cast.mate
        forged = ("--forged-source", victim.addresses[0])
        yield "cross-tenant-tcp", lambda: tenant("cross-tenant-tcp", victim, FORBIDDEN_PORT, Reason.NO_RULE)
        yield "cross-tenant-udp", lambda: tenant("cross-tenant-udp", victim, FORBIDDEN_PORT, Reason.NO_RULE)
        yield "spoofed-source", lambda: tenant("spoofed-source", mate, ALLOWED_PORT, Reason.SPOOFED_SOURCE, *forged)
        yield "fragment", lambda: tenant("fragment", mate, ALLOWED_PORT, Reason.FRAGMENT)
        yield (
            "bad-offload-header",
            lambda: tenant("bad-offload-header", mate, ALLOWED_PORT, Reason.BAD_OFFLOAD_HEADER),
        )
        yield "flipped-packet", lambda: wire("flipped-packet", Reason.BAD_TAG, twin_first=False)
        yield "replayed-packet", lambda: wire("replayed-packet", Reason.REPLAY_DUPLICATE, twin_first=True)
        yield "sidecar-of-another-endpoint", self._attack_sidecar
        if self._cast.spare:
            yield "altered-firmware", self._attack_altered_firmware
            yield "relayed-attestation", self._attack_relayed_attestation

    # --- from a tenant ---

    def _attack_from_tenant(self, name: str, target: EndpointPlan, port: int, expected: Reason, *more: str) -> Trial:
        attacker, twin = self._cast.attacker, f"{name}-twin"
        device = attacker.device
        before = self._drops(device)
        said = self._crew.start_python(
            attacker.name, _module_of(name),
            "--source", attacker.addresses[0], "--target", target.addresses[0], "--port", str(port),
            "--attempts", str(ATTEMPTS), "--mark", self._marks[name].hex(),
            "--twin-target", self._cast.mate.addresses[0], "--twin-mark", self._marks[twin].hex(), *more,
        ).finish()  # fmt: skip
        attempts = int(said["attempts"])
        reason = self._reason(device, before, attempts, expected)
        twins = self._wait_arrived(twin, attempts)
        return Trial(
            name=name,
            expected=expected,
            reason=reason,
            attempts=attempts,
            seen=self._count(attacker.name, name, sent=True),
            delivered=self._arrived(name) + self._strayed(twin),
            twin_delivered=twins,
        )

    # --- on the wire ---

    def _attack_on_wire(self, name: str, expected: Reason, *, twin_first: bool) -> Trial:
        """Hold packets that the attacker's endpoint sends to its mate; put bad ones and good ones on br0."""
        tenant, middle = self._stand_between(name)

        def first() -> None:
            tenant.tell()
            middle.read_line()
            tenant.end()  # it sends until enough are held: a busy virtual function may lose some
            time.sleep(_DRAIN_S)
            middle.ask()

        def second() -> None:
            middle.ask()

        good, bad = (first, second) if twin_first else (second, first)
        twins = self._put_good(name, good) if twin_first else 0
        seen, delivered, reason = self._put_bad(name, bad, expected)
        twins = twins if twin_first else self._put_good(name, good)
        middle.end()
        return Trial(
            name=name,
            expected=expected,
            reason=reason,
            attempts=ATTEMPTS,
            seen=seen,
            delivered=delivered,
            twin_delivered=twins,
        )

    def _stand_between(self, name: str) -> tuple[Hand, Hand]:
        """Return a tenant's sender that waits for its order, and the program on the fabric that holds its packets."""
        cast, plan = self._cast, self._plan
        sender = plan.device(cast.attacker.device)
        headers = 8 + (20 if family(cast.mate.addresses[0]) == 4 else 40)
        sealed = _HELD_PAYLOAD_OCTETS + headers + UNDERLAY_OVERHEAD_OCTETS[family(sender.underlay_address)]
        payload = self._marks[name].ljust(_HELD_PAYLOAD_OCTETS, b".")
        tenant = self._crew.start_python(
            cast.attacker.name, "ztdpu.lab.traffic", "send", "--host", cast.mate.addresses[0], "--rate", "250",
            "--port", str(ALLOWED_PORT), "--payload", payload.hex(), "--wait",
        )  # fmt: skip
        tenant.read_line()
        middle = self._crew.start_python(
            "fabric", _module_of(name), "--attempts", str(ATTEMPTS), "--octets", str(sealed),
            "--port", port_name(plan.devices.index(sender), sender.name),
        )  # fmt: skip
        middle.read_line()
        return tenant, middle

    def _put_good(self, name: str, put: Callable[[], None]) -> int:
        before = self._arrived(name)
        put()
        return self._wait_arrived(name, before + ATTEMPTS) - before

    def _put_bad(self, name: str, put: Callable[[], None], expected: Reason) -> tuple[int, int, str]:
        """Return how many packets were put on br0, how many arrived, and the receiver's reason for the others."""
        device = self._cast.mate.device
        drops, arrived, injected = self._drops(device), self._arrived(name), self._wire.ask()["psp_sent_here"]
        put()
        reason = self._reason(device, drops, ATTEMPTS, expected)
        return self._wire.ask()["psp_sent_here"] - injected, self._arrived(name) - arrived, reason

    def _attack_sidecar(self) -> Trial:
        cast = self._cast
        return Trial(**try_sidecar(self._crew, self._control, self._plan, attacker=cast.attacker, victim=cast.victim))

    # --- on attestation ---

    def _attack_altered_firmware(self) -> Trial:
        spare = self._cast.spare
        entered = self._watch_enrolment()
        harvest = self._ask_for_identity("altered-firmware", "--fault", "firmware-altered")
        seen = entered.finish()["matched"]
        codes = {finding.code for finding in self._control.get_attestation(spare).findings}
        twin = self._ask_for_identity("altered-firmware")
        return Trial(
            name="altered-firmware",
            expected="fwid_unexpected, measurement_unexpected",
            reason=", ".join(sorted(codes)) if set(harvest["states"]) == {"contraindicated"} else "",
            attempts=harvest["attempts"],
            seen=seen,
            delivered=harvest["identities"] + harvest["leases"],
            twin_delivered=twin["identities"],
        )

    def _attack_relayed_attestation(self) -> Trial:
        """The spare device claims the name of the attacker's device and answers with its evidence."""
        genuine = self._plan.device(self._cast.attacker.device)
        spare = self._plan.device(self._cast.spare)
        lender, own = self._lend(genuine), self._lend(spare)
        leaves = self._control.status().audit_size
        entered = self._watch_enrolment()
        address = f"{genuine.oob_address}:{_LENDER_PORT}"
        harvest = self._ask_for_identity("relayed-attestation", "ask", "--lender", address, "--as", genuine.name)
        seen = entered.finish()["matched"]
        twin = self._ask_for_identity("relayed-attestation", "ask", "--lender", f"{spare.oob_address}:{_LENDER_PORT}")
        for hand in (lender, own):
            hand.end()
        return Trial(
            name="relayed-attestation",
            expected="binding",
            reason=self._refusal(genuine.name, leaves, harvest["attempts"]),
            attempts=harvest["attempts"],
            seen=seen,
            delivered=harvest["identities"] + harvest["leases"],
            twin_delivered=twin["identities"],
        )

    def _lend(self, device: DevicePlan) -> Hand:
        hand = self._crew.start_python(
            device.name, _module_of("relayed-attestation"), "lend", "--address", device.oob_address,
            "--config", self._configuration(device.name), "--port", str(_LENDER_PORT),
        )  # fmt: skip
        hand.read_line()
        return hand

    def _watch_enrolment(self) -> Hand:
        arguments = ("--direction", "out", "--tcp", str(_ENROLMENT_PORT))
        return self._crew.start_capture(self._cast.spare, "oob0", *arguments)

    def _ask_for_identity(self, name: str, *options: str) -> dict[str, Any]:
        spare = self._cast.spare
        more = ("--config", self._configuration(spare), "--attempts", str(IDENTITY_ATTEMPTS))
        return self._crew.start_python(spare, _module_of(name), *options, *more).finish(timeout_s=20)

    def _configuration(self, device: str) -> str:
        return str(self._plan.paths.device(device) / AGENT_FILE)

    def _refusal(self, device: str, first: int, attempts: int) -> str:
        """Return the one code with which control refused attestations of `device` so often since audit leaf `first`."""
        leaves = [json.loads(entry.leaf) for entry in self._control.list_audit(first=first)]
        codes = [leaf["reason"] for leaf in leaves if (leaf["action"], leaf["subject"]) == ("attest", device)]
        return codes[0] if len(codes) >= attempts and len(set(codes)) == 1 else ""

    # --- counting ---

    def _octets(self, name: str) -> bytes:
        mark = self._marks[name]
        return mark_of(FORBIDDEN_PORT, mark) if name.startswith("cross-tenant-tcp") else mark

    def _count(self, place: str, mark: str, *, sent: bool) -> int:
        return int(self._captures[place].ask()["marks"][mark][sent])

    def _arrived(self, mark: str) -> int:
        """Packets with a mark that came in anywhere but at the attacker."""
        return sum(
            self._count(place, mark, sent=False) for place in self._captures if place != self._cast.attacker.name
        )

    def _strayed(self, mark: str) -> int:
        """Packets that were meant for the mate and came in elsewhere."""
        return self._arrived(mark) - self._count(self._cast.mate.name, mark, sent=False)

    def _wait_arrived(self, mark: str, wanted: int) -> int:
        """Return how many packets with a mark the mate has, at the latest after _ARRIVAL_S."""
        deadline = time.monotonic() + _ARRIVAL_S
        while True:
            count = self._count(self._cast.mate.name, mark, sent=False)
            if count >= wanted or time.monotonic() > deadline:
                return count
            time.sleep(0.02)

    def _drops(self, device: str) -> dict[str, int]:
        return dict(self._control.get_device(device).packets_by_reason)

    def _reason(self, device: str, before: dict[str, int], attempts: int, expected: str) -> str:
        """Return the reason that the device itself gives for at least so many drops since `before`.

        When several rose as much: the one expected, if it is among them.
        """
        deadline = time.monotonic() + _COUNTERS_S
        while True:
            now = self._drops(device)
            risen = {reason: count - before.get(reason, 0) for reason, count in now.items() if reason not in _PASSING}
            found = sorted(reason for reason, count in risen.items() if count >= attempts)
            if expected in found or time.monotonic() > deadline:
                return expected if expected in found else ", ".join(found)
            time.sleep(0.05)


class Apart:
    """Runs some attacks one after the other in a thread of its own. It holds nobody up who gives up waiting."""

    def __init__(self, attacks: Mapping[str, Callable[[], Trial]]) -> None:
        self._trials: dict[str, Future[Trial]] = {name: Future() for name in attacks}
        threading.Thread(target=self._run, args=(attacks,), daemon=True).start()

    def result(self, name: str) -> Trial:
        """Return the trial when it is there; raises what the attack raised."""
        return self._trials[name].result()

    def _run(self, attacks: Mapping[str, Callable[[], Trial]]) -> None:
        for name, run in attacks.items():
            try:
                self._trials[name].set_result(run())
            except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
                self._trials[name].set_exception(error)


def _marks() -> Iterator[str]:
    for name in ("cross-tenant-tcp", "cross-tenant-udp", "spoofed-source", "fragment", "bad-offload-header"):
        yield from (name, f"{name}-twin")
    yield from ("flipped-packet", "replayed-packet")


def _module_of(name: str) -> str:
    return f"ztdpu.lab.attacks.{name.replace('-', '_')}"
