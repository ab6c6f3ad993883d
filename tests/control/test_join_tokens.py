"""Join tokens: fifty at once enrol one, guesses are slowed down before anything is looked at."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from grpc import aio

from ztdpu.control.doors.refusals import ADDRESS_BURST, ADDRESS_RATE_PER_S
from ztdpu.v1 import attestation_pb2_grpc


async def end_of(agent) -> str:
    """`granted`, another state word, or how gRPC refused it."""
    try:
        result = await agent.attest()
    except aio.AioRpcError as error:
        return error.code().name
    except AssertionError as error:
        return str(error)
    return "granted" if result.svid else result.state


async def test_fifty_racers_with_one_token_make_one_enrolment(make_bare_agent, process, admin) -> None:
    token = (await admin.create_join_token("dpu-0")).token
    racers = [make_bare_agent("dpu-0", process) for _ in range(50)]
    for one in racers:
        one.token = token
    ends = await asyncio.gather(*(end_of(one) for one in racers))
    assert ends.count("granted") == 1, ends
    enrolled = [one for one, end in zip(racers, ends, strict=True) if end == "granted"]
    binding = process.fleet.binding("dpu-0")
    assert binding is not None
    assert binding.tls_spki_sha256 == enrolled[0].keys.tls_spki_sha256


async def guess(agent, channel, number: int) -> grpc.StatusCode:
    """One guess, as far as its first answer."""
    agent.token = f"guess-{number:08d}-{'x' * 27}"
    call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
    try:
        await call.write(agent.begin())
        if await call.read() is not aio.EOF:
            call.cancel()
            return grpc.StatusCode.OK
    except aio.AioRpcError:
        pass
    return await call.code()


@pytest.mark.parametrize("guesses", [150, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_guesses_are_slowed_down(guesses, make_bare_agent, process) -> None:
    agent = make_bare_agent("dpu-0", process)
    began = time.monotonic()
    async with agent.channel(process.enrolment_port, mutual=False) as channel:
        codes = [await guess(agent, channel, number) for number in range(guesses)]
    looked_at = sum(code is not grpc.StatusCode.UNAVAILABLE for code in codes)
    assert grpc.StatusCode.OK not in codes
    assert 0 < looked_at <= ADDRESS_BURST + ADDRESS_RATE_PER_S * (time.monotonic() - began) + 1
    assert len(codes) - looked_at > guesses / 2
