"""A booted device, its responder and one recorded session for the SPDM tests: SPDM 1.2 with P-384."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from ztdpu.trust.boot import BootedDevice, boot_device
from ztdpu.trust.extensions import Boot
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import PROFILES_FOLDER, Profile, parse_profile
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.responder import Responder

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NONCE = b"\xaa" * 32
CHALLENGE_NONCE = b"\xbb" * 32
DEVICE_NONCE = b"\x99" * 32


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything a session needs, with fixed nonces."""

    profile: Profile
    device: BootedDevice
    answers: tuple[bytes, ...]
    """A good device's answers to the whole session, CHALLENGE included."""
    evidence: Evidence

    def responder(self) -> Responder:
        return Responder(
            profile=self.profile,
            certificates=self.device.certificates,
            key=self.device.alias_key,
            blocks=self.device.blocks,
        )

    def session(self, **arguments) -> MeasurementSession:
        return MeasurementSession(
            **{"profile": self.profile, "nonce": NONCE, "challenge_nonce": CHALLENGE_NONCE, **arguments}
        )

    def drive(self, responder: Responder, **arguments) -> Evidence:
        """Run a fresh session against a responder to its end."""
        session = self.session(**arguments)
        record(session, responder)
        return session.evidence()

    def replay(self, answers, **arguments) -> Evidence:
        """Feed recorded answers to a fresh session."""
        session = self.session(**arguments)
        for answer in answers:
            assert session.next_request() is not None
            session.receive(answer)
        return session.evidence()


def record(session: MeasurementSession, responder: Responder) -> list[bytes]:
    answers = []
    while (request := session.next_request()) is not None:
        answers.append(responder.answer(request, DEVICE_NONCE))
        session.receive(answers[-1])
    return answers


@pytest.fixture(scope="session")
def bench() -> Bench:
    text = (PROFILES_FOLDER / "bluefield-3.toml").read_text()
    profile = parse_profile(text.replace('version = "1.1"', 'version = "1.2"', 1), file="test")
    manufacturer = create_manufacturer(profile=profile, random=lambda octets: b"\x31" * octets, now=NOW)
    secrets = manufacturer.make_device(serial="EMU0001", uds=b"\x5a" * 32, now=NOW)
    device = boot_device(profile, secrets, secrets.firmware, Boot(counter=7, nonce=b"\x01" * 16))
    responder = Responder(profile=profile, certificates=device.certificates, key=device.alias_key, blocks=device.blocks)
    session = MeasurementSession(profile=profile, nonce=NONCE, challenge_nonce=CHALLENGE_NONCE)
    answers = record(session, responder)
    return Bench(profile=profile, device=device, answers=tuple(answers), evidence=session.evidence())
