"""What a stranger can write into the audit log, and how fast join tokens can be guessed from one address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc import aio

from ztdpu.control.api import attestation
from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.doors import refusals
from ztdpu.control.doors.refusals import ADDRESS_BURST, ADDRESSES_LIMIT, SUMMARY_S, TOTAL_BURST, Refusals, address_of
from ztdpu.v1 import attestation_pb2_grpc

EVENT = AuditEvent(
    actor="unidentified", role="anyone", action="attest", subject="", outcome=AuditOutcome.REFUSED, reason="evidence"
)


@dataclass
class Watch:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def bounded(process: Any, watch: Watch) -> Refusals:
    return Refusals(process.fleet, process.meters, now_s=watch)


async def leaves(admin: Any) -> list[dict[str, Any]]:
    size = (await admin.status()).audit_size
    return [json.loads(entry.leaf) for entry in await admin.list_audit(first=0, limit=size)]


def untold(process: Any) -> float:
    return float(process.meters.registry.get_sample_value("ztdpu_refusals_summarised_total") or 0)


async def test_one_address_writes_its_burst_then_one_a_second(bounded, watch, admin, process) -> None:
    before = len(await leaves(admin))
    for _ in range(100):
        bounded.audit(EVENT, "ipv4:10.0.0.1:1")
    assert len(await leaves(admin)) - before == ADDRESS_BURST
    assert untold(process) == 100 - ADDRESS_BURST
    bounded.audit(EVENT, "ipv4:10.0.0.2:1")
    assert len(await leaves(admin)) - before == ADDRESS_BURST + 1, "another address has a bucket of its own"
    watch.now_s += 3
    for _ in range(100):
        bounded.audit(EVENT, "ipv4:10.0.0.1:2")
    assert len(await leaves(admin)) - before == ADDRESS_BURST + 4


async def test_all_addresses_together_write_no_more_than_the_whole(bounded, admin) -> None:
    before = len(await leaves(admin))
    for number in range(ADDRESSES_LIMIT + 10):
        bounded.audit(EVENT, f"ipv4:10.1.{number // 256}.{number % 256}:1")
    assert len(await leaves(admin)) - before == TOTAL_BURST
    assert len(bounded._buckets) <= ADDRESSES_LIMIT


async def test_what_got_no_leaf_is_told_by_one_a_minute(bounded, watch, admin) -> None:
    bounded.sweep()
    assert not [leaf for leaf in await leaves(admin) if leaf["action"] == "summarise-refusals"], "nothing to tell"
    for _ in range(3):
        for _ in range(100):
            bounded.audit(EVENT, "ipv4:10.0.0.1:1")
        bounded.sweep()
        bounded.sweep()
        watch.now_s += SUMMARY_S / 2
    told = [leaf["detail"]["refusals"] for leaf in await leaves(admin) if leaf["action"] == "summarise-refusals"]
    assert told == [68, 70 + 70]


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:55", "ipv4:10.0.0.1"), ("ipv6:%5Bfd00::1%5D:5", "ipv6:%5Bfd00::1%5D"), ("unix:", "unix:")],
)
def test_addresses(peer, address) -> None:
    assert address_of(peer) == address


# --- over the wire ---


@pytest.fixture
async def other_address(process) -> AsyncIterator[int]:
    """A port that carries octets to the enrolment port from 127.0.0.2."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while octets := await source.read(65536):
            sink.write(octets)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", process.enrolment_port, local_addr=("127.0.0.2", 0))
        await asyncio.gather(carry(reader, inner[1]), carry(inner[0], writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def refusal(agent: Any, port: int) -> grpc.StatusCode:
    async with agent.channel(port, mutual=False) as channel:
        call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
        await call.write(agent.begin())
        with pytest.raises(aio.AioRpcError) as refused:
            await call.read()
        return refused.value.code()


async def test_guesses_are_slow_and_hold_nobody_else_up(make_agent, admin, process, other_address, monkeypatch) -> None:
    monkeypatch.setattr(refusals, "ADDRESS_RATE_PER_S", 0.01)
    right = await make_agent()
    guesser = await make_agent(token=False)
    codes = []
    for number in range(40):
        guesser.token = f"guess-{number}"
        codes.append(await refusal(guesser, process.enrolment_port))
    tried = int(ADDRESS_BURST)
    assert codes == [grpc.StatusCode.PERMISSION_DENIED] * tried + [grpc.StatusCode.UNAVAILABLE] * (40 - tried)
    assert untold(process) == 40 - tried
    # even the right token is not looked at from there, and is not spent; from elsewhere it counts
    assert await refusal(right, process.enrolment_port) is grpc.StatusCode.UNAVAILABLE
    assert (await through(right, other_address)).state == "affirming"
    # an enrolled device is not held up by its neighbour's guesses
    assert (await right.attest()).state == "affirming"


async def through(agent: Any, port: int) -> Any:
    """Attest by way of another port."""
    process = agent.process
    agent.process = type("By", (), {"enrolment_port": port, "issuer": process.issuer})
    try:
        return await agent.attest()
    finally:
        agent.process = process


async def test_an_attestation_that_takes_too_long_is_audited_and_counted(
    make_agent, admin, process, monkeypatch
) -> None:
    agent = await make_agent()
    monkeypatch.setattr(attestation, "STREAM_LIMIT_S", 0.3)
    async with agent.channel(process.enrolment_port, mutual=False) as channel:
        call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
        await call.write(agent.begin())
        assert (await call.read()).spdm
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    last = (await leaves(admin))[-1]
    assert (last["action"], last["subject"], last["outcome"], last["reason"]) == (
        "attest",
        "dpu-0",
        "refused",
        "deadline",
    )
    count = ("ztdpu_attestations_total", {"result": "deadline"})
    assert process.meters.registry.get_sample_value(*count) == 1
    monkeypatch.undo()
    assert (await agent.attest()).state == "affirming"
    assert process.meters.registry.get_sample_value(*count) == 1
