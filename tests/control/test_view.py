"""What admins see of a device whose evidence is late, and of its endpoints."""

from __future__ import annotations

import asyncio
from typing import Any

from ztdpu.control.run import ControlProcess


async def test_late_evidence_is_told_before_the_lease_ends(
    admin: Any, make_agent: Any, open_stream: Any, process: ControlProcess
) -> None:
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    await stream.send(status={"ready": True})
    async with asyncio.timeout(5):
        while (await admin.get_device("dpu-0")).waiting_for:
            await asyncio.sleep(0.02)
    device = await admin.get_device("dpu-0")
    assert device.appraised_unix_ms
    process.fleet.attestation_interval_ms = 0
    async with asyncio.timeout(5):
        while "not attested for" not in (await admin.get_device("dpu-0")).waiting_for:
            await asyncio.sleep(0.1)
    assert (await admin.get_device("dpu-0")).lease_s > 0


async def test_endpoints_are_ready_with_their_device(
    admin: Any, make_agent: Any, open_stream: Any, process: ControlProcess
) -> None:
    assert not any(one.ready for one in await admin.list_endpoints())
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    revision = process.fleet.desired.tables["dpu-0"].revision
    await stream.send(status={"ready": True, "applied_revision": revision})
    async with asyncio.timeout(5):
        while not (await admin.get_device("dpu-0")).ready:
            await asyncio.sleep(0.02)
    ready = {one.device for one in await admin.list_endpoints() if one.ready}
    assert ready == {"dpu-0"}
