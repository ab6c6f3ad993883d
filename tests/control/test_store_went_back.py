"""A store that was put back from a backup is noticed at the start: no lease of it counts, and it is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import Agent
from ztdpu.control.generation_floor import FLOOR_FILE, GenerationFloor
from ztdpu.control.run import ControlProcess
from ztdpu.errors import ConfigurationError
from ztdpu.model.device import DeviceState
from ztdpu.rpc.client import ControlClient

STORE = ("control.db", "control.db-wal", "control.db-shm")


def copy_store(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in STORE:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy2(source / name, target / name)


async def test_a_backup_within_one_boot_makes_every_device_stale(plant: Any) -> None:
    process = ControlProcess(plant.configuration())
    await process.start()
    state = plant.folder / "state"
    agent = await enrolled(plant, process)
    backup = plant.folder / "backup"
    await process.stop()
    copy_store(state, backup)

    # Positive twin: the same store, started again in the same boot, keeps its leases.
    process = ControlProcess(plant.configuration())
    await process.start()
    assert process.fleet.record("dpu-0").state is DeviceState.AFFIRMING
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        await call(client.revoke_device, "dpu-1", reason="stolen")
    reached = process.fleet.generation
    await process.stop()

    copy_store(backup, state)
    process = ControlProcess(plant.configuration())
    await process.start()
    record = process.fleet.record("dpu-0")
    assert record.state is DeviceState.STALE
    assert "went back" in record.reason
    assert process.fleet.generation > reached
    with process.fleet.transaction() as transaction:
        leaves = [json.loads(one.leaf) for one in transaction.list_audit(first=0, limit=1000)]
    assert [leaf["detail"]["reached"] for leaf in leaves if leaf["action"] == "store-went-back"] == [reached]
    agent.process = process
    assert (await agent.attest()).state == "affirming"  # fresh evidence mends it, by itself
    await process.stop()


async def test_the_floor_may_stand_outside_of_what_is_backed_up(plant: Any) -> None:
    document = plant.configuration().model_dump(by_alias=True)
    document["spec"]["floorFile"] = plant.folder / "elsewhere.floor"
    process = ControlProcess(type(plant.configuration()).model_validate(document))
    await process.start()
    assert GenerationFloor(plant.folder / "elsewhere.floor").read() == process.fleet.generation
    assert not (plant.folder / "state" / FLOOR_FILE).exists()
    await process.stop()


def test_floor_file(tmp_path: Path, capsys: Any) -> None:
    floor = GenerationFloor(tmp_path / "floor")
    assert floor.read() == 0
    floor.raise_to(12)
    assert floor.read() == 12
    file = (tmp_path / "floor").stat().st_ino
    floor.raise_to(1_764_000_000_000)
    assert (floor.read(), (tmp_path / "floor").stat().st_ino) == (1_764_000_000_000, file)  # written over
    (tmp_path / "floor").write_text("13\n")  # as versions before wrote it
    assert floor.read() == 13
    floor.raise_to(14)
    assert floor.read() == 14
    (tmp_path / "floor").write_text("twelve")
    with pytest.raises(ConfigurationError, match="damaged"):
        floor.read()
    GenerationFloor(tmp_path / "nowhere" / "floor").raise_to(1)  # logged; the store has the change


async def enrolled(plant: Any, process: ControlProcess) -> Agent:
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        token = (await call(client.create_join_token, "dpu-0")).token
    agent = Agent("dpu-0", process, plant.secrets["dpu-0"], token=token)
    assert (await agent.attest()).state == "affirming"
    return agent


async def call(method: Any, *arguments: Any, **keywords: Any) -> Any:
    import asyncio

    return await asyncio.to_thread(method, *arguments, **keywords)
