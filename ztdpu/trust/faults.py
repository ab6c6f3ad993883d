"""A root of trust that misbehaves on demand: what an attacker or a broken device would do, for labs and tests.

`FaultyRoot` stands behind the same two doors as `EmulatedRoot`. `ztdpu.agent.root_of_trust` uses it only when it was
started with a fault door, `ztdpu lab root-of-trust` always. Never part of a real device.

| preset | what the device does | boots anew |
|---|---|---|
| firmware-altered, firmware-rollback, debug-enabled | runs such firmware and measures it honestly | yes |
| stale-alias | certifies the Alias key of the boot before as that of a newer boot | yes |
| old-boot | comes back as a boot that is over | yes |
| wrong-root | shows a whole chain by another manufacturer with the same names | yes |
| duplicate-index | shows a measurement twice | |
| unsigned-last | leaves the signature of the last measurements away | |
| nonce-reuse | answers with measurements that it signed for an earlier nonce | |
| malleated-signature | gives (r, n - s) for every signature: the same statement, and no fault | |
| foreign-binding | has the agent's keys bound by another device's key | yes |
| slow | is busy whenever it is asked for measurements | |
| silent | does not answer | |
| none | is a good device again | when it has to |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from ztdpu.errors import BindingError, StateError
from ztdpu.trust import canonical, dice
from ztdpu.trust.binding import BINDING_LABEL, BindRequest, sign
from ztdpu.trust.firmware import FirmwareFault, alter_firmware
from ztdpu.trust.manufacture import DeviceSecrets, create_manufacturer
from ztdpu.trust.profile import Profile
from ztdpu.trust.root import EmulatedRoot, Session
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.messages import HEADER_OCTETS, Code, Error, ErrorCode
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.responder import Responder
from ztdpu.trust.spdm.suite import suite_of

_NONCE_OCTETS: Final = 32
_BOOT_NONCE_OCTETS: Final = 16
_SIGNED: Final = 1


class Preset(StrEnum):
    """What `ztdpu lab fault` knows."""

    FIRMWARE_ALTERED = "firmware-altered"
    FIRMWARE_ROLLBACK = "firmware-rollback"
    DEBUG_ENABLED = "debug-enabled"
    STALE_ALIAS = "stale-alias"
    OLD_BOOT = "old-boot"
    WRONG_ROOT = "wrong-root"
    DUPLICATE_INDEX = "duplicate-index"
    UNSIGNED_LAST = "unsigned-last"
    NONCE_REUSE = "nonce-reuse"
    MALLEATED_SIGNATURE = "malleated-signature"
    FOREIGN_BINDING = "foreign-binding"
    SLOW = "slow"
    SILENT = "silent"
    NONE = "none"


_FIRMWARE: Final = {Preset(fault.value): fault for fault in FirmwareFault}
BOOTING: Final = frozenset({*_FIRMWARE, Preset.STALE_ALIAS, Preset.OLD_BOOT, Preset.WRONG_ROOT, Preset.FOREIGN_BINDING})
"""Presets that boot the device anew when they begin, and once more when they end."""


class FaultyRoot:
    """A root of trust with a switch. It starts as a good device."""

    def __init__(
        self,
        *,
        draw_secrets: Callable[[], DeviceSecrets],
        profile: Profile,
        random: Callable[[int], bytes],
        clock: Callable[[], float] | None = None,
        firmware_fault: FirmwareFault | None = None,
    ) -> None:
        """Boot.

        Args:
            draw_secrets: gives the device's secrets with a boot counter that no boot had before, durably.
            profile: of the device.
            random: gives that many fresh octets.
            clock: seconds that do not go back, for measurements that are slow.
            firmware_fault: what the shipped firmware suffered already; `none` does not heal it.

        Raises:
            ConfigurationError: secrets and profile do not fit each other.

        """
        self._draw_secrets = draw_secrets
        self._profile = profile
        self._random = random
        self._clock = clock
        self._shipped_fault = firmware_fault
        self.preset = Preset.NONE
        """What is in force."""
        self._replay = b""
        self._root = self._boot(Preset.NONE)

    @property
    def root(self) -> EmulatedRoot:
        """The boot that runs."""
        return self._root

    def set_preset(self, preset: Preset) -> None:
        """Begin to misbehave, or stop. Sessions that are open keep the boot that they began with.

        Raises:
            ConfigurationError: the secrets cannot be read or written any more.

        """
        replay = self._record() if preset is Preset.NONCE_REUSE else b""
        if preset in BOOTING or self.preset in BOOTING:
            self._root = self._boot(preset)
        self.preset, self._replay = preset, replay

    def open_session(self) -> Session:
        """Door one (see RootOfTrust)."""
        kind = _Repeating if self.preset is Preset.DUPLICATE_INDEX else Responder
        return _FaultySession(self, self._root.open_session(kind))

    def bind_keys(self, request: BindRequest) -> bytes:
        """Door two (see RootOfTrust)."""
        envelope = self._root.bind_keys(request)
        label, body, signature = _split(envelope)
        if self.preset is Preset.FOREIGN_BINDING:
            return sign(body, dice.derive_key(self._random(_NONCE_OCTETS), self._profile.curve_name))
        if self.preset is Preset.MALLEATED_SIGNATURE:
            r, s = decode_dss_signature(signature)
            order = dice.CURVES[self._profile.curve_name].group_order
            return canonical.encode([label, body, encode_dss_signature(r, order - s)])
        return envelope

    def spoil(self, request: bytes, answer: bytes) -> bytes:
        """Give what the device says instead of a good answer; empty when it says nothing."""
        suite = suite_of(self._profile)
        asks_measurements = len(request) >= HEADER_OCTETS and request[1] == Code.GET_MEASUREMENTS
        is_signed = answer[1:2] == bytes((Code.CHALLENGE_AUTH,)) or (
            answer[1:2] == bytes((Code.MEASUREMENTS,)) and bool(request[2] & _SIGNED)
        )
        match self.preset:
            case Preset.SILENT:
                return b""
            case Preset.SLOW if asks_measurements:
                return Error(version=suite.version, code=ErrorCode.BUSY).encode()
            case Preset.UNSIGNED_LAST if asks_measurements and is_signed:
                return answer[: -suite.signature_octets]
            case Preset.NONCE_REUSE if asks_measurements and is_signed:
                return self._replay
            case Preset.MALLEATED_SIGNATURE if is_signed:
                half = suite.half_octets
                order = dice.CURVES[suite.curve].group_order
                return answer[:-half] + (order - int.from_bytes(answer[-half:], "big")).to_bytes(half, "big")
        return answer

    def _boot(self, preset: Preset) -> EmulatedRoot:
        secrets = self._draw_secrets()
        firmware = secrets.firmware
        for fault in (self._shipped_fault, _FIRMWARE.get(preset)):
            firmware = alter_firmware(self._profile, firmware, fault) if fault else firmware
        counter, alias_key = secrets.boot_counter, None
        if preset is Preset.OLD_BOOT:
            counter = max(counter - 2, 0)
        elif preset is Preset.STALE_ALIAS:
            alias_key = self._root.device.alias_key
        elif preset is Preset.WRONG_ROOT:
            secrets = self._make_forgery(secrets)
        return EmulatedRoot(
            secrets=secrets,
            profile=self._profile,
            firmware=firmware,
            boot_counter=counter,
            boot_nonce=self._random(_BOOT_NONCE_OCTETS),
            random=self._random,
            clock=self._clock,
            alias_key=alias_key,
        )

    def _make_forgery(self, secrets: DeviceSecrets) -> DeviceSecrets:
        """The same device, made by somebody who calls himself the manufacturer."""
        since = x509.load_der_x509_certificate(secrets.certificates[-1]).not_valid_before_utc
        forger = create_manufacturer(profile=self._profile, random=self._random, now=since)
        return forger.make_device(serial=secrets.serial, uds=secrets.uds, now=since, firmware=secrets.firmware)

    def _record(self) -> bytes:
        """Measurements signed for a nonce of nobody's, to be shown to everybody."""
        session = MeasurementSession(profile=self._profile, nonce=self._random(_NONCE_OCTETS))
        door, answer = self._root.open_session(), b""
        while (request := session.next_request()) is not None:
            answer = door.answer(request)
            session.receive(answer)
        return answer


class _FaultySession:
    """A session whose answers are spoilt on their way out."""

    def __init__(self, root: FaultyRoot, good: Session) -> None:
        self._root = root
        self._good = good

    def answer(self, request: bytes) -> bytes:
        """See `Session`."""
        return self._root.spoil(request, self._good.answer(request))


class _Repeating(Responder):
    """Shows the first block of every answer twice."""

    def _make_measurements(self, asked: auth.GetMeasurements, nonce: bytes) -> auth.Measurements:
        good = super()._make_measurements(asked, nonce)
        if not good.count:
            return good
        first = next(block for block in self._blocks.values() if good.record.startswith(block))
        return auth.Measurements(
            version=good.version,
            content_changed=good.content_changed,
            count=good.count + 1,
            record=good.record + first,
            nonce=good.nonce,
        )


def _split(envelope: bytes) -> tuple[str, bytes, bytes]:
    match canonical.decode(envelope, refusal=BindingError):
        case [str(label), bytes(body), bytes(signature)] if label == BINDING_LABEL:
            return label, body, signature
    raise StateError("a binding of our own has another form")
