"""One attestation, seen from the device: carry SPDM to the root of trust, bind the agent's keys, take the result.

1. `begin` with the lease request; 2. every SPDM request goes to door one, its answer back, both unread;
3. on `bind` door two signs a KeyBinding for this start's TLS and offer keys; CSR and both proofs of
possession go with it; 4. the result ends the stream.

Called by `agent.daemon`, which decides when. Appraises nothing and decides nothing about leases. Control is
authenticated by its own authority and name before the first octet is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import cbor2
import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

import ztdpu
from ztdpu.agent import door
from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.control_channel import enrolment_channel
from ztdpu.agent.own_keys import OwnKeys, generate_own_keys, make_csr, prove_possession, sign_lease_request
from ztdpu.agent.supervisor import Doors
from ztdpu.errors import LeaseError, RefusedError, UnreachableError
from ztdpu.trust.binding import TTL_LIMIT_S, BindRequest, binding_sha256
from ztdpu.trust.root import decode_bind_answer, encode_bind_request
from ztdpu.v1 import attestation_pb2, attestation_pb2_grpc

STEP_LIMIT: Final = 128
"""A full session takes about a dozen messages, more with a long chain in small portions."""
AGAIN_S: Final = 0.05
REFUSING_CODES: Final = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
    }
)


class CutError(UnreachableError):
    """The connection ended, or never stood; control itself said nothing of that kind."""


class DeniedError(RefusedError):
    """Control closed the stream with a refusal: no lease, no identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the device can show on the main port."""

    keys: OwnKeys
    svid_pem: bytes
    """Leaf first."""
    binding: bytes
    """KeyBinding envelope."""

    @property
    def binding_sha256(self) -> bytes:
        """Name of the binding."""
        return binding_sha256(self.binding)

    @property
    def ueid(self) -> bytes:
        """UEID of this device as its own root of trust put it into the binding."""
        _, body, _ = cbor2.loads(self.binding)
        return bytes(cbor2.loads(body)[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease as control granted it."""

    duration_ms: int
    generation: int
    sealed_epoch_keys: bytes
    withheld_networks: frozenset[bytes] = frozenset()
    """Networks of this device that it may not use in its tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one attestation ended."""

    state: str
    reason: str
    interval_ms: int
    grant: Grant | None
    identity: Identity | None
    """Only when an SVID came with it."""
    ear_public_key: bytes
    """SubjectPublicKeyInfo, DER, of the key that signs EARs; empty when control did not say."""
    findings: tuple[str, ...] = ()


class Session(Protocol):
    """Door one, open for one attestation."""

    async def ask(self, question: bytes) -> tuple[bytes, list[int]]:
        """An SPDM response; DoorClosedError."""


