"""Whether whoever opens a device's stream is the device: more than a certificate and its TLS key, which can be stolen.

The SVID must be one of the newest two that control issued to the device, and the hello is signed by the offer key of
the live binding under a number that only rises. What fails this with the right TLS key is no mistake: it raises an
alarm at control (log, counter, audit leaf by the interceptor) and at the device, on the stream that it has open.
Called by `api.agent` after it found binding and state in order.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from ztdpu.control.appraisal.judgement import public_key
from ztdpu.control.devices.issued import read_issued
from ztdpu.control.devices.record import StoredBinding
from ztdpu.control.doors.authorisation import Caller
from ztdpu.control.doors.hub import IdentityAlarmPush
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.errors import IdentityMisuseError
from ztdpu.rpc.possession import hello_octets
from ztdpu.telemetry import get_logger


class IdentityProof:
    """One per control process."""

    def __init__(self, fleet: Fleet, meters: Meters) -> None:
        self._fleet = fleet
        self._meters = meters
        self._heard: dict[str, tuple[bytes, int]] = {}
        """Device -> (its live binding, highest number of a hello under it)."""

    def require(
        self,
        caller: Caller,
        binding: StoredBinding,
        *,
        worker_instance: bytes,
        number: int,
        signature: bytes,
        peer: str,
    ) -> None:
        """Let the owner of the identity in.

        Raises:
            IdentityMisuseError: it is somebody else. The alarm was raised.

        """
        cause = self._find_fault(caller, binding, worker_instance=worker_instance, number=number, signature=signature)
        if cause:
            self.alarm(caller.device, cause, peer)
            raise IdentityMisuseError(cause, remedy="if it was not this device's own agent: revoke the device")
        self._heard[caller.device] = (binding.binding_sha256, number)

    def _find_fault(
        self, caller: Caller, binding: StoredBinding, *, worker_instance: bytes, number: int, signature: bytes
    ) -> str:
        with self._fleet.transaction() as transaction:
            issued = read_issued(transaction, caller.device)
        known = {(one.serial, one.spki_sha256) for one in issued}
        if (caller.certificate_serial, caller.tls_spki_sha256.hex()) not in known:
            return "an SVID that control did not issue, or replaced"
        octets = hello_octets(
            device=caller.device,
            binding_sha256=binding.binding_sha256,
            worker_instance=worker_instance,
            number=number,
        )
        try:
            public_key(binding.offer_spki).verify(signature, octets, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return "the TLS key and SVID of the device without its offer key"
        bound, highest = self._heard.get(caller.device, (b"", -1))
        if bound == binding.binding_sha256 and number <= highest:
            return "a hello that was heard before"
        return ""

    def alarm(self, device: str, cause: str, peer: str) -> None:
        """Tell control's people and the device itself that its identity is in other hands."""
        self._meters.identity_alarms.inc()
        get_logger().error("identity-misuse", device=device, cause=cause, peer=peer)
        alarm = IdentityAlarmPush(cause=cause, peer=peer[:100], unix_ms=self._fleet.now().unix_ms)
        self._fleet.hub.deliver(device, alarm)
