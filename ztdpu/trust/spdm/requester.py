"""One measurement session, seen from the verifier: a sans-IO SPDM 1.2 requester.

Driven by control, one session per appraisal:

    while (request := session.next_request()) is not None:
        session.receive(<what the device answers to request>)
    evidence = session.evidence()

| step | request | the answer must |
|---|---|---|
| VERSION | GET_VERSION | list 1.2 |
| CAPABILITIES | GET_CAPABILITIES | offer certificates and signed measurements |
| ALGORITHMS | NEGOTIATE_ALGORITHMS | select exactly the profile's |
| DIGESTS | GET_DIGESTS | have the slot |
| CERTIFICATE | GET_CERTIFICATE, until all is there | add up, split into certificates, have the digest of DIGESTS |
| CHALLENGE (only with a challenge nonce) | CHALLENGE | be signed over M1 by the last certificate's key |
| MEASUREMENTS | GET_MEASUREMENTS, all, signed | be signed over L1 by that key, well-formed, those of the challenge |

Error contract: `receive` raises SpdmError for anything else, and the session is dead from then on: start
another one, at GET_VERSION. What is signed is built from the requests this object made, never from what
the device says it got. That the certificates lead anywhere is *not* checked here (`trust.chain`), nor is
any measured value (`trust.appraise`).
"""

from __future__ import annotations

import hashlib
from enum import Enum, auto
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import SpdmError, StateError
from ztdpu.trust.certificate import ec_public_key, load_certificate
from ztdpu.trust.profile import Profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.chain_format import CHAIN_LIMIT_OCTETS, split_chain
from ztdpu.trust.spdm.evidence import Evidence, make_evidence
from ztdpu.trust.spdm.messages import TRANSFER_OCTETS, Capability
from ztdpu.trust.spdm.transcript import SigningContext, verify_measurements, verify_transcript

PORTION_OCTETS: Final = 1024
"""Asked for in one GET_CERTIFICATE."""
_CONTENT_CHANGED: Final = 1
_CURVES: Final = frozenset({"secp384r1"})
_NEEDED: Final = Capability.CERT | Capability.MEAS_SIG


class Step(Enum):
    """Which answer the session waits for."""

    VERSION = auto()
    CAPABILITIES = auto()
    ALGORITHMS = auto()
    DIGESTS = auto()
    CERTIFICATE = auto()
    CHALLENGE = auto()
    MEASUREMENTS = auto()
    DONE = auto()
    FAILED = auto()


