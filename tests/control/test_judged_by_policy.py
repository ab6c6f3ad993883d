"""What a judgement leads to: the tier of the policy in force, and only of that one."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest
from grpc import aio

from ztdpu.control.doors.hub import REVOCATIONS_WAITING_LIMIT, Outbox, RevocationPush, RotatePush
from ztdpu.control.run import SWEEP_S, ControlProcess
from ztdpu.control.source import load_desired
from ztdpu.model.device import DeviceState

NIC_FIRMWARE = re.compile(r"(component: nic-firmware\n +digests:\n) +- ([0-9a-f]{128})")


def declare_vulnerable(plant: Any) -> None:
    """The NIC firmware that devices run was good once."""
    file = plant.policy_dir / "attestation" / "bluefield-3.yaml"
    text = NIC_FIRMWARE.sub(rf"\1        - {'ab' * 64}\n      vulnerableDigests:\n        - \2", file.read_text())
    file.write_text(text)
    assert "vulnerableDigests" in text


def lease_warnings(plant: Any) -> None:
    file = plant.policy_dir / "attestation" / "standard.yaml"
    file.write_text(file.read_text().replace("[affirming]", "[affirming, warning]"))


async def test_a_warning_that_gets_no_lease_stays_a_warning(plant: Any, admin: Any, make_agent: Any) -> None:
    declare_vulnerable(plant)
    assert not (await admin.sync_policy()).faults
    agent = await make_agent()
    result = await agent.attest()
    assert (result.state, result.HasField("lease")) == (DeviceState.WARNING, False)
    await asyncio.sleep(3 * SWEEP_S)  # nothing is to happen in three sweeps; before, the first made it stale
    device = await admin.get_device("dpu-0")
    assert device.state is DeviceState.WARNING
    assert device.lease_s == 0


async def test_a_warning_that_gets_no_lease_keeps_its_identity(
    plant: Any, admin: Any, make_agent: Any, process: ControlProcess
) -> None:
    """As the table of states says: manageable, with a new SVID when one is due, and nothing else."""
    agent = await make_agent()
    assert (await agent.attest()).HasField("lease")
    with process.fleet.transaction() as transaction:
        highest = transaction.get_highest_versions("dpu-0")
    declare_vulnerable(plant)
    assert not (await admin.sync_policy()).faults
    assert not (await admin.get_device("dpu-0")).lease_s
    results = [await agent.attest(begin=agent.begin(offer_signature=b"")) for _ in range(2)]
    assert [(one.state, one.HasField("lease"), len(one.svid)) for one in results] == [
        (DeviceState.WARNING, False, 1)
    ] * 2
    assert not (await agent.attest()).svid  # it is new enough
    record = process.fleet.record("dpu-0")
    assert (record.lease_deadline_ns, record.lease_boot_id) == (0, "")
    with process.fleet.transaction() as transaction:
        assert transaction.get_highest_versions("dpu-0") == highest


async def test_who_refuses_the_tier_is_named(plant: Any, admin: Any, make_agent: Any, process: ControlProcess) -> None:
    """One tenant that bears the warning is enough for a lease; whose keys are withheld, and why, stands beside it."""
    declare_vulnerable(plant)
    tolerant = plant.policy_dir / "attestation" / "tolerant.yaml"
    text = (plant.policy_dir / "attestation" / "standard.yaml").read_text()
    tolerant.write_text(text.replace("name: standard", "name: tolerant").replace("[affirming]", "[affirming, warning]"))
    agent = await make_agent()
    there = process.fleet.desired.tenants_on("dpu-0")
    assert len(there) > 1

    async def attest_with_tolerant(*tenants: str) -> tuple[bool, str]:
        for tenant in tenants:
            file = plant.policy_dir / "tenants" / f"{tenant}.yaml"
            file.write_text(file.read_text().replace("appraisalPolicy: standard", "appraisalPolicy: tolerant"))
        assert not (await admin.sync_policy()).faults
        is_leased = (await agent.attest()).HasField("lease")
        conditions = {one.name: one for one in (await admin.get_device("dpu-0")).conditions}
        return is_leased, conditions["leased"].reason

    names = ", ".join(there)
    assert await attest_with_tolerant() == (
        False,
        f"warning: policy gives this tier no lease: tenants {names} on this device",
    )
    is_leased, reason = await attest_with_tolerant(*there[:-1])
    assert is_leased
    assert f"no keys of {there[-1]}: tenant {there[-1]} refuses the tier; " in reason
    withheld = {name: (await admin.get_tenant(name)).withheld for name in there}
    assert withheld[there[-1]] == ("dpu-0: the tenant's AppraisalPolicy does not allow tier warning",)
    assert not any(withheld[name] for name in there[:-1])
    is_leased, reason = await attest_with_tolerant(there[-1])
    assert is_leased
    assert "no keys" not in reason
    assert not (await admin.get_tenant(there[-1])).withheld


async def test_a_warning_enrols_nobody_without_a_lease(plant: Any, admin: Any, make_agent: Any) -> None:
    declare_vulnerable(plant)
    assert not (await admin.sync_policy()).faults
    agent = await make_agent()
    assert not (await agent.attest()).svid
    assert not (await admin.get_device("dpu-0")).device_id_sha256
    lease_warnings(plant)
    assert not (await admin.sync_policy()).faults
    assert len((await agent.attest()).svid) == 1


async def test_a_warning_that_the_policy_allows_is_leased(plant: Any, admin: Any, make_agent: Any) -> None:
    declare_vulnerable(plant)
    lease_warnings(plant)
    assert not (await admin.sync_policy()).faults
    result = await (await make_agent()).attest()
    assert (result.state, result.HasField("lease")) == (DeviceState.WARNING, True)


async def test_firmware_delisted_while_the_binding_is_awaited_is_not_leased(
    plant: Any, process: ControlProcess, make_agent: Any
) -> None:
    agent = await make_agent()

    def bind(nonce: bytes) -> Any:
        declare_vulnerable(plant)
        process.fleet.adopt(load_desired(process.spec, lowest_roster_serial=0), ())
        return agent.bind(nonce)

    with pytest.raises(aio.AioRpcError) as caught:
        await agent.attest(bind=bind)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "conflict")
    again = await agent.attest()
    assert (again.state, again.HasField("lease")) == (DeviceState.WARNING, False)


async def test_without_a_change_in_between_it_is_leased(make_agent: Any) -> None:
    assert (await (await make_agent()).attest()).HasField("lease")


async def test_a_sweep_that_fails_is_not_the_last(process: ControlProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = asyncio.Event()
    calls = 0

    def fail_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a defect")
        swept.set()

    monkeypatch.setattr(process.fleet, "sweep", fail_once)
    async with asyncio.timeout(10):
        await swept.wait()


def test_a_forced_rotation_is_not_replaced_by_an_easier_one() -> None:
    for first, second in ((True, False), (False, True)):
        outbox = Outbox()
        outbox.put(RotatePush(force=first))
        outbox.put(RotatePush(force=second))
        assert asyncio.run(outbox.get()) == RotatePush(force=True)


async def test_an_agent_that_reads_no_revocations_is_hung_up_on(
    process: ControlProcess, make_agent: Any, open_stream: Any
) -> None:
    agent = await make_agent()
    await agent.attest()
    await open_stream(agent)
    async with asyncio.timeout(10):
        while not process.hub.list():
            await asyncio.sleep(0.01)
    push = RevocationPush(generation=1, device="dpu-1", ueid=b"", cause="test", sealed_epoch_keys=b"")
    sent = 0
    while process.hub.deliver("dpu-0", push):  # without a pause: the stream has no turn to read
        sent += 1
        assert sent <= REVOCATIONS_WAITING_LIMIT
    assert not process.hub.list()
