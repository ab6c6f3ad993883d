"""`policy sync`: all or nothing, tables pushed to whom they concern, the last good policy kept."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any

import pytest

from ztdpu.control.run import ControlProcess
from ztdpu.control.source import load_desired
from ztdpu.errors import PolicyRefusedError
from ztdpu.model.device import DeviceState


async def test_fault_keeps_the_last_good_policy(plant: Any, admin: Any) -> None:
    before = await admin.policy_status()
    broken = plant.policy_dir / "tenants" / "blue.yaml"
    good = broken.read_text()
    broken.write_text(good.replace("suite:", "suit:"))
    answer = await admin.sync_policy()
    assert answer.faults
    assert answer.faults[0].where.file.endswith("blue.yaml")
    assert answer.faults[0].where.line
    assert not answer.changed_devices
    status = await admin.policy_status()
    assert [one.revision_wanted for one in status.devices] == [one.revision_wanted for one in before.devices]
    assert status.faults
    broken.write_text(good)
    answer = await admin.sync_policy()
    assert not answer.faults
    assert not answer.changed_devices


async def test_lease_that_cannot_be_kept_is_refused_with_its_line(plant: Any, admin: Any) -> None:
    tenant = plant.policy_dir / "tenants" / "blue.yaml"
    good = tenant.read_text()
    for lease_s, refused in ((2, False), (60, False)):  # two intervals of 1 s are just enough
        tenant.write_text(_with_lease(good, lease_s))
        assert bool((await admin.sync_policy()).faults) is refused


def test_lease_below_two_intervals(plant: Any) -> None:
    tenant = plant.policy_dir / "tenants" / "blue.yaml"
    tenant.write_text(_with_lease(tenant.read_text(), 15))
    document = plant.configuration().model_dump(by_alias=True)
    document["spec"]["attestation"] |= {"intervalS": 8}
    spec = type(plant.configuration()).model_validate(document).spec
    with pytest.raises(PolicyRefusedError) as caught:
        load_desired(spec, lowest_roster_serial=0)
    (fault,) = caught.value.faults
    assert "two attestation intervals" in fault.message
    assert fault.where is not None
    assert tenant.read_text().splitlines()[fault.where.line - 1].strip() == "leaseS: 15"


def _with_lease(text: str, lease_s: int) -> str:
    kept = "\n".join(line for line in text.splitlines() if "leaseS" not in line)
    return kept.replace("spec:", f"spec:\n  leaseS: {lease_s}") + "\n"


async def test_changed_rule_reaches_the_devices(plant: Any, admin: Any, make_agent: Any, open_stream: Any) -> None:
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    first = (await stream.receive("config")).config
    policy = plant.policy_dir / "network" / "blue.yaml"
    policy.unlink()
    answer = await admin.sync_policy()
    assert set(answer.changed_devices) == {"dpu-0", "dpu-1"}
    second = (await stream.receive("config")).config
    assert second.generation > first.generation
    assert second.revision != first.revision
    assert hashlib.sha256(second.tables).digest() == second.revision


async def test_roster_must_be_signed_and_never_goes_back(plant: Any, admin: Any) -> None:
    plant.serial = 5
    plant.sign_roster()
    assert not (await admin.sync_policy()).faults
    assert (await admin.status()).roster_serial == 5
    plant.serial = 4
    plant.sign_roster()
    assert (await admin.sync_policy()).faults
    plant.serial = 6
    plant.sign_roster()
    (plant.folder / "roster.sig").write_text("nonsense")
    assert (await admin.sync_policy()).faults
    assert (await admin.status()).roster_serial == 5


async def test_control_does_not_start_on_a_broken_policy(plant: Any) -> None:
    (plant.policy_dir / "broken.yaml").write_text("kind: Nonsense\n")
    process = ControlProcess(plant.configuration())
    with pytest.raises(PolicyRefusedError):
        await process.start()


async def test_new_reference_values_appraise_stored_evidence_at_once(plant: Any, admin: Any, make_agent: Any) -> None:
    agent = await make_agent()
    await agent.attest()
    references = plant.policy_dir / "attestation" / "bluefield-3.yaml"
    good = references.read_text()
    digest = re.search(r"[0-9a-f]{128}", good)
    assert digest
    references.write_text(good.replace(digest[0], "ab" * 64))
    assert not (await admin.sync_policy()).faults
    device = await admin.get_device("dpu-0")
    assert (device.state, device.lease_s) == (DeviceState.CONTRAINDICATED, 0)
    assert (await admin.get_attestation("dpu-0")).findings
    references.write_text(good)
    await admin.sync_policy()
    agent.binding = b""
    assert (await agent.attest()).state == "affirming"


async def test_device_that_leaves_a_network_does_not_know_its_next_key(plant: Any, admin: Any) -> None:
    endpoints = plant.policy_dir / "endpoints" / "red.yaml"
    endpoints.write_text(endpoints.read_text().split("---")[0])
    assert "device: dpu-1" not in endpoints.read_text()
    assert not (await admin.sync_policy()).faults
    epochs = {key.tenant: (key.epoch, key.cause) for key in await admin.list_keys()}
    assert epochs["red"] == (2, "a device left the network")
    assert epochs["blue"][0] == 1


async def test_reload_is_a_sync_and_never_fails(plant: Any, admin: Any, process: ControlProcess) -> None:
    broken = plant.policy_dir / "tenants" / "blue.yaml"
    good = broken.read_text()
    broken.write_text(good.replace("suite:", "suit:"))
    await reload(process)
    assert (await admin.policy_status()).faults, "the last good policy stays, and the faults are told"
    broken.write_text(good)
    before = (await admin.policy_status()).generation
    await reload(process)
    status = await admin.policy_status()
    assert not status.faults
    assert status.generation > before
    actors = [str(entry.leaf) for entry in await admin.list_audit()]
    assert sum("operator:SIGHUP" in leaf for leaf in actors) == 2
    (plant.folder / "roster.cbor").rename(plant.folder / "elsewhere")
    await reload(process)
    assert not (await admin.policy_status()).faults


async def test_a_failed_policy_test_is_a_fault(plant: Any, admin: Any) -> None:
    test = "apiVersion: ztdpu.dev/v1\nkind: PolicyTest\nmetadata: {name: apart}\nspec:\n  flows:\n"
    (plant.policy_dir / "tests.yaml").write_text(f"{test}    - {{from: red-0, to: blue-0, port: any, expect: drop}}\n")
    assert not (await admin.sync_policy()).faults
    (plant.policy_dir / "tests.yaml").write_text(f"{test}    - {{from: red-0, to: blue-0, port: any, expect: allow}}\n")
    [fault] = (await admin.sync_policy()).faults
    assert "apart" in fault.message
    assert (fault.where.file, fault.where.line) == (str(plant.policy_dir / "tests.yaml"), 6)


async def reload(process: ControlProcess) -> None:
    """As SIGHUP does; returns when it is done."""
    process.reload()
    await next(task for task in asyncio.all_tasks() if task.get_name() == "reload")