class MeasurementSession:
    """See the module. One object is one session, never reused."""

    def __init__(
        self,
        *,
        profile: Profile,
        nonce: bytes,
        slot: int = 0,
        challenge_nonce: bytes | None = None,
        portion_octets: int = PORTION_OCTETS,
    ) -> None:
        """Prepare a session.

        Args:
            profile: fixes the algorithms.
            nonce: 32 fresh octets for GET_MEASUREMENTS, used for nothing else.
            slot: certificate slot of the device.
            challenge_nonce: 32 fresh octets; when given, a CHALLENGE is made before the measurements.
            portion_octets: how much of the chain to ask for at once.

        """
        for octets in (nonce, challenge_nonce or nonce):
            if len(octets) != auth.NONCE_OCTETS:
                raise ValueError(f"an SPDM nonce has {auth.NONCE_OCTETS} octets")
        self._profile = profile
        self._nonce = nonce
        self._slot = slot
        self._challenge_nonce = challenge_nonce
        self._portion_octets = portion_octets
        self._step = Step.VERSION
        self._outstanding: bytes | None = None
        self._negotiation: list[bytes] = []
        self._authentication: list[bytes] = []
        self._chain = b""
        self._chain_octets: int | None = None
        self._digest = b""
        self._root_hash = b""
        self._summary_hash = b""
        self._certificates: tuple[bytes, ...] = ()
        self._leaf_key: ec.EllipticCurvePublicKey | None = None
        self._evidence: Evidence | None = None

    @property
    def done(self) -> bool:
        """True when `evidence` has something to give."""
        return self._step is Step.DONE

    def evidence(self) -> Evidence:
        """Give what the session collected; StateError before it is done."""
        if self._evidence is None:
            raise StateError("the measurement session is not done")
        return self._evidence

    def next_request(self) -> bytes | None:
        """Give the next request to send, None when done.

        Raises:
            StateError: the last request has no answer yet, or the session failed.

        """
        if self._step is Step.DONE:
            return None
        if self._step is Step.FAILED or self._outstanding is not None:
            raise StateError("the measurement session failed or waits for an answer")
        self._outstanding = self._make_request()
        return self._outstanding

    def receive(self, response: bytes) -> None:
        """Take the device's answer to the last request.

        Raises:
            SpdmError: malformed, unexpected, an ERROR, or not signed as it must be. The session is dead.
            StateError: no answer is awaited.

        """
        request, self._outstanding = self._outstanding, None
        if request is None:
            raise StateError("no SPDM answer is awaited")
        step, self._step = self._step, Step.FAILED
        if len(response) > TRANSFER_OCTETS:
            raise SpdmError(f"answer of {len(response)} octets, at most {TRANSFER_OCTETS} are taken")
        self._step = self._take_answer(step, request, response)

    def _make_request(self) -> bytes:
        match self._step:
            case Step.VERSION:
                return messages.GetVersion().encode()
            case Step.CAPABILITIES:
                return messages.GetCapabilities(flags=0).encode()
            case Step.ALGORITHMS:
                return algorithms.NegotiateAlgorithms(
                    asymmetric=messages.ASYM_ECDSA_P384, hash=messages.HASH_SHA384
                ).encode()
            case Step.DIGESTS:
                return auth.GetDigests().encode()
            case Step.CERTIFICATE:
                return auth.GetCertificate(
                    slot=self._slot, offset=len(self._chain), length=self._portion_octets
                ).encode()
            case Step.CHALLENGE:
                nonce = self._challenge_nonce or b""
                return auth.Challenge(slot=self._slot, summary=auth.ALL_SUMMARY, nonce=nonce).encode()
            case _:
                return auth.GetMeasurements(
                    operation=auth.ALL_MEASUREMENTS, nonce=self._nonce, slot=self._slot
                ).encode()

    def _take_answer(self, step: Step, request: bytes, response: bytes) -> Step:
        """Check one answer and say which step follows."""
        match step:
            case Step.VERSION | Step.CAPABILITIES | Step.ALGORITHMS:
                following = self._take_negotiation(step, response)
                self._negotiation += (request, response)
                return following
            case Step.DIGESTS:
                self._take_digests(response)
                following = Step.CERTIFICATE
            case Step.CERTIFICATE:
                following = self._take_portion(response)
            case Step.CHALLENGE:
                self._take_challenge(request, response)
                return Step.MEASUREMENTS
            case _:
                self._take_measurements(request, response)
                return Step.DONE
        self._authentication += (request, response)
        return following

    def _take_negotiation(self, step: Step, response: bytes) -> Step:
        if step is Step.VERSION:
            if not any(entry & 0xFF00 == messages.VERSION_1_2 for entry in messages.Version.decode(response).entries):
                raise SpdmError("the device does not speak SPDM 1.2")
            return Step.CAPABILITIES
        if step is Step.CAPABILITIES:
            needed = _NEEDED | (Capability.CHAL if self._challenge_nonce else 0)
            if messages.Capabilities.decode(response).flags & needed != needed:
                raise SpdmError("the device lacks certificates or signed measurements")
            return Step.ALGORITHMS
        answer = algorithms.Algorithms.decode(response)
        if (answer.asymmetric, answer.hash, answer.measurement_hash, answer.measurement_specification) != (
            messages.ASYM_ECDSA_P384,
            messages.HASH_SHA384,
            messages.MEASUREMENT_HASHES[self._profile.measurement_hash],
            messages.DMTF_MEASUREMENTS,
        ):
            raise SpdmError(f"the device selects other algorithms than profile {self._profile.name} has")
        return Step.DIGESTS

    def _take_digests(self, response: bytes) -> None:
        digest = auth.Digests.decode(response).slots.get(self._slot)
        if digest is None:
            raise SpdmError(f"the device has no certificate chain in slot {self._slot}")
        self._digest = digest

    def _take_portion(self, response: bytes) -> Step:
        answer = auth.Certificate.decode(response)
        total = len(self._chain) + len(answer.portion) + answer.remainder
        if answer.slot != self._slot or not 1 <= len(answer.portion) <= self._portion_octets:
            raise SpdmError("certificate portion is of another slot or size than asked for")
        if total > CHAIN_LIMIT_OCTETS or (self._chain_octets or total) != total:
            raise SpdmError(f"certificate portions add up to {total} octets")
        self._chain_octets = total
        self._chain += answer.portion
        if answer.remainder:
            return Step.CERTIFICATE
        if hashlib.sha384(self._chain).digest() != self._digest:
            raise SpdmError("certificate chain is not the one that the device gave the digest of")
        self._root_hash, self._certificates = split_chain(self._chain)
        leaf = load_certificate(self._certificates[-1], refusal=SpdmError)
        self._leaf_key = ec_public_key(leaf, curves=_CURVES, refusal=SpdmError)
        return Step.CHALLENGE if self._challenge_nonce else Step.MEASUREMENTS

    def _take_challenge(self, request: bytes, response: bytes) -> None:
        answer = auth.ChallengeAuth.decode(response, summary=auth.ALL_SUMMARY)
        if answer.slot != self._slot or answer.chain_hash != self._digest:
            raise SpdmError("challenge is answered for another slot or certificate chain")
        m1 = b"".join((*self._negotiation, *self._authentication, request, auth.slice_unsigned(response)))
        verify_transcript(self._require_leaf_key(), SigningContext.CHALLENGE_AUTH, m1, answer.signature)
        self._summary_hash = answer.summary_hash

    def _take_measurements(self, request: bytes, response: bytes) -> None:
        answer = auth.Measurements.decode(response)
        if answer.slot != self._slot:
            raise SpdmError("measurements are signed for another slot")
        evidence = make_evidence(
            profile=self._profile.name,
            certificates=self._certificates,
            root_hash=self._root_hash,
            messages=(*self._negotiation, request, auth.slice_unsigned(response)),
            signature=answer.signature,
        )
        verify_measurements(evidence, self._require_leaf_key())
        summary = hashlib.sha384(answer.record).digest()
        if answer.content_changed == _CONTENT_CHANGED or (self._summary_hash or summary) != summary:
            raise SpdmError("the device's measurements changed while they were read")
        self._evidence = evidence

    def _require_leaf_key(self) -> ec.EllipticCurvePublicKey:
        if self._leaf_key is None:
            raise StateError("no certificate was read yet")
        return self._leaf_key
