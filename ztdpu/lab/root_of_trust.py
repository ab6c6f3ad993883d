"""An emulated device that stands alone, for SPDM tools: fresh secrets, one boot, SPDM over TCP.

Called by `ztdpu lab root-of-trust`. Nothing of it is kept but the certificate of its manufacturer's root, which a
verifier needs; its secrets live in this process alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ztdpu.errors import MachineError
from ztdpu.lab.spdm_listener import Listener
from ztdpu.trust.faults import FaultyRoot, Preset
from ztdpu.trust.manufacture import DeviceSecrets, create_manufacturer
from ztdpu.trust.profile import Profile

_AGE: Final = timedelta(days=1)


class LonelyDevice:
    """A device and its manufacturer's root."""

    def __init__(self, profile: Profile) -> None:
        since = datetime.now(UTC) - _AGE
        maker = create_manufacturer(profile=profile, random=os.urandom, now=since)
        self._secrets = maker.make_device(serial=f"EMU{os.urandom(4).hex().upper()}", uds=os.urandom(32), now=since)
        self.root_pem = maker.root_pem()
        self.root = FaultyRoot(draw_secrets=self._draw, profile=profile, random=os.urandom, clock=time.monotonic)

    def _draw(self) -> DeviceSecrets:
        self._secrets = dataclasses.replace(self._secrets, boot_counter=self._secrets.boot_counter + 1)
        return self._secrets


def write_root(device: LonelyDevice, path: Path) -> None:
    """Write the root certificate (PEM). MachineError when it cannot be."""
    try:
        path.write_text(device.root_pem)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}", remedy="name another file: --root") from error


def serve_device(
    device: LonelyDevice, *, address: tuple[str, int], preset: Preset, ready: Callable[[tuple[str, int]], None]
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` gets the address. MachineError when the port cannot be had."""
    device.root.set_preset(preset)
    asyncio.run(_serve(device, address, ready))


async def _serve(device: LonelyDevice, address: tuple[str, int], ready: Callable[[tuple[str, int]], None]) -> None:
    listener, stop, loop = Listener(device.root), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        at = await listener.start(*address)
    except OSError as error:
        place = f"{address[0]}:{address[1]}"
        raise MachineError(f"cannot listen on {place}: {error.strerror}", remedy="name another port") from error
    ready(at)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(listener.serve())
        await stop.wait()
        serving.cancel()
