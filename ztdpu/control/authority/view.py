"""Identities as admins see them: authorities, control's own certificate, SVIDs of devices, and how near each end is.

Called by the Identity servicer; `sweep` by `run`: metrics, and a line in the log whenever an end comes nearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.control.authority.followers import Followers
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.devices.leases import CONNECTED_STATES
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.model.identity import Expiry, Identities, IdentityKind, IdentityStatus, judge_expiry
from ztdpu.telemetry import get_logger
from ztdpu.trust.certificate import spki_sha256

SWEEP_NS: Final = 10_000_000_000
"""It reads of every device."""
_WORSE: Final = {Expiry.OK: 0, Expiry.SOON: 1, Expiry.NOW: 2, Expiry.OVER: 3}


class IdentityView:
    """One per control process."""

    def __init__(self, fleet: Fleet, issuer: Issuer, followers: Followers, meters: Meters) -> None:
        self._fleet = fleet
        self._issuer = issuer
        self._followers = followers
        self._meters = meters
        self._told: dict[tuple[IdentityKind, str], Expiry] = {}
        self._due_ns = 0

    def identities(self) -> Identities:
        """All of them: authorities first, then control, then devices by name."""
        standing = self._issuer.standing
        return Identities(
            trust_domain=self._issuer.trust_domain, bundle_sequence=standing.sequence, identities=tuple(self._list())
        )

    def sweep(self) -> None:
        """Measure what is left, every SWEEP_NS, and say when it becomes little."""
        now = self._fleet.now()
        if now.boottime_ns < self._due_ns:
            return
        self._due_ns = now.boottime_ns + SWEEP_NS
        found = self.identities().identities
        self._meters.identity_seconds.clear()
        for one in found:
            name = one.authority if one.kind is IdentityKind.AUTHORITY else one.spiffe_id
            self._meters.identity_seconds.labels(kind=str(one.kind), name=name).set(
                one.not_after_unix_s - now.unix_ms / 1000
            )
            self._tell(one, name, now.unix_ms / 1000)
        present = {(one.kind, one.authority if one.kind is IdentityKind.AUTHORITY else one.spiffe_id) for one in found}
        self._told = {key: expiry for key, expiry in self._told.items() if key in present}

    def _tell(self, one: IdentityStatus, name: str, now_unix_s: float) -> None:
        before = self._told.get((one.kind, name), Expiry.OK)
        self._told[one.kind, name] = one.expiry
        if one.kind is IdentityKind.DEVICE and one.state not in CONNECTED_STATES:
            return  # it ends because the device is away: that has its own line
        if _WORSE[one.expiry] > _WORSE[before]:
            get_logger().error(
                "identity-expires",
                kind=str(one.kind),
                name=name,
                expiry=str(one.expiry),
                seconds_left=round(one.not_after_unix_s - now_unix_s),
                remedy="`ztdpu identity rotate-authority prepare`" if one.kind is IdentityKind.AUTHORITY else "",
            )

    def _list(self) -> Iterator[IdentityStatus]:
        issuer, fleet = self._issuer, self._fleet
        domain, own = f"spiffe://{issuer.trust_domain}", issuer.own()
        for record in issuer.standing.authorities:
            yield self._certificate(
                IdentityKind.AUTHORITY, domain, record.certificate, record.name, state=str(record.state)
            )
        yield self._certificate(IdentityKind.CONTROL, f"{domain}/control", own.certificate, own.authority, state="")
        with fleet.transaction() as transaction:
            believed = self._followers.sequences(transaction)
            for device, svid in self._followers.issued(transaction):
                yield IdentityStatus(
                    kind=IdentityKind.DEVICE,
                    spiffe_id=f"{domain}/dpu/{device}",
                    state=str(fleet.record(device).state),
                    serial=svid.serial,
                    spki_sha256=svid.spki_sha256,
                    not_before_unix_s=svid.not_before_unix_s,
                    not_after_unix_s=svid.not_after_unix_s,
                    authority=svid.authority,
                    bundle_sequence=believed.get(device, 0),
                    expiry=self._expiry(IdentityKind.DEVICE, svid.not_before_unix_s, svid.not_after_unix_s),
                )

    def _certificate(
        self, kind: IdentityKind, spiffe_id: str, certificate: x509.Certificate, authority: str, *, state: str
    ) -> IdentityStatus:
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        since, until = (
            int(one.timestamp()) for one in (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
        )
        return IdentityStatus(
            kind=kind,
            spiffe_id=spiffe_id,
            state=state,
            serial=f"{certificate.serial_number:x}",
            spki_sha256=spki_sha256(key).hex(),
            not_before_unix_s=since,
            not_after_unix_s=until,
            authority=authority,
            expiry=self._expiry(kind, since, until),
        )

    def _expiry(self, kind: IdentityKind, since: int, until: int) -> Expiry:
        return judge_expiry(
            kind, not_before_unix_s=since, not_after_unix_s=until, now_unix_s=self._fleet.now().unix_ms / 1000
        )
