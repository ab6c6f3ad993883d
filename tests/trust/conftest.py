"""A small world for tests of trust: one manufacturer, emulated devices, real SPDM sessions, an operator, a verifier.

Keys are made once per run; time stands still at `World.now`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.errors import Location
from ztdpu.model.attestation import Tier
from ztdpu.trust.acceptance import accept_binding
from ztdpu.trust.appraise import Appraisal, appraise
from ztdpu.trust.binding import BindRequest
from ztdpu.trust.faults import FaultyRoot
from ztdpu.trust.firmware import Firmware, compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.reference import AllowedDigests, AppraisalPolicy, MinimumVersion, ReferenceValues
from ztdpu.trust.root import EmulatedRoot
from ztdpu.trust.spdm.evidence import Evidence, MeasurementBlock
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.responder import Responder

SHARED_VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors"
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
DOMAIN = "ztdpu.lab"
SOURCE = Location(file="policies/reference.yaml", line=7, column=3)


def p256(seed: int) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(b"%d" % seed).digest()) >> 1, ec.SECP256R1())


def p384(seed: int) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(hashlib.sha384(b"%d" % seed).digest()) >> 1, ec.SECP384R1())


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def spki_sha256(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(spki(key)).digest()


@dataclass(frozen=True)
class AgentKeys:
    tls: ec.EllipticCurvePrivateKey
    offer: ec.EllipticCurvePrivateKey


class World:
    """What tests of one module share."""

    domain = DOMAIN
    now = NOW
    source = SOURCE
    spdm_nonce = bytes(range(32))
    binding_nonce = bytes(range(32, 64))

    def __init__(self) -> None:
        self.random = random.Random(20261130)
        self.profile = load_profile("bluefield-3")
        self.manufacturer = create_manufacturer(
            profile=self.profile, random=self.random.randbytes, now=NOW - timedelta(days=400)
        )
        self.roots = (self.manufacturer.root,)
        self.operator = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
        self.ear_key = p256(1)
        self.keys = AgentKeys(tls=p256(2), offer=p256(3))
        self.other_keys = AgentKeys(tls=p256(4), offer=p256(5))
        self.p256 = p256
        self.p384 = p384
        self.spki = spki
        self.spki_sha256 = spki_sha256
        self._secrets = {
            name: self.manufacturer.make_device(
                serial=f"{number:012d}", uds=bytes([number + 1]) * 32, now=NOW - timedelta(days=300)
            )
            for number, name in enumerate(("dpu-0", "dpu-1"))
        }

    def boot(
        self, device: str = "dpu-0", *, counter: int = 7, nonce: bytes = b"n" * 16, **changes: str | int
    ) -> EmulatedRoot:
        """Boot a device; `changes` name components of the firmware, with underscores."""
        components = dict(default_firmware(self.profile).components)
        components.update({name.replace("_", "-"): value for name, value in changes.items()})
        return EmulatedRoot(
            secrets=self._secrets[device],
            profile=self.profile,
            firmware=Firmware(components=components),
            boot_counter=counter,
            boot_nonce=nonce,
            random=self.random.randbytes,
        )

    def collect(self, root: EmulatedRoot, nonce: bytes | None = None) -> Evidence:
        """Run a whole measurement session against a root."""
        session = MeasurementSession(profile=self.profile, nonce=nonce or self.spdm_nonce)
        door = root.open_session()
        while (request := session.next_request()) is not None:
            session.receive(door.answer(request))
        return session.evidence()

    def collect_blocks(self, root: EmulatedRoot, blocks: Sequence[MeasurementBlock]) -> Evidence:
        """Run a session in which the true Alias signs other measurements than those of its boot."""
        key = root._device.alias_key
        responder = Responder(profile=self.profile, certificates=root.certificates, key=key, blocks=tuple(blocks))
        session = MeasurementSession(profile=self.profile, nonce=self.spdm_nonce)
        while (request := session.next_request()) is not None:
            session.receive(responder.answer(request, bytes(32)))
        return session.evidence()

    def bind(self, root: EmulatedRoot, keys: AgentKeys | None = None, **changes: object) -> bytes:
        """Have a root bind keys; gives the envelope."""
        keys = keys or self.keys
        request = BindRequest(
            trust_domain=DOMAIN,
            nonce=self.binding_nonce,
            tls_spki_sha256=spki_sha256(keys.tls),
            offer_spki=spki(keys.offer),
            ttl_s=600,
            agent_digest=bytes(32),
        )
        return root.bind_keys(dataclasses.replace(request, **changes))

    @cached_property
    def references(self) -> ReferenceValues:
        """Reference values of the firmware that devices ship with: digests, FWIDs, a minimum version."""
        blocks = measure(self.profile, default_firmware(self.profile))
        measurements = {
            spec.index: AllowedDigests(component=spec.component, digests=(block.value.hex(),), source=SOURCE)
            for spec, block in zip(self.profile.measurements, blocks, strict=True)
            if not block.raw
        }
        fwids = {
            level: AllowedDigests(
                component=f"fwid-{level}", digests=(compute_fwid(self.profile, one, blocks).hex(),), source=SOURCE
            )
            for level, one in enumerate(self.profile.levels)
            if one.fwid_covers
        }
        return ReferenceValues(
            name="bluefield-3",
            profile="bluefield-3",
            measurements=measurements,
            fwids=fwids,
            minimum_versions={"version": MinimumVersion(minimum=(1, 0, 0), source=SOURCE)},
            source=SOURCE,
        )

    @cached_property
    def policy(self) -> AppraisalPolicy:
        return AppraisalPolicy(name="default", source=SOURCE)

    def appraise(self, evidence: Evidence | None = None, **changes: object) -> Appraisal:
        """Appraise with everything right, except `changes`."""
        arguments = {
            "references": self.references,
            "policy": self.policy,
            "now": NOW,
            "manufacturer_roots": self.roots,
            "pinned_device_id_sha256": None,
            "nonce": self.spdm_nonce,
        } | changes
        return appraise(evidence if evidence is not None else self.collect(self.boot()), **arguments)


class Verifier:
    """A device of any profile, and control's half: appraises, accepts bindings, remembers the newest."""

    def __init__(self, name: str, *, minimum_of: str = "version") -> None:
        self.secrets_since = NOW - timedelta(days=1)
        self.random = random.Random(name)
        self.profile = load_profile(name)
        self.maker = create_manufacturer(
            profile=self.profile, random=self.random.randbytes, now=NOW - timedelta(days=1)
        )
        self.secrets = self.maker.make_device(serial="EMU1", uds=self.random.randbytes(32), now=NOW - timedelta(days=1))
        self.stored = None
        self.root = FaultyRoot(draw_secrets=self.draw, profile=self.profile, random=self.random.randbytes)
        blocks = measure(self.profile, default_firmware(self.profile))
        self.references = ReferenceValues(
            name="shipped",
            profile=name,
            measurements={
                spec.index: AllowedDigests(component=spec.component, digests=(block.value.hex(),), source=SOURCE)
                for spec, block in zip(self.profile.measurements, blocks, strict=True)
                if not block.raw and not spec.slow_ms
            },
            fwids={
                place: AllowedDigests(
                    component="f", digests=(compute_fwid(self.profile, level, blocks).hex(),), source=SOURCE
                )
                for place, level in enumerate(self.profile.levels)
                if level.fwid_covers
            },
            minimum_versions={minimum_of: MinimumVersion(minimum=(1,), source=SOURCE)},
            source=SOURCE,
        )

    def draw(self):
        self.secrets = dataclasses.replace(self.secrets, boot_counter=self.secrets.boot_counter + 1)
        return self.secrets

    def attest(self, *, spdm=None, bind=None):
        """Run an attestation; `spdm` and `bind` stand in the way of the device's two doors."""
        nonce, binding_nonce = self.random.randbytes(32), self.random.randbytes(32)
        session = MeasurementSession(
            profile=self.profile, nonce=nonce, challenge_nonce=self.random.randbytes(32), now_s=0
        )
        door = self.root.open_session()
        while (request := session.next_request()) is not None:
            session.receive(spdm(request) if spdm else door.answer(request), now_s=1)
        found = appraise(
            session.evidence(), self.references, AppraisalPolicy(name="strict", source=SOURCE), NOW,
            manufacturer_roots=(self.maker.root,), pinned_device_id_sha256=self.secrets.device_id_sha256, nonce=nonce,
        )  # fmt: skip
        if found.tier is not Tier.AFFIRMING:
            return found
        asked = BindRequest(
            trust_domain="ztdpu.lab", nonce=binding_nonce, tls_spki_sha256=spki_sha256(p256(2)),
            offer_spki=spki(p256(3)), ttl_s=600, agent_digest=bytes(32),
        )  # fmt: skip
        accepted = accept_binding(
            (bind or self.root.bind_keys)(asked), appraisal=found, expected_domain="ztdpu.lab", expected_nonce=binding_nonce,
            stored=self.stored, pinned_device_id_sha256=self.secrets.device_id_sha256,
        )  # fmt: skip
        self.stored = accepted.record
        return found


@pytest.fixture(scope="session")
def make_verifier() -> type[Verifier]:
    return Verifier


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def shared_vectors() -> Path:
    """Known answers that stand beside the repository; absent in a user's checkout."""
    return SHARED_VECTORS
