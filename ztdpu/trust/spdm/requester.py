"""One measurement session, seen from the verifier: a sans-IO SPDM requester for versions 1.1 and 1.2.

Driven by control, one session per appraisal:

    while (request := session.next_request()) is not None:
        <wait session.wait_s>
        session.receive(<what the device answers to request>, now_s=...)
    evidence = session.evidence()

| step | request | the answer must |
|---|---|---|
| VERSION | GET_VERSION | list the profile's version |
| CAPABILITIES | GET_CAPABILITIES | offer certificates and signed measurements |
| ALGORITHMS | NEGOTIATE_ALGORITHMS | select exactly the profile's |
| DIGESTS | GET_DIGESTS | have the slot |
| CERTIFICATE | GET_CERTIFICATE, until all is there | add up, split into certificates, have the digest of DIGESTS |
| CHALLENGE (only with a challenge nonce) | CHALLENGE | be signed over M1 by the last certificate's key |
| MEASUREMENTS | GET_MEASUREMENTS, all or one by one, the last signed | be signed over L1 by that key, as asked for |

At any step ERROR busy means the same again after a pause, response-not-ready RESPOND_IF_READY after a pause, and
request-resynch from VERSION again; all are bounded (`patience`).

Error contract: `receive` raises SpdmError for anything else, and the session is dead from then on: start
another one, at GET_VERSION. What is signed is built from the requests this object made, never from what
the device says it got. That the certificates lead anywhere is *not* checked here (`trust.chain`), nor is
any measured value (`trust.appraise`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import SpdmError, StateError
from ztdpu.trust.certificate import ec_public_key, load_certificate
from ztdpu.trust.profile import Profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.chain_reader import PORTION_OCTETS, ChainReader
from ztdpu.trust.spdm.collection import Collection, plan_operations
from ztdpu.trust.spdm.evidence import Evidence, make_evidence
from ztdpu.trust.spdm.messages import TRANSFER_OCTETS, Capability, ErrorCode
from ztdpu.trust.spdm.patience import Patience, read_error
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, verify_measurements, verify_transcript

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
        now_s: float | None = None,
    ) -> None:
        """Prepare a session.

        Args:
            profile: fixes version, algorithms and whether measurements are read one by one.
            nonce: 32 fresh octets for GET_MEASUREMENTS, used for nothing else.
            slot: certificate slot of the device.
            challenge_nonce: 32 fresh octets; when given, a CHALLENGE is made before the measurements.
            portion_octets: how much of the chain to ask for at once.
            now_s: any clock that does not go back; with it the session has a deadline.

        """
        for octets in (nonce, challenge_nonce or nonce):
            if len(octets) != auth.NONCE_OCTETS:
                raise ValueError(f"an SPDM nonce has {auth.NONCE_OCTETS} octets")
        self._profile = profile
        self._suite = suite_of(profile)
        self._nonce = nonce
        self._slot = slot
        self._challenge_nonce = challenge_nonce
        self._portion_octets = portion_octets
        self._patience = Patience(now_s)
        self._outstanding: bytes | None = None
        self._evidence: Evidence | None = None
        self._begin()

    def _begin(self) -> None:
        self._step = Step.VERSION
        self._deferred: tuple[bytes, bytes] | None = None
        self._negotiation: list[bytes] = []
        self._authentication: list[bytes] = []
        self._chain = ChainReader(self._suite, slot=self._slot, portion_octets=self._portion_octets)
        self._collection = Collection(
            self._suite, operations=plan_operations(self._profile), nonce=self._nonce, slot=self._slot
        )
        self._summary_hash = b""
        self._leaf_key: ec.EllipticCurvePublicKey | None = None

    @property
    def done(self) -> bool:
        """True when `evidence` has something to give."""
        return self._step is Step.DONE

    @property
    def wait_s(self) -> float:
        """How long to wait before the next request is sent: the device said that it is busy."""
        return self._patience.wait_s

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
        if self._deferred is not None:  # the answer still belongs to the request that was deferred
            (self._outstanding, instead), self._deferred = self._deferred, None
            return instead
        self._outstanding = self._make_request()
        return self._outstanding

    def receive(self, response: bytes, *, now_s: float | None = None) -> None:
        """Take the device's answer to the last request.

        Raises:
            SpdmError: malformed, unexpected, an ERROR, too late, or not signed as it must be. The session is dead.
            StateError: no answer is awaited.

        """
        request, self._outstanding = self._outstanding, None
        if request is None:
            raise StateError("no SPDM answer is awaited")
        step, self._step = self._step, Step.FAILED
        self._patience.check_time(now_s)
        if len(response) > TRANSFER_OCTETS:
            raise SpdmError(f"answer of {len(response)} octets, at most {TRANSFER_OCTETS} are taken")
        error = read_error(response, version=self._suite.version)
        if error is None:
            self._step = self._take_answer(step, request, response)
            return
        instead = self._patience.bear(error, request)
        if error.code == ErrorCode.REQUEST_RESYNCH:
            self._begin()
        else:
            self._step, self._deferred = step, (request, instead) if instead else None

    def _make_request(self) -> bytes:
        version = self._suite.version
        match self._step:
            case Step.VERSION:
                return messages.GetVersion().encode()
            case Step.CAPABILITIES:
                return messages.GetCapabilities(version=version, flags=0).encode()
            case Step.ALGORITHMS:
                return algorithms.NegotiateAlgorithms(
                    version=version,
                    asymmetric=self._suite.asymmetric,
                    hash=self._suite.hash_bit,
                    other_parameters=self._other_parameters,
                ).encode()
            case Step.DIGESTS:
                return auth.GetDigests(version=version).encode()
            case Step.CERTIFICATE:
                return self._chain.make_request()
            case Step.CHALLENGE:
                nonce = self._challenge_nonce or b""
                return auth.Challenge(version=version, slot=self._slot, summary=self._summary, nonce=nonce).encode()
            case _:
                return self._collection.make_request()

    @property
    def _other_parameters(self) -> int:
        return messages.OPAQUE_FORMAT_1 if self._suite.signs_negotiation else 0

    @property
    def _summary(self) -> int:
        # Slow measurements are left out one by one but not out of the summary: there is nothing to compare it with.
        return auth.NO_SUMMARY if self._profile.one_by_one else auth.ALL_SUMMARY

    def _take_answer(self, step: Step, request: bytes, response: bytes) -> Step:
        """Check one answer and say which step follows."""
        match step:
            case Step.VERSION | Step.CAPABILITIES | Step.ALGORITHMS:
                following = self._take_negotiation(step, response)
                self._negotiation += (request, response)
                return following
            case Step.DIGESTS:
                self._chain.take_digests(response)
                following = Step.CERTIFICATE
            case Step.CERTIFICATE:
                following = self._take_portion(response)
            case Step.CHALLENGE:
                self._take_challenge(request, response)
                return Step.MEASUREMENTS
            case _:
                self._collection.take(request, response)
                return self._conclude() if self._collection.is_whole else Step.MEASUREMENTS
        self._authentication += (request, response)
        return following

    def _take_negotiation(self, step: Step, response: bytes) -> Step:
        suite = self._suite
        if step is Step.VERSION:
            if not any(entry >> 8 == suite.version for entry in messages.Version.decode(response).entries):
                raise SpdmError(f"the device does not speak SPDM {suite.version_word}")
            return Step.CAPABILITIES
        if step is Step.CAPABILITIES:
            needed = _NEEDED | (Capability.CHAL if self._challenge_nonce else 0)
            flags = messages.Capabilities.decode(response, version=suite.version).flags
            if flags & needed != needed or flags & Capability.MEAS_NO_SIG:  # both bits of MEAS_CAP are reserved
                raise SpdmError("the device lacks certificates or signed measurements")
            return Step.ALGORITHMS
        answer = algorithms.Algorithms.decode(response, version=suite.version)
        if (answer.asymmetric, answer.hash, answer.measurement_hash, answer.measurement_specification) != (
            suite.asymmetric,
            suite.hash_bit,
            suite.measurement_hash,
            messages.DMTF_MEASUREMENTS,
        ):
            raise SpdmError(f"the device selects other algorithms than profile {self._profile.name} has")
        if answer.tables or answer.other_parameters & ~self._other_parameters:
            raise SpdmError("the device selects algorithms or parameters that were not offered")
        return Step.DIGESTS

    def _take_portion(self, response: bytes) -> Step:
        if not self._chain.take_portion(response):
            return Step.CERTIFICATE
        leaf = load_certificate(self._chain.certificates[-1], refusal=SpdmError)
        self._leaf_key = ec_public_key(leaf, curves={self._suite.curve}, refusal=SpdmError)
        return Step.CHALLENGE if self._challenge_nonce else Step.MEASUREMENTS

    def _take_challenge(self, request: bytes, response: bytes) -> None:
        answer = auth.ChallengeAuth.decode(response, summary=self._summary, suite=self._suite)
        if answer.slot != self._slot or answer.chain_hash != self._chain.digest:
            raise SpdmError("challenge is answered for another slot or certificate chain")
        unsigned = auth.slice_unsigned(response, self._suite)
        m1 = b"".join((*self._negotiation, *self._authentication, request, unsigned))
        verify_transcript(self._require_leaf_key(), SigningContext.CHALLENGE_AUTH, m1, answer.signature, self._suite)
        self._summary_hash = answer.summary_hash

    def _conclude(self) -> Step:
        evidence = make_evidence(
            profile=self._profile.name,
            certificates=self._chain.certificates,
            root_hash=self._chain.root_hash,
            messages=(*(self._negotiation if self._suite.signs_negotiation else ()), *self._collection.messages),
            signature=self._collection.signature,
        )
        verify_measurements(evidence, self._require_leaf_key(), self._suite)
        if self._summary_hash and self._summary_hash != self._suite.digest(self._collection.record):
            raise SpdmError("the device's measurements changed while they were read")
        self._evidence = evidence
        return Step.DONE

    def _require_leaf_key(self) -> ec.EllipticCurvePublicKey:
        if self._leaf_key is None:
            raise StateError("no certificate was read yet")
        return self._leaf_key
