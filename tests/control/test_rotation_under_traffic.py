"""Authorities that live a minute, SVIDs that live ten seconds, a rotation in between: nobody notices.

Control is a process of its own; the agents here are the agent's own attester, uplink and identity keeper without a
worker (`lab.bench.simulated`). Checks are real: a fresh mutual handshake with each agent's present identity and bundle.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ztdpu.errors import StateError, ZtdpuError
from ztdpu.lab.bench.plant import Plant, build_plant, running_control
from ztdpu.lab.bench.simulated import SimulatedDevice
from ztdpu.rpc.client import ControlClient

AGENTS = 4


@dataclass
class World:
    plant: Plant
    pid: int
    client: ControlClient
    agents: list[SimulatedDevice]
    losses: list[str] = field(default_factory=list)

    async def ask(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return await asyncio.to_thread(call, *arguments, **keywords)

    async def step(self, step: str, *, force: bool = False, limit_s: float = 30) -> Any:
        """Take a step as soon as nobody lags."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return await self.ask(self.client.rotate_authority, step, reason="test", force=force)
            except StateError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def devices(self) -> list[Any]:
        found = (await self.ask(self.client.list_identities)).identities
        return [one for one in found if str(one.kind) == "device"]


@asynccontextmanager
async def world(folder: Path, *, interval_s: float, svid_s: int, **spec: Any) -> AsyncIterator[World]:
    timing = {"intervalS": interval_s, "leaseS": max(2 * interval_s, 10), "svidS": svid_s}
    plant = build_plant(folder, devices=AGENTS, attestation=timing, pinned=True, **spec)
    control = running_control(plant)
    process = await asyncio.to_thread(control.__enter__)
    tasks: list[asyncio.Task[None]] = []
    agents = [SimulatedDevice(plant, name) for name in plant.devices]
    try:
        with plant.client() as client:
            for one in agents:
                await one.attest()
                one.connect()
                async with asyncio.timeout(20):
                    await one.opened.wait()
            tasks = [asyncio.create_task(one.keep(interval_s)) for one in agents]
            yield World(plant, process.pid, client, agents)
            for task in tasks:
                assert task.cancelled() or not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        for one in agents:
            one.close()
        await asyncio.to_thread(control.__exit__, None, None, None)


async def check(agents: list[SimulatedDevice]) -> list[str]:
    """Faults of one round: each agent attests over a fresh connection, and opens its stream over another."""
    faults = []
    for one in agents:
        try:
            await one.attest()
            one.connect()
            async with asyncio.timeout(5):
                await one.opened.wait()
        except (ZtdpuError, TimeoutError) as error:
            faults.append(f"{one.name}: {error!r}")
    return faults


async def rotate_while_checked(folder: Path, *, for_s: float, checks: int) -> None:
    async with world(folder, interval_s=2, svid_s=10, authorityLifeS=60) as w:
        before = {one.authority for one in await w.devices()}
        good, faults = 0, []

        async def keep_checking() -> None:
            nonlocal good
            for _ in range(checks):
                found = await check(w.agents)
                faults.extend(found)
                good += AGENTS - len(found)
                await asyncio.sleep(for_s / checks)

        checking = asyncio.create_task(keep_checking())
        for step in ("prepare", "activate", "retire"):
            await w.step(step)
        await checking
        assert (good, faults) == (checks * AGENTS, [])
        assert [one.losses for one in w.agents] == [0] * AGENTS
        after = {one.authority for one in await w.devices()}
        assert len(before) == len(after) == 1
        assert before != after


async def test_a_rotation_under_traffic_loses_nothing(tmp_path: Path) -> None:
    await rotate_while_checked(tmp_path, for_s=8, checks=5)


@pytest.mark.soak
async def test_fifteen_checks_in_45_seconds_with_an_authority_of_60(tmp_path: Path) -> None:
    await rotate_while_checked(tmp_path, for_s=45, checks=15)


async def test_after_a_compromise_all_have_new_svids_within_20_seconds_and_the_old_authority_counts_nowhere(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, interval_s=4, svid_s=600) as w:
        old_pem = w.agents[0].keeper.trust.pem
        began = time.monotonic()
        await w.step("prepare")
        activated = await w.step("activate", force=True)
        await w.step("retire")
        assert time.monotonic() - began < 20
        assert {one.authority for one in await w.devices()} == {activated.authority}
        assert all(old_pem not in one.keeper.trust.pem for one in w.agents)
        # Each took the bundle to disk: a restart would not go back.
        for one in w.agents:
            kept = json.loads((w.plant.agents / one.name / "bundle.json").read_text())
            assert len(json.loads(kept["document"])["keys"]) == 2  # the authority, and the key of JWT-SVIDs
        assert await check(w.agents) == []


async def test_control_that_stood_still_past_every_svid_is_followed_again_without_anybody(tmp_path: Path) -> None:
    async with world(tmp_path, interval_s=1, svid_s=5) as w:
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "SimulatedDevice.keep":
                task.cancel()  # the devices stand still too
        os.kill(w.pid, signal.SIGSTOP)
        await asyncio.sleep(11)
        os.kill(w.pid, signal.SIGCONT)
        began, faults = time.monotonic(), ["not asked yet"]
        while faults and time.monotonic() - began < 15:
            faults = await check(w.agents)
            await asyncio.sleep(0.2)
        assert faults == []
