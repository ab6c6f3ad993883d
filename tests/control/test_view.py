"""What admins see of a device whose evidence is late, and of its endpoints."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ztdpu.control.doors.authorisation import Access, Caller, Role, Scope
from ztdpu.control.run import ControlProcess
from ztdpu.control.view import view_device, view_device_for


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


async def test_conditions_say_since_when_why_and_what_comes_next(make_agent, open_stream, admin) -> None:
    before = {one.name: one for one in (await admin.get_device("dpu-0")).conditions}
    assert list(before) == [
        "enrolled", "attested", "bound", "identity", "leased", "connected", "policy", "keys", "ready",
    ]  # fmt: skip
    assert not any(one.met for one in before.values())
    assert "join token" in before["enrolled"].next
    agent = await make_agent()
    await agent.attest()
    await open_stream(agent)
    status = await admin.get_device("dpu-0")
    after = {one.name: one for one in status.conditions}
    assert [name for name, one in after.items() if not one.met] == ["policy", "keys", "ready"]
    assert status.next == after["leased"].next == "stale without fresh evidence"
    assert 50_000 < status.deadline_unix_ms - time.time() * 1000 <= 60_000
    assert after["identity"].deadline_unix_ms > status.deadline_unix_ms
    assert "should enforce" in after["policy"].reason
    await admin.revoke_device("dpu-0", reason="stolen")
    status = await admin.get_device("dpu-0")
    assert (status.deadline_unix_ms, status.next) == (0, "stays revoked until an operator restores it")
    revoked = {one.name: one for one in status.conditions}
    assert "stolen" in revoked["leased"].reason
    assert not revoked["identity"].met
    assert not revoked["bound"].met


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


async def test_a_tenants_admin_sees_own_tenants_only_on_a_shared_device(
    make_agent: Any, open_stream: Any, process: ControlProcess
) -> None:
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    fleet = process.fleet
    epochs = {network.network_id.hex(): 1 for network in fleet.desired.networks.values()}
    await stream.send(status={"key_epochs": epochs, "packets_by_reason": {"no_lease": 7}, "sealed_packets": 5})
    async with asyncio.timeout(5):
        while not view_device(fleet, "dpu-0").key_epochs:
            await asyncio.sleep(0.02)
    whole = view_device(fleet, "dpu-0")
    assert len(whole.tenants) > 1
    caller = Caller(role=Role.TENANT_ADMIN, name="x", tenants=frozenset({"blue"}))
    seen = view_device_for(fleet, "dpu-0", Access(caller=caller, scope=Scope.TENANT))
    assert (seen.tenants, seen.key_epochs) == (("blue",), {"blue": 1})
    assert (seen.packets_by_reason, seen.sealed_packets, seen.opened_packets, seen.reason) == ({}, 0, 0, "")
    assert (seen.state, seen.ready, seen.lease_s > 0) == (whole.state, whole.ready, True)
    auditor = Access(caller=Caller(role=Role.AUDITOR, name="x"), scope=Scope.ALL)
    assert view_device_for(fleet, "dpu-0", auditor).packets_by_reason == {"no_lease": 7}
