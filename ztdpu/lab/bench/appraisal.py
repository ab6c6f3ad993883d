"""Section appraisal (alias trust): how many devices one core of control can appraise, and attest with an identity.

An appraisal is cold where the chain is seen for the first time, known where the device attested before (the usual
case: it does so every few seconds with one chain for each boot). In process, the true formats: an emulated root of
trust answers SPDM, its chain and signatures are verified. Times are what this process used of a core. The device's own
share (it runs elsewhere in reality) is shown apart, and the slowest verdict on hostile chains.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.errors import CertificateError, Location, StateError
from ztdpu.lab.bench.figures import per_second, time_calls
from ztdpu.lab.hostile_chains import generate_chains
from ztdpu.lab.layout import TRUST_DOMAIN
from ztdpu.model.attestation import Tier
from ztdpu.trust.acceptance import accept_binding
from ztdpu.trust.appraise import Appraisal, appraise
from ztdpu.trust.authority import create_authority, issue_svid
from ztdpu.trust.binding import BindRequest, binding_sha256
from ztdpu.trust.chain import LINKS, VERIFIED, verify_device_chain
from ztdpu.trust.ear import issue_ear
from ztdpu.trust.firmware import compute_fwid, default_firmware
from ztdpu.trust.firmware import measure as measure_firmware
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.reference import AllowedDigests, AppraisalPolicy, ReferenceValues
from ztdpu.trust.root import EmulatedRoot
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.requester import MeasurementSession

PROFILE = "bluefield-3"
_HERE = Location(file="bench", line=0)
_TTL_S = 600


def measure(*, seconds: float) -> dict[str, Any]:
    """Time every step of an attestation; `seconds` is for the whole section."""
    bench = Attestation()
    share = seconds / 7
    evidence, envelope = bench.collect(), bench.bind()
    appraisal = bench.appraise(evidence)
    steps = {
        "device answers and requester drives SPDM": time_calls(bench.collect, seconds=share, clock=time.process_time),
        "device binds keys": time_calls(bench.bind, seconds=share, clock=time.process_time),
        "appraise, chain not seen before": time_calls(
            lambda: bench.appraise_cold(evidence), seconds=share, clock=time.process_time
        ),
        "appraise, chain known": time_calls(lambda: bench.appraise(evidence), seconds=share, clock=time.process_time),
        "accept the key binding": time_calls(
            lambda: bench.accept(appraisal, envelope), seconds=share, clock=time.process_time
        ),
        "issue EAR and SVID": time_calls(
            lambda: bench.issue(appraisal, envelope), seconds=share, clock=time.process_time
        ),
    }
    whole = time_calls(bench.attest, seconds=share, clock=time.process_time)
    return {
        "profile": PROFILE,
        "rows": [
            {"step": step, "cost_us": cost, "per_second": per_second(cost["median"])}
            for step, cost in {**steps, "whole attestation, both sides, in one process": whole}.items()
        ],
        "evidence_octets": len(evidence.encode()),
        "binding_octets": len(envelope),
        "hostile_chains": time_hostile_chains(),
    }


def time_hostile_chains() -> dict[str, Any]:
    """Time the verdict on every hostile chain; StateError when one is taken for good."""
    profile, now = load_profile(PROFILE), datetime.now(UTC)
    slowest = ("", 0.0)
    count = 0
    for chain in generate_chains(len(profile.levels)):
        start = time.perf_counter()
        try:
            verify_device_chain(chain.certificates, (chain.root,), now, profile)
        except CertificateError:
            slowest = max(slowest, (chain.name, (time.perf_counter() - start) * 1000), key=lambda pair: pair[1])
            count += 1
            continue
        raise StateError(f"a hostile chain was accepted: {chain.name}")
    return {"chains": count, "slowest": slowest[0], "slowest_ms": round(slowest[1], 3)}


class Attestation:
    """One device, one verifier, everything right."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.profile = load_profile(PROFILE)
        maker = create_manufacturer(profile=self.profile, random=secrets.token_bytes, now=self.now - timedelta(days=1))
        self.roots = (maker.root,)
        device = maker.make_device(serial="BENCH", uds=secrets.token_bytes(32), now=self.now - timedelta(days=1))
        self.root = EmulatedRoot(
            secrets=device, profile=self.profile, firmware=device.firmware, boot_counter=1,
            boot_nonce=secrets.token_bytes(16), random=secrets.token_bytes,
        )  # fmt: skip
        self.references = _references()
        self.policy = AppraisalPolicy(name="bench", source=_HERE)
        self.nonce, self.binding_nonce = secrets.token_bytes(32), secrets.token_bytes(32)
        self.tls, self.offer, self.ear_key, authority_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
        self.authority = create_authority(TRUST_DOMAIN, self.now, authority_key, 1)

    def collect(self) -> Evidence:
        """Run a measurement session against the root of trust."""
        session, door = MeasurementSession(profile=self.profile, nonce=self.nonce), self.root.open_session()
        while (request := session.next_request()) is not None:
            session.receive(door.answer(request))
        return session.evidence()

    def bind(self) -> bytes:
        """Have the root of trust bind the agent's keys."""
        offer = self.offer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        tls = self.tls.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return self.root.bind_keys(
            BindRequest(
                trust_domain=TRUST_DOMAIN, nonce=self.binding_nonce, tls_spki_sha256=hashlib.sha256(tls).digest(),
                offer_spki=offer, ttl_s=_TTL_S, agent_digest=bytes(32),
            )
        )  # fmt: skip

    def appraise(self, evidence: Evidence) -> Appraisal:
        """Appraise; StateError when the device is not affirmed, which would be another cost."""
        found = appraise(
            evidence, self.references, self.policy, self.now, manufacturer_roots=self.roots,
            pinned_device_id_sha256=None, nonce=self.nonce,
        )  # fmt: skip
        if found.tier is not Tier.AFFIRMING:
            raise StateError(f"the bench's own device is {found.tier.word}: {found.findings}")
        return found

    def appraise_cold(self, evidence: Evidence) -> Appraisal:
        """Appraise as if no chain had been seen before."""
        VERIFIED.clear()
        LINKS.clear()
        return self.appraise(evidence)

    def accept(self, appraisal: Appraisal, envelope: bytes) -> None:
        """Verify the key binding as a device's first."""
        accept_binding(
            envelope,
            appraisal=appraisal,
            expected_domain=TRUST_DOMAIN,
            expected_nonce=self.binding_nonce,
            stored=None,
            pinned_device_id_sha256=None,
        )

    def issue(self, appraisal: Appraisal, envelope: bytes) -> None:
        """Issue what an affirmed device gets."""
        issue_ear(
            appraisal, device="dpu-0", key=self.ear_key, issuer=TRUST_DOMAIN, now=self.now,
            binding_sha256=binding_sha256(envelope), ttl_s=_TTL_S,
        )  # fmt: skip
        issue_svid(
            self.authority, trust_domain=TRUST_DOMAIN, path="/dpu/dpu-0", public_key=self.tls.public_key(),
            not_before=self.now, not_after=self.now + timedelta(seconds=_TTL_S), serial=secrets.randbits(63) + 1,
        )  # fmt: skip

    def attest(self) -> None:
        """Do the whole of it once."""
        evidence, envelope = self.collect(), self.bind()
        appraisal = self.appraise(evidence)
        self.accept(appraisal, envelope)
        self.issue(appraisal, envelope)


def _references() -> ReferenceValues:
    """Reference values for the firmware that emulated devices ship with."""
    profile = load_profile(PROFILE)
    blocks = measure_firmware(profile, default_firmware(profile))
    return ReferenceValues(
        name="bench",
        profile=PROFILE,
        measurements={
            spec.index: AllowedDigests(component=spec.component, digests=(block.value.hex(),), source=_HERE)
            for spec, block in zip(profile.measurements, blocks, strict=True)
            if not block.raw
        },
        fwids={
            number: AllowedDigests(
                component=f"level {number}", digests=(compute_fwid(profile, level, blocks).hex(),), source=_HERE
            )
            for number, level in enumerate(profile.levels)
            if level.fwid_covers
        },
        minimum_versions={},
        source=_HERE,
    )
