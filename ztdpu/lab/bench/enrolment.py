"""Enrolments under load: many devices with join tokens, while idle and trickling connections sit on the same port.

What is told is the time from the first octet of an attestation to its result, as the device sees it, and how many were
refused. Control is a process of its own; the devices share another one, which costs as much as control does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import ZtdpuError
from ztdpu.lab.bench.figures import percentile
from ztdpu.lab.bench.plant import Plant, build_plant, cpu_s, running_control
from ztdpu.lab.bench.simulated import SimulatedDevice, in_parallel, quiet_agents

IDLE: Final = 50
TRICKLING: Final = 50
IN_FLIGHT: Final = 20
CLIENT_HELLO: Final = bytes.fromhex("16030102000100") + b"\3\3" + bytes(500)


def measure(
    *, devices: int, idle: int = IDLE, trickling: int = TRICKLING, in_flight: int = IN_FLIGHT
) -> dict[str, Any]:
    """Enrol so many devices; milliseconds."""
    with tempfile.TemporaryDirectory(prefix="ztdpu-enrolment-") as folder, quiet_agents():
        timing = {"intervalS": 300, "leaseS": 3600, "svidS": 3600}
        plant = build_plant(Path(folder), devices=devices, attestation=timing, pinned=False)
        with running_control(plant) as control, plant.client() as client:
            tokens = {name: client.create_join_token(name).token for name in plant.devices}
            before_s = cpu_s(control.pid)
            took_s, refused = asyncio.run(_enrol(plant, tokens, idle, trickling, in_flight))
            control_s = cpu_s(control.pid) - before_s
    ordered = sorted(one * 1000 for one in took_s)
    return {
        "devices": devices,
        "idle": idle,
        "trickling": trickling,
        "in_flight": in_flight,
        "refused": refused,
        "enrolled": len(took_s) - len(refused),
        "median_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "worst_ms": ordered[-1],
        "control_cpu_ms": control_s * 1000 / devices,
    }


async def _enrol(
    plant: Plant, tokens: dict[str, str], idle: int, trickling: int, in_flight: int
) -> tuple[list[float], list[str]]:
    devices = [SimulatedDevice(plant, name, join_token=token) for name, token in tokens.items()]
    refused: list[str] = []
    async with _nuisance(plant.enrolment_port, idle, trickling):
        took_s = await in_parallel([partial(_attest, one, refused) for one in devices], limit=in_flight)
    return took_s, refused


async def _attest(device: SimulatedDevice, refused: list[str]) -> None:
    try:
        await device.attest()
    except ZtdpuError as error:
        refused.append(str(error))


@asynccontextmanager
async def _nuisance(port: int, idle: int, trickling: int) -> AsyncIterator[None]:
    """Connections that do nothing after their handshake, and such that never finish it; both come back when cut."""
    tasks = [asyncio.create_task(_sit(port)) for _ in range(idle)]
    tasks += [asyncio.create_task(_trickle(port)) for _ in range(trickling)]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sit(port: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            try:
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
        await asyncio.sleep(0.2)


async def _trickle(port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for octet in CLIENT_HELLO:
                    writer.write(bytes([octet]))
                    await writer.drain()
                    await asyncio.sleep(1)
            finally:
                writer.close()
        await asyncio.sleep(0.2)
