"""The root of trust of a device: two doors, whatever stands behind them.

`RootOfTrust` is the whole interface. `EmulatedRoot` implements it from a device's secrets; the process
`ztdpu.agent.root_of_trust` puts it behind two sockets, and the agent speaks to those with the messages
at the end of this file. Door one (SPDM) may be reached by anyone. Door two (binding) is the agent's
alone: who may use it is for the process to check. The agent never holds an object of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import BindingError, StateError
from ztdpu.trust import canonical, extensions
from ztdpu.trust.binding import AGENT_ROLE, BindRequest, KeyBinding, encode_body, sign
from ztdpu.trust.boot import BootedDevice, boot_device
from ztdpu.trust.firmware import Firmware
from ztdpu.trust.manufacture import DeviceSecrets
from ztdpu.trust.profile import Profile
from ztdpu.trust.spdm.responder import Responder

DOOR_LIMIT_OCTETS: Final = 8192
"""No message through either door is longer."""
_NONCE_OCTETS: Final = 32
_BIND: Final = "bind"
_BOUND: Final = "bound"
_REFUSED: Final = "refused"


class RootOfTrust(Protocol):
    """What ztdpu needs of a device's hardware."""

    def open_session(self) -> Session:
        """Door one: an SPDM session for one more requester, so that two do not disturb each other."""
        ...

    def bind_keys(self, request: BindRequest) -> bytes:
        """Door two: sign a KeyBinding for the agent's keys and give the envelope.

        Raises:
            BindingError: the request is out of bounds.

        """
        ...


class EmulatedRoot:
    """A root of trust in software, for one boot."""

    def __init__(
        self,
        *,
        secrets: DeviceSecrets,
        profile: Profile,
        firmware: Firmware,
        boot_counter: int,
        boot_nonce: bytes,
        random: Callable[[int], bytes],
        clock: Callable[[], float] | None = None,
        alias_key: ec.EllipticCurvePrivateKey | None = None,
    ) -> None:
        """Boot the device; only the Alias key and public things are kept.

        Args:
            secrets: of this device; its own boot counter is not looked at.
            profile: of the same product.
            firmware: what to boot, usually `secrets.firmware`.
            boot_counter: higher than at any boot before.
            boot_nonce: 16 fresh octets.
            random: gives that many fresh octets, for nonces of signed answers.
            clock: seconds that do not go back, for measurements that are slow; None: nothing is.
            alias_key: of another boot, to emulate a fault; None: the one that this boot derives.

        Raises:
            ConfigurationError: secrets, profile and firmware do not fit each other.

        """
        boot = extensions.Boot(counter=boot_counter, nonce=boot_nonce)
        self._device = boot_device(profile, secrets, firmware, boot, alias_key=alias_key)
        self._random = random
        self._clock = clock
        self._sequence = 0
        self._responder = self.open_session().responder

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """DER, root to Alias."""
        return self._device.certificates

    @property
    def alias_public_key(self) -> ec.EllipticCurvePublicKey:
        """The key that signs in this boot."""
        return self._device.alias_key.public_key()

    @property
    def ueid(self) -> bytes:
        """UEID of the device."""
        return self._device.ueid

    @property
    def boot(self) -> extensions.Boot:
        """Which boot this is."""
        return self._device.boot

    @property
    def device(self) -> BootedDevice:
        """What runs, the Alias key among it: for `faults`, which makes it misbehave."""
        return self._device

    def open_session(self, kind: type[Responder] = Responder) -> SpdmSession:
        """Door one (see RootOfTrust); `kind` is for `faults`."""
        device = self._device
        responder = kind(
            profile=device.profile, certificates=device.certificates, key=device.alias_key, blocks=device.blocks
        )
        return SpdmSession(responder, self._random, self._clock)

    def spdm(self, request: bytes) -> bytes:
        """Door one, for a single requester."""
        return self._responder.answer(request, self._random(_NONCE_OCTETS))

    def bind_keys(self, request: BindRequest) -> bytes:
        """Door two (see RootOfTrust); every call has a higher sequence."""
        if request.role != AGENT_ROLE:
            raise BindingError(f"keys are bound to the role {AGENT_ROLE} alone")
        body = encode_body(
            KeyBinding(
                trust_domain=request.trust_domain,
                ueid=self._device.ueid,
                role=request.role,
                nonce=request.nonce,
                boot_counter=self._device.boot.counter,
                boot_nonce=self._device.boot.nonce,
                sequence=self._sequence + 1,
                tls_spki_sha256=request.tls_spki_sha256,
                offer_spki=request.offer_spki,
                ttl_s=request.ttl_s,
                agent_digest=request.agent_digest,
            )
        )
        self._sequence += 1
        return sign(body, self._device.alias_key)


class Session(Protocol):
    """Door one for one requester."""

    def answer(self, request: bytes) -> bytes:
        """Answer one SPDM request; never raises for what it says. Nothing: a broken device does not answer."""
        ...


class SpdmSession:
    """A session of an emulated device."""

    def __init__(
        self, responder: Responder, random: Callable[[int], bytes], clock: Callable[[], float] | None = None
    ) -> None:
        self.responder = responder
        self._random = random
        self._clock = clock

    def answer(self, request: bytes) -> bytes:
        """Answer one SPDM request; never raises for what it says."""
        return self.responder.answer(request, self._random(_NONCE_OCTETS), self._clock() if self._clock else None)


# --- messages through the binding door --------------------------------------------------------


def encode_bind_request(request: BindRequest) -> bytes:
    """Encode what the agent sends to the binding door: one CBOR array."""
    return canonical.encode(
        [
            _BIND,
            request.trust_domain,
            request.nonce,
            request.tls_spki_sha256,
            request.offer_spki,
            request.ttl_s,
            request.agent_digest,
            request.role,
        ]
    )


def decode_bind_request(message: bytes) -> BindRequest:
    """Read a request at the binding door; BindingError when malformed. Bounds are checked by `bind_keys`."""
    match canonical.decode(message, refusal=BindingError, limit_octets=DOOR_LIMIT_OCTETS):
        case [
            word,
            str(trust_domain),
            bytes(nonce),
            bytes(tls_spki_sha256),
            bytes(offer_spki),
            int(ttl_s),
            bytes(agent_digest),
            str(role),
        ] if word == _BIND:
            return BindRequest(
                trust_domain=trust_domain,
                nonce=nonce,
                tls_spki_sha256=tls_spki_sha256,
                offer_spki=offer_spki,
                ttl_s=ttl_s,
                agent_digest=agent_digest,
                role=role,
            )
    raise BindingError("request at the binding door is not of the known format")


def encode_bind_answer(envelope: bytes) -> bytes:
    """Encode the answer with a KeyBinding envelope."""
    return canonical.encode([_BOUND, envelope])


def encode_bind_refusal(message: str) -> bytes:
    """Encode a refusal; the text is for the agent's log."""
    return canonical.encode([_REFUSED, message])


def decode_bind_answer(message: bytes) -> bytes:
    """Read the answer of the binding door and give the KeyBinding envelope.

    Raises:
        StateError: the root of trust refused; the text says why.
        BindingError: the answer is malformed.

    """
    match canonical.decode(message, refusal=BindingError, limit_octets=DOOR_LIMIT_OCTETS):
        case [word, bytes(envelope)] if word == _BOUND:
            return envelope
        case [word, str(reason)] if word == _REFUSED:
            raise StateError(f"the root of trust does not bind these keys: {reason}")
    raise BindingError("answer of the binding door is not of the known format")
