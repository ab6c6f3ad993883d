"""A sidecar served on real sockets, with a control that signs with a real authority in the same process."""

import asyncio
import secrets
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key
from grpc import aio

from ztdpu.agent.sidecar.identities import Membership
from ztdpu.agent.sidecar.server import Sidecar
from ztdpu.trust.jwt_svid import issue_jwt_svid, jwt_bundle
from ztdpu.trust.spiffe_id import parse_spiffe_id
from ztdpu.trust.svid import BACKDATING, create_authority, issue_svid
from ztdpu.v1 import agent_pb2, sidecar_pb2_grpc
from ztdpu.workloadapi import workload_pb2_grpc

TRUST_DOMAIN = "test.example"
HEADER = (("workload.spiffe.io", "true"),)
FAR_NS = 1 << 62


class Ground:
    """The sidecar of a device with endpoint blue-0, and control on the other side of its stream."""

    def __init__(self, folder):
        self.folder = folder
        self.sidecar = Sidecar(folder, self.send)
        self.authority = create_authority(
            TRUST_DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP384R1()), secrets.randbits(100)
        )
        self.jwt_key = ec.generate_private_key(ec.SECP256R1())
        self.ttl_s = 60
        self.connected = True
        self.refusal = ""
        self.requests = []
        self.memberships = (Membership(endpoint="blue-0", tenant="blue"),)
        self.channels = []

    def send(self, message):
        if not self.connected:
            return False
        self.requests.append(message.workload)
        asyncio.get_running_loop().call_soon(self.answer, message.workload)
        return True

    def answer(self, request):
        if self.refusal:
            self.say(workload_answer=agent_pb2.WorkloadAnswer(number=request.number, refusal=self.refusal))
            return
        now = datetime.now(UTC)
        expires = now + timedelta(seconds=self.ttl_s)
        answer = agent_pb2.WorkloadAnswer(number=request.number, expires_unix_s=int(expires.timestamp()))
        match request.WhichOneof("action"):
            case "x509":
                answer.spiffe_id = self.identity(request.endpoint, request.x509.job)
                key = load_der_public_key(request.x509.public_key)
                path = parse_spiffe_id(answer.spiffe_id).path
                answer.x509_svid.extend(
                    issue_svid(
                        self.authority, trust_domain=TRUST_DOMAIN, path=path, public_key=key,
                        not_before=now - BACKDATING, not_after=expires, serial=secrets.randbits(100),
                    )
                )  # fmt: skip
            case "jwt":
                answer.spiffe_id = self.identity(request.endpoint, request.jwt.job)
                answer.jwt_svid = issue_jwt_svid(
                    key=self.jwt_key, spiffe_id=parse_spiffe_id(answer.spiffe_id),
                    audience=list(request.jwt.audience), now=now, ttl_s=self.ttl_s,
                )  # fmt: skip
            case "join":
                job = Membership(
                    endpoint="blue-0", tenant="blue", job="train", rank=request.join.rank, world_size=4, epoch=1
                )
                self.memberships = (*self.memberships, job)
                self.tell()
                answer.spiffe_id = self.identity("blue-0", "train")
        self.say(workload_answer=answer)

    def identity(self, endpoint, job):
        found = [one for one in self.memberships if (one.endpoint, one.job) == (endpoint, job)]
        return found[0].spiffe_id(TRUST_DOMAIN)

    def say(self, **message):
        assert self.sidecar.accept(agent_pb2.ControlMessage(**message))

    def tell(self, *, authorities=()):
        """Send the list of identities and bundles, as control does."""
        der = self.authority.certificate.public_bytes(Encoding.DER)
        self.say(
            workloads=agent_pb2.Workloads(
                trust_domain=TRUST_DOMAIN,
                authorities=[der, *authorities],
                jwt_bundle=jwt_bundle([self.jwt_key.public_key()]),
                memberships=[
                    agent_pb2.WorkloadMembership(
                        endpoint=one.endpoint, tenant=one.tenant, job=one.job, rank=one.rank,
                        world_size=one.world_size, epoch=one.epoch,
                    )
                    for one in self.memberships
                ],
            )
        )  # fmt: skip

    def lease(self, deadline_ns=FAR_NS):
        self.sidecar.book.set_lease(deadline_ns)

    @property
    def socket(self):
        return self.folder / "blue-0" / "api.sock"

    async def wait(self, condition, *, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            await asyncio.sleep(0.01)

    def channel(self):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
        self.channels.append(aio.insecure_channel(f"unix:{self.socket}", options=options))
        return self.channels[-1]

    @property
    def workload(self):
        return workload_pb2_grpc.SpiffeWorkloadAPIStub(self.channel())

    @property
    def service(self):
        return sidecar_pb2_grpc.SidecarServiceStub(self.channel())

    async def ready(self):
        """Serve blue-0 with a lease and an SVID."""
        self.sidecar.set_endpoints(["blue-0"])
        await self.wait(self.socket.exists)
        self.lease()
        self.tell()
        await self.wait(lambda: self.sidecar.book.view("blue-0").svids)


@asynccontextmanager
async def standing(folder):
    ground = Ground(folder)
    try:
        yield ground
    finally:
        for channel in ground.channels:
            with suppress(asyncio.CancelledError):
                await channel.close()
        await ground.sidecar.close()
