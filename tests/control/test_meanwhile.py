"""What happens to a device between the nonce and the grant wins, on real streams: nothing is granted on what was."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from ztdpu.control.run import ControlProcess
from ztdpu.model.device import DeviceState
from ztdpu.trust.spdm.messages import Code
from ztdpu.v1 import attestation_pb2, attestation_pb2_grpc

UP_TO_DATE = 1 << 50
LAST_ANSWER, BINDING = "last answer", "binding"


async def attest(agent: Any, *, before: str, act: Callable[[], Awaitable[object]]) -> grpc.StatusCode | Any:
    """One attestation; `act` comes before the last SPDM answer or before the binding. Its result, or its code."""
    async with agent.channel(agent.process.enrolment_port, mutual=False) as channel:
        call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
        await call.write(agent.begin())
        try:
            while (response := await call.read()) is not aio.EOF:
                match response.WhichOneof("step"):
                    case "spdm":
                        answer = attestation_pb2.AttestRequest(spdm=agent.root.spdm(response.spdm))
                        if before == LAST_ANSWER and response.spdm[1] == Code.GET_MEASUREMENTS:
                            await act()
                    case "bind":
                        answer = agent.bind(response.bind.nonce)
                        if before == BINDING:
                            await act()
                    case _:
                        return response.result
                await call.write(answer)
        except aio.AioRpcError as error:
            return error.code()
        return await call.code()


@pytest.mark.parametrize("before", [LAST_ANSWER, BINDING])
@pytest.mark.parametrize("what", ["quarantine", "revoke", "revoke and restore", "policy"])
async def test_what_an_operator_does_meanwhile_wins(
    before: str, what: str, plant: Any, admin: Any, make_agent: Any, process: ControlProcess
) -> None:
    agent = await make_agent(applied_generation=UP_TO_DATE)
    assert (await agent.attest()).HasField("lease")
    agent.token = ""
    agent.reboot()

    async def act() -> None:
        if what == "policy":
            file = plant.policy_dir / "attestation" / "standard.yaml"
            file.write_text(file.read_text().replace("[affirming]", "[affirming, warning]"))
            assert not (await admin.sync_policy()).faults
        elif what == "quarantine":
            await admin.quarantine_device("dpu-0", reason="odd")
        else:
            await admin.revoke_device("dpu-0", reason="stolen")
        if what == "revoke and restore":
            await admin.restore_device("dpu-0", reason="found again")

    bound = process.fleet.binding("dpu-0")
    ended = await attest(agent, before=before, act=act)
    leaves = [json.loads(one.leaf) for one in await admin.list_audit()]
    refused = [leaf["reason"] for leaf in leaves if (leaf["action"], leaf["outcome"]) == ("attest", "refused")]
    if what == "policy" and before == LAST_ANSWER:  # judged by the new one, which says the same
        assert ended.HasField("lease")
        assert refused == []
        return
    assert ended is grpc.StatusCode.ABORTED
    assert refused == ["conflict"]
    assert process.fleet.binding("dpu-0") is (None if "revoke" in what else bound)
    assert not process.fleet.is_leased("dpu-0") or what == "policy"
    if what in ("quarantine", "revoke"):
        await admin.restore_device("dpu-0", reason="found again")
    assert process.fleet.record("dpu-0").state in (DeviceState.PENDING, DeviceState.AFFIRMING)
    agent.reboot()
    assert (await agent.attest()).HasField("lease"), "and the way back is open"
