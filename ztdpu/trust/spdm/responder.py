"""The device's half of SPDM 1.1 and 1.2, sans-IO: whole requests in, whole answers out.

Called by the emulated root of trust, one object per connection. It never raises for what a requester
sends: a request that does not fit is answered with ERROR, as DSP0274 asks. Anybody may reach it, and it
signs anybody's nonce: nothing that it signs speaks for the agent's keys.

| state | takes | otherwise |
|---|---|---|
| START | GET_VERSION | ERROR unexpected |
| VERSION | GET_CAPABILITIES | ERROR unexpected |
| CAPABILITIES | NEGOTIATE_ALGORITHMS | ERROR unexpected |
| READY | GET_DIGESTS, GET_CERTIFICATE, CHALLENGE, GET_MEASUREMENTS | ERROR unexpected |
| any | GET_VERSION: everything before is forgotten | |

Slow measurements (of the profile) answer ERROR busy until their time has passed, where the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import SpdmError
from ztdpu.trust.profile import Profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.chain_format import encode_chain
from ztdpu.trust.spdm.evidence import MeasurementBlock
from ztdpu.trust.spdm.messages import (
    HEADER_OCTETS,
    TRANSFER_MINIMUM_OCTETS,
    TRANSFER_OCTETS,
    Capability,
    Code,
    Error,
    ErrorCode,
)
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, sign_transcript

CAPABILITIES: Final = Capability.CERT | Capability.CHAL | Capability.MEAS_SIG
TRANSCRIPT_LIMIT_OCTETS: Final = 256 * 1024
"""What a session remembers for its signatures; a requester that goes on for ever has to start again."""
_CERTIFICATE_FIXED_OCTETS: Final = 8
_UNCHANGED: Final = 2
_SLOT: Final = 0


class State(IntEnum):
    """How far the session is."""

    START = 0
    VERSION = 1
    CAPABILITIES = 2
    READY = 3


class _RefusedError(Exception):
    """Inside this module: what ERROR to answer with."""

    def __init__(self, code: ErrorCode, data: int = 0, extended: bytes = b"") -> None:
        super().__init__(code.name)
        self.code = code
        self.data = data
        self.extended = extended


class Responder:
    """One session with one requester."""

    def __init__(
        self,
        *,
        profile: Profile,
        certificates: Sequence[bytes],
        key: ec.EllipticCurvePrivateKey,
        blocks: Sequence[MeasurementBlock],
    ) -> None:
        """Prepare to answer with a chain (root first), the last certificate's key, and measurements."""
        self._suite = suite_of(profile)
        self._chain = encode_chain(certificates, self._suite)
        self._chain_hash = self._suite.digest(self._chain)
        self._key = key
        self._blocks = {block.index: block.encode() for block in blocks}
        self._slow_s = {spec.index: spec.slow_ms / 1000 for spec in profile.measurements if spec.slow_ms}
        self._ready_s: dict[int, float] = {}
        self._forget()

    def answer(self, request: bytes, nonce: bytes, now_s: float | None = None) -> bytes:
        """Answer one request.

        Args:
            request: one whole SPDM message, of any content.
            nonce: 32 fresh random octets for a signed answer; unused by others.
            now_s: any clock that does not go back; without it nothing is slow.

        """
        try:
            return self._limit(self._dispatch(request, nonce, now_s))
        except SpdmError:
            self._measured.clear()
            return self._error(ErrorCode.INVALID_REQUEST)
        except _RefusedError as refused:
            if refused.code is not ErrorCode.BUSY:
                self._measured.clear()
            return self._error(refused.code, refused.data, refused.extended)

    def _error(self, code: ErrorCode, data: int = 0, extended: bytes = b"") -> bytes:
        version = messages.FIRST_VERSION_OCTET if self._state is State.START else self._suite.version
        return Error(version=version, code=code, data=data, extended=extended).encode()

    @property
    def _capabilities(self) -> int:
        # 1.1 knows no alias certificates.
        return CAPABILITIES | (Capability.ALIAS_CERT if self._suite.signs_negotiation else 0)

    def _limit(self, response: bytes) -> bytes:
        # The transcript already counts the answer, but a session that lost one is over anyway.
        if len(response) > self._transfer_octets:
            raise _RefusedError(ErrorCode.RESPONSE_TOO_LARGE, extended=len(response).to_bytes(4, "little"))
        return response

    def _forget(self) -> None:
        self._state = State.START
        self._transfer_octets = TRANSFER_MINIMUM_OCTETS
        self._negotiation: list[bytes] = []
        self._authentication: list[bytes] = []
        self._measured: list[bytes] = []

    def _dispatch(self, request: bytes, nonce: bytes, now_s: float | None) -> bytes:
        if not HEADER_OCTETS <= len(request) <= TRANSFER_OCTETS:
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        version, code = request[0], request[1]
        if code == Code.GET_VERSION:
            return self._answer_version(request)
        if version != self._suite.version:
            raise _RefusedError(ErrorCode.VERSION_MISMATCH)
        handlers = {
            Code.GET_CAPABILITIES: (State.VERSION, self._answer_capabilities),
            Code.NEGOTIATE_ALGORITHMS: (State.CAPABILITIES, self._answer_algorithms),
            Code.GET_DIGESTS: (State.READY, self._answer_digests),
            Code.GET_CERTIFICATE: (State.READY, self._answer_certificate),
            Code.CHALLENGE: (State.READY, lambda message: self._answer_challenge(message, nonce)),
            Code.GET_MEASUREMENTS: (State.READY, lambda message: self._answer_measurements(message, nonce, now_s)),
        }
        if code not in handlers:
            raise _RefusedError(ErrorCode.UNSUPPORTED_REQUEST, code)
        state, handler = handlers[Code(code)]
        if self._state is not state:
            raise _RefusedError(ErrorCode.UNEXPECTED_REQUEST)
        if code != Code.GET_MEASUREMENTS:
            self._measured.clear()
        if sum(map(len, self._authentication)) + sum(map(len, self._measured)) > TRANSCRIPT_LIMIT_OCTETS:
            self._forget()
            raise _RefusedError(ErrorCode.REQUEST_RESYNCH)
        return handler(request)

    def _answer_version(self, request: bytes) -> bytes:
        messages.GetVersion.decode(request)
        self._forget()
        response = messages.Version(entries=(self._suite.version << 8,)).encode()
        return self._negotiated(State.VERSION, request, response)

    def _answer_capabilities(self, request: bytes) -> bytes:
        asked = messages.GetCapabilities.decode(request, version=self._suite.version)
        self._transfer_octets = min(asked.transfer_octets, TRANSFER_OCTETS)
        response = messages.Capabilities(version=self._suite.version, flags=self._capabilities).encode()
        return self._negotiated(State.CAPABILITIES, request, response)

    def _answer_algorithms(self, request: bytes) -> bytes:
        asked = algorithms.NegotiateAlgorithms.decode(request, version=self._suite.version)
        if not (
            asked.asymmetric & self._suite.asymmetric
            and asked.hash & self._suite.hash_bit
            and asked.measurement_specification & messages.DMTF_MEASUREMENTS
        ):
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        offered = messages.OPAQUE_FORMAT_1 if self._suite.signs_negotiation else 0
        response = algorithms.Algorithms(
            version=self._suite.version,
            asymmetric=self._suite.asymmetric,
            hash=self._suite.hash_bit,
            measurement_hash=self._suite.measurement_hash,
            other_parameters=asked.other_parameters & offered,
            tables=tuple(algorithms.AlgorithmTable(table.kind, 0) for table in asked.tables),
        ).encode()
        return self._negotiated(State.READY, request, response)

    def _negotiated(self, state: State, request: bytes, response: bytes) -> bytes:
        self._state = state
        self._negotiation += (request, response)
        return response

    def _answer_digests(self, request: bytes) -> bytes:
        auth.GetDigests.decode(request, version=self._suite.version)
        response = auth.Digests(version=self._suite.version, slots={_SLOT: self._chain_hash}).encode()
        self._authentication += (request, response)
        return response

    def _answer_certificate(self, request: bytes) -> bytes:
        asked = auth.GetCertificate.decode(request, version=self._suite.version)
        if asked.slot != _SLOT or asked.offset >= len(self._chain) or not asked.length:
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        octets = min(asked.length, self._transfer_octets - _CERTIFICATE_FIXED_OCTETS)
        portion = self._chain[asked.offset : asked.offset + octets]
        remainder = len(self._chain) - asked.offset - len(portion)
        response = auth.Certificate(
            version=self._suite.version, slot=_SLOT, portion=portion, remainder=remainder
        ).encode()
        self._authentication += (request, response)
        return response

    def _answer_challenge(self, request: bytes, nonce: bytes) -> bytes:
        asked = auth.Challenge.decode(request, version=self._suite.version)
        if asked.slot != _SLOT or asked.summary not in {auth.NO_SUMMARY, auth.ALL_SUMMARY}:
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        summary = b"" if asked.summary == auth.NO_SUMMARY else self._suite.digest(self._record())
        unsigned = auth.ChallengeAuth(
            version=self._suite.version,
            slot=_SLOT,
            slot_mask=1 << _SLOT,
            chain_hash=self._chain_hash,
            nonce=nonce,
            summary_hash=summary,
            signature=b"",
        ).encode_unsigned()
        m1 = b"".join((*self._negotiation, *self._authentication, request, unsigned))
        self._authentication.clear()
        return unsigned + sign_transcript(self._key, SigningContext.CHALLENGE_AUTH, m1, self._suite)

    def _answer_measurements(self, request: bytes, nonce: bytes, now_s: float | None) -> bytes:
        asked = auth.GetMeasurements.decode(request, version=self._suite.version)
        if asked.slot != _SLOT:
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        if now_s is not None:
            self._take_time(asked.operation, now_s)
        unsigned = self._make_measurements(asked, nonce).encode_unsigned()
        self._measured += (request, unsigned)
        if not asked.nonce:
            return unsigned
        l1 = b"".join((*(self._negotiation if self._suite.signs_negotiation else ()), *self._measured))
        self._measured.clear()
        return unsigned + sign_transcript(self._key, SigningContext.MEASUREMENTS, l1, self._suite)

    def _take_time(self, operation: int, now_s: float) -> None:
        """Be busy with a slow measurement until its time has passed; all of them take the sum of their times."""
        slow_s = sum(self._slow_s.values()) if operation == auth.ALL_MEASUREMENTS else self._slow_s.get(operation, 0)
        if slow_s and now_s < self._ready_s.setdefault(operation, now_s + slow_s):
            raise _RefusedError(ErrorCode.BUSY)
        self._ready_s.pop(operation, None)

    def _make_measurements(self, asked: auth.GetMeasurements, nonce: bytes) -> auth.Measurements:
        # 1.1 has no word on whether measurements changed while they were read.
        version, unchanged = self._suite.version, _UNCHANGED if self._suite.signs_negotiation else 0
        if asked.operation == 0:
            return auth.Measurements(
                version=version, total=len(self._blocks), content_changed=unchanged, count=0, record=b"", nonce=nonce
            )
        if asked.operation == auth.ALL_MEASUREMENTS:
            count, record = len(self._blocks), self._record()
        elif asked.operation in self._blocks:
            count, record = 1, self._blocks[asked.operation]
        else:
            raise _RefusedError(ErrorCode.INVALID_REQUEST)
        return auth.Measurements(version=version, content_changed=unchanged, count=count, record=record, nonce=nonce)

    def _record(self) -> bytes:
        return b"".join(self._blocks.values())