class Attester:
    """Holds the keys of this start; one attestation at a time."""

    def __init__(self, spec: AgentSpec, *, doors: Doors, bundle_pem: bytes, join_token: str = "") -> None:
        self._spec = spec
        self._doors = doors
        self.bundle_pem = bundle_pem
        """Whom to believe that it is control; the daemon follows a rotation here."""
        self._join_token = join_token
        self._keys = generate_own_keys()
        self._binding = b""
        """The binding that control accepted last; empty before the first."""

    def forget_keys(self) -> None:
        """Make new keys: the old ones were revoked with their boot."""
        self._keys = generate_own_keys()
        self._binding = b""

    async def attest(self, *, applied_generation: int, kem_public_key: bytes, afresh: bool) -> Answer:
        """Run one attestation; `afresh` asks for a new binding, as an agent that holds no SA with anybody.

        Raises UnreachableError when control or the root of trust does not answer, DeniedError when control closes
        the stream with a refusal, RefusedError when it speaks out of turn or the device's own answer is unusable.
        """
        name = binding_sha256(self._binding) if self._binding and not afresh else b""
        lease = attestation_pb2.LeaseRequest(
            binding_sha256=name,
            applied_generation=applied_generation,
            kem_public_key=kem_public_key,
            offer_signature=sign_lease_request(
                self._keys,
                device=self._spec.device,
                binding_sha256=name,
                applied_generation=applied_generation,
                kem_public_key=kem_public_key,
            ),
        )
        begin = attestation_pb2.AttestBegin(device=self._spec.device, join_token=self._join_token, lease=lease)
        try:
            return await self._try(begin)
        except CutError:  # control may be opening its ports anew in this moment: whoever comes again is served
            await asyncio.sleep(AGAIN_S)
            return await self._try(begin)

    async def _try(self, begin: attestation_pb2.AttestBegin) -> Answer:
        target = self._spec.control.enrolment
        channel = enrolment_channel(target, trust_domain=self._spec.trust_domain, bundle_pem=self.bundle_pem)
        async with channel:
            call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
            try:
                async with self._visit() as session:
                    return await self._converse(call, begin, session)
            except aio.AioRpcError as error:
                raise translate(error, target) from error
            except asyncio.InvalidStateError:
                raise CutError("control closed the stream", remedy="it is tried again by itself") from None
            finally:
                call.cancel()

    def _visit(self) -> AbstractAsyncContextManager[Session]:
        return door.Visit(self._doors.spdm_socket)

    async def _ask_binding(self, request: bytes) -> bytes:
        answer, _ = await door.ask(self._doors.binding_socket, request)
        return answer

    async def _converse(
        self,
        call: aio.StreamStreamCall[attestation_pb2.AttestRequest, attestation_pb2.AttestResponse],
        begin: attestation_pb2.AttestBegin,
        session: Session,
    ) -> Answer:
        keys, offered = self._keys, b""
        await call.write(attestation_pb2.AttestRequest(begin=begin))
        for _ in range(STEP_LIMIT):
            response = await call.read()
            if not isinstance(response, attestation_pb2.AttestResponse):
                raise UnreachableError("control ended the stream early", remedy="it is tried again by itself")
            match response.WhichOneof("step"):
                case "spdm":
                    answer, _ = await session.ask(response.spdm)
                    await call.write(attestation_pb2.AttestRequest(spdm=answer))
                case "bind":
                    offered = await self._bind(keys, response.bind.nonce)
                    await call.write(self._binding_answer(keys, offered, response.bind.nonce, begin.lease))
                case "result":
                    return self._take_result(response.result, keys, offered)
                case _:
                    break
        raise RefusedError("control speaks out of turn", remedy="compare the versions of agent and control")

    async def _bind(self, keys: OwnKeys, nonce: bytes) -> bytes:
        request = BindRequest(
            trust_domain=self._spec.trust_domain,
            nonce=nonce,
            tls_spki_sha256=keys.tls_spki_sha256,
            offer_spki=keys.offer_spki,
            ttl_s=TTL_LIMIT_S,
            agent_digest=agent_digest(),
        )
        return decode_bind_answer(await self._ask_binding(encode_bind_request(request)))

    def _binding_answer(
        self, keys: OwnKeys, envelope: bytes, nonce: bytes, lease: attestation_pb2.LeaseRequest
    ) -> attestation_pb2.AttestRequest:
        tls_possession, offer_possession = (
            prove_possession(
                key,
                nonce=nonce,
                binding_sha256=binding_sha256(envelope),
                applied_generation=lease.applied_generation,
                kem_public_key=lease.kem_public_key,
            )
            for key in (keys.tls_key, keys.offer_key)
        )
        answer = attestation_pb2.BindingAnswer(
            key_binding=envelope,
            csr=make_csr(keys, trust_domain=self._spec.trust_domain, device=self._spec.device),
            tls_possession=tls_possession,
            offer_possession=offer_possession,
        )
        return attestation_pb2.AttestRequest(binding=answer)

    def _take_result(self, result: attestation_pb2.AttestResult, keys: OwnKeys, offered: bytes) -> Answer:
        grant = None
        if result.HasField("lease") and result.lease.duration_ms > 0:
            grant = Grant(
                duration_ms=result.lease.duration_ms,
                generation=result.lease.generation,
                sealed_epoch_keys=result.lease.sealed_epoch_keys,
                withheld_networks=frozenset(result.lease.withheld_networks),
            )
        if offered and result.svid:
            self._binding = offered
        identity = None
        if result.svid and self._binding and keys is self._keys:
            identity = Identity(keys=keys, svid_pem=_pem(result.svid), binding=self._binding)
        return Answer(
            state=result.state,
            reason=result.reason,
            interval_ms=result.interval_ms,
            grant=grant,
            identity=identity,
            ear_public_key=result.ear_public_key,
            findings=tuple(f"{finding.code}: {finding.message}" for finding in result.findings[:32]),
        )


def translate(error: aio.AioRpcError, target: str) -> DeniedError | UnreachableError:
    """Say in our words how an RPC to control failed."""
    detail = f"{error.code().name.lower()}: {error.details() or 'no details'}"
    if error.code() in REFUSING_CODES:
        return DeniedError(detail, remedy="`ztdpu device show` at control says why")
    was_said = error.details() in (UnreachableError.code, LeaseError.code)
    kind = UnreachableError if was_said or error.code() is not grpc.StatusCode.UNAVAILABLE else CutError
    return kind(f"control at {target}: {detail}", remedy="it is tried again by itself")


def _pem(chain: Sequence[bytes]) -> bytes:
    return b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in chain)


@cache
def agent_digest() -> bytes:
    """SHA-256 over the names and contents of this build's Python files, in order."""
    root = Path(ztdpu.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()
