"""The identities of every endpoint on this device: which there are, their SVIDs, and who waits for a change.

    control's list (memberships, bundle) + the device's lease  ->  wanted identities
    wanted identity  ->  a task of its own: fresh key, signature by control, again at half its life

Without a lease everything is withdrawn at once and keys are forgotten. Keys are made here and go nowhere but to the
endpoint they are for. Called by `sidecar.server` and the daemon.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.agent.journal import log, warn
from ztdpu.agent.sidecar.asker import Asker
from ztdpu.agent.sidecar.identities import Membership, Standing, Svid, View
from ztdpu.errors import UnreachableError, ZtdpuError
from ztdpu.v1 import agent_pb2

FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 5.0
MEMBERSHIPS_LIMIT: Final = 4096


@dataclass(slots=True)
class _Endpoint:
    version: int = 1
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Book:
    """One per daemon."""

    def __init__(
        self,
        asker: Asker,
        *,
        boottime_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._asker = asker
        self._boottime_ns, self._unix_s = boottime_ns, unix_s
        self._deadline_ns = 0
        self._heard = False
        """Whether control has said anything yet."""
        self._trust_domain, self._jwt_bundle = "", b""
        self._authorities: tuple[bytes, ...] = ()
        self._memberships: tuple[Membership, ...] = ()
        self._svids: dict[Membership, Svid] = {}
        self._keepers: dict[Membership, asyncio.Task[None]] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        self._lapse: asyncio.TimerHandle | None = None

    # --- what changes ---

    def set_lease(self, deadline_ns: int) -> None:
        """Take the lease's end in CLOCK_BOOTTIME; 0: no lease."""
        was_leased, self._deadline_ns = self.is_leased, deadline_ns
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None
        if self.is_leased:
            delay_s = min(max((deadline_ns - self._boottime_ns()) / 1e9, 0.0), 1.0)
            self._lapse = asyncio.get_running_loop().call_later(delay_s, self._look_at_lease)
        if was_leased != self.is_leased or not deadline_ns:
            self._settle()

    def _look_at_lease(self) -> None:
        """The loop's clock stands still in suspend and the lease's does not: look at least once a second."""
        self._lapse = None
        if self.is_leased:
            self.set_lease(self._deadline_ns)
        else:
            self._settle()

    @property
    def is_leased(self) -> bool:
        """Whether the device holds a lease now."""
        return self._boottime_ns() < self._deadline_ns

    def take_workloads(self, message: agent_pb2.Workloads) -> None:
        """Replace what is known of identities and bundles."""
        memberships = tuple(
            Membership(
                endpoint=one.endpoint,
                tenant=one.tenant,
                job=one.job,
                rank=one.rank,
                world_size=one.world_size,
                epoch=one.epoch,
            )
            for one in message.memberships[:MEMBERSHIPS_LIMIT]
        )
        bundles = (message.trust_domain, tuple(message.authorities), message.jwt_bundle)
        everybody = not self._heard or bundles != (self._trust_domain, self._authorities, self._jwt_bundle)
        before, self._memberships, self._heard = set(self._memberships), memberships, True
        self._trust_domain, self._authorities, self._jwt_bundle = bundles
        if everybody:
            self._renew_all()
        self._settle()
        concerned = {one.endpoint for one in before ^ set(memberships)}
        self._tell(self._endpoints if everybody else concerned)

    def _renew_all(self) -> None:
        """Sign anew under the bundle of now: what left it verifies nothing any more. SVIDs stay meanwhile."""
        for membership, keeper in list(self._keepers.items()):
            keeper.cancel()
            self._keepers[membership] = asyncio.create_task(self._keep(membership), name=f"svid-{membership.endpoint}")

    def _settle(self) -> None:
        """Withdraw what is not wanted any more; begin to get what is new."""
        wanted = set(self._memberships) if self.is_leased else set()
        for gone in set(self._keepers) - wanted:
            self._keepers.pop(gone).cancel()
            if self._svids.pop(gone, None) is not None:
                log("workload-svid-withdrawn", endpoint=gone.endpoint, identity=gone.hint)
            self._tell([gone.endpoint])
        for new in wanted - set(self._keepers):
            self._keepers[new] = asyncio.create_task(self._keep(new), name=f"svid-{new.endpoint}")
        if not self.is_leased:
            self._tell(self._endpoints)

    def close(self) -> None:
        """Withdraw everything: the daemon ends."""
        self.set_lease(0)

    # --- what endpoints see ---

    def view(self, endpoint: str) -> View:
        """Everything that the endpoint may see now."""
        version = self._endpoint(endpoint).version
        own = [one for one in self._memberships if one.endpoint == endpoint]
        if not self._heard:
            return View(standing=Standing.STARTING, version=version)
        if not self.is_leased or not own:
            return View(standing=Standing.DENIED, version=version)
        ordered = tuple(sorted(own, key=lambda one: not one.job))  # stable: control lists the newest job first
        now_s = self._unix_s()
        found = [self._svids.get(one) for one in ordered]
        svids = tuple(one for one in found if one is not None and now_s < one.expires_unix_s)
        return View(
            standing=Standing.READY if svids else Standing.STARTING,
            version=version,
            trust_domain=self._trust_domain,
            authorities=self._authorities,
            jwt_bundle=self._jwt_bundle,
            memberships=ordered,
            svids=svids,
        )

    async def wait_changed(self, endpoint: str, version: int) -> None:
        """Return once the view of the endpoint is another than that of `version`."""
        while self._endpoint(endpoint).version == version:
            await self._endpoint(endpoint).changed.wait()

    def _endpoint(self, name: str) -> _Endpoint:
        return self._endpoints.setdefault(name, _Endpoint())

    def forget(self, endpoint: str) -> None:
        """Nobody serves this endpoint any more."""
        self._tell([endpoint])
        self._endpoints.pop(endpoint, None)

    def _tell(self, endpoints: Iterable[str]) -> None:
        for name in endpoints:
            one = self._endpoint(name)
            one.version += 1
            one.changed.set()
            one.changed = asyncio.Event()

    # --- SVIDs ---

    async def _keep(self, membership: Membership) -> None:
        """Get an SVID, and the next one at half its life, until cancelled. One that is over is withdrawn."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                svid = await self._get(membership)
            except ZtdpuError as error:
                if not isinstance(error, UnreachableError):
                    warn(
                        "workload-svid-refused", endpoint=membership.endpoint, identity=membership.hint, code=error.code
                    )
                self._drop_if_over(membership)
                await asyncio.sleep(retry_s * (0.5 + 0.5 * random.random()))  # noqa: S311 - spreads load
                retry_s = min(retry_s * 2, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            self._svids[membership] = svid
            self._tell([membership.endpoint])
            life_s = svid.expires_unix_s - self._unix_s()
            await asyncio.sleep(max(life_s / 2, FIRST_RETRY_S) * (0.9 + 0.1 * random.random()))  # noqa: S311

    async def _get(self, membership: Membership) -> Svid:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        answer = await self._asker.ask(
            agent_pb2.WorkloadRequest(
                endpoint=membership.endpoint,
                x509=agent_pb2.SignX509Svid(public_key=public, job=membership.job),
            )
        )
        return Svid(
            membership=membership,
            spiffe_id=answer.spiffe_id,
            chain=tuple(answer.x509_svid),
            key=key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            expires_unix_s=answer.expires_unix_s,
        )

    def _drop_if_over(self, membership: Membership) -> None:
        svid = self._svids.get(membership)
        if svid is not None and svid.expires_unix_s <= self._unix_s():
            del self._svids[membership]
            self._tell([membership.endpoint])
