"""One control and many agents' streams: memory, mutual handshakes a second, and how long a push takes to the last.

Control is a process of its own; the agents share another one. The push is a new bundle, which every agent must have.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from ztdpu.lab.bench.figures import percentile
from ztdpu.lab.bench.plant import Plant, build_plant, cpu_s, running_control
from ztdpu.lab.bench.simulated import SimulatedDevice, in_parallel, quiet_agents
from ztdpu.model.identity import RotationStep

SIZES: Final = (100, 300, 1000)
HANDSHAKES_AT_ONCE: Final = 50
OPEN_LIMIT_S: Final = 60.0
PUSH_LIMIT_S: Final = 30.0
SETTLE_S: Final = 1.0
"""Until control has taken what agents said last."""
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - below it the bench makes a directory that nobody else can enter
STEPS: Final = (RotationStep.PREPARE, RotationStep.ACTIVATE, RotationStep.RETIRE)
"""One for each size: every step of a rotation is told to every agent."""


def measure(*, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """A row for each number of agents, rising, at most three."""
    with (
        tempfile.TemporaryDirectory(prefix="ztdpu-fleet-") as folder,
        # A thousand devices have a thousand disks: one disk here would be what is measured.
        tempfile.TemporaryDirectory(prefix="ztdpu-fleet-", dir=MEMORY if MEMORY.is_dir() else None) as agents,
        quiet_agents(),
    ):
        timing = {"intervalS": 300, "leaseS": 3600, "svidS": 3600}
        plant = build_plant(Path(folder), devices=max(sizes), attestation=timing, pinned=True, agents=Path(agents))
        with running_control(plant) as control:
            return {"rows": asyncio.run(_measure(plant, control.pid, sizes))}


async def _measure(plant: Plant, pid: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    names, devices, rows = list(plant.devices), list[SimulatedDevice](), list[dict[str, Any]]()
    empty_mib = _resident_mib(pid)
    for size, step in zip(sizes, STEPS, strict=False):
        fresh = [SimulatedDevice(plant, name) for name in names[len(devices) : size]]
        await in_parallel([one.attest for one in fresh], limit=20)
        start, before_s = time.monotonic(), cpu_s(pid)
        await in_parallel([partial(_open, one) for one in fresh], limit=HANDSHAKES_AT_ONCE)
        handshakes_s = len(fresh) / (time.monotonic() - start)
        await asyncio.sleep(SETTLE_S)
        stream_ms = (cpu_s(pid) - before_s) * 1000 / len(fresh)
        devices += fresh
        latency_ms, push_cpu_ms = await _push(plant, pid, devices, step)
        rows.append(
            {
                "agents": size,
                "control_mib": _resident_mib(pid),
                "empty_mib": empty_mib,
                "opened_per_s": handshakes_s,
                "stream_cpu_ms": stream_ms,
                "push_cpu_ms": push_cpu_ms,
                "push_median_ms": percentile(latency_ms, 0.5),
                "push_p99_ms": percentile(latency_ms, 0.99),
                "push_last_ms": latency_ms[-1],
            }
        )
    for one in devices:
        one.close()
    return rows


async def _open(device: SimulatedDevice) -> None:
    device.connect()
    async with asyncio.timeout(OPEN_LIMIT_S):
        await device.opened.wait()


async def _push(
    plant: Plant, pid: int, devices: list[SimulatedDevice], step: RotationStep
) -> tuple[list[float], float]:
    """Milliseconds from the operator's call until each agent had the new bundle, in order; control's CPU for each."""
    for one in devices:
        one.bundles.clear()
    before_s = cpu_s(pid)
    start = await _step(plant, step)
    async with asyncio.timeout(PUSH_LIMIT_S):
        while not all(one.bundles for one in devices):  # noqa: ASYNC110 - an event each would cost what is measured
            await asyncio.sleep(0.02)
    latency_ms = sorted((one.bundles[0][1] - start) * 1000 for one in devices)
    await asyncio.sleep(SETTLE_S)
    push_cpu_ms = (cpu_s(pid) - before_s) * 1000 / len(devices)
    if step is RotationStep.ACTIVATE:  # as every agent does within its interval: `retire` ends what is left of before
        await in_parallel([one.attest for one in devices], limit=20)
        await in_parallel([partial(_open, one) for one in devices], limit=HANDSHAKES_AT_ONCE)
    return latency_ms, push_cpu_ms


async def _step(plant: Plant, step: RotationStep) -> float:
    with plant.client() as client:
        start = time.monotonic()
        await asyncio.to_thread(client.rotate_authority, step, reason="bench", force=True)
    return start


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
