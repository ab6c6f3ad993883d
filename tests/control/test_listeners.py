"""The doors of control: certificates change while it runs, and a hostile moment does not end it."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl

from cryptography import x509

from ztdpu.control.clock import SystemClock
from ztdpu.control.issue import CONTROL_CERTIFICATE_RENEWAL
from ztdpu.control.leases import Instant
from ztdpu.control.run import ControlProcess


class ShiftedClock(SystemClock):
    """The machine's clocks, with the wall clock moved forward."""

    shift_ms = 0

    def now(self) -> Instant:
        real = super().now()
        return dataclasses.replace(real, unix_ms=real.unix_ms + self.shift_ms)


def shown(port: int) -> int:
    """Serial number of the certificate that a port shows."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=2)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def test_certificates_change_while_control_runs(plant) -> None:
    clock = ShiftedClock()
    process = ControlProcess(plant.configuration(), clock=clock)
    await process.start()
    try:
        ports = process.enrolment_port, process.main_port
        first = await asyncio.to_thread(shown, process.enrolment_port)
        await process._listeners.renew()  # nothing is due, nothing changes
        assert await asyncio.to_thread(shown, process.enrolment_port) == first
        clock.shift_ms = int(CONTROL_CERTIFICATE_RENEWAL.total_seconds() * 1000) + 1
        async with asyncio.timeout(30):
            while await is_unchanged(process.enrolment_port, first):
                await asyncio.sleep(0.05)
        assert (process.enrolment_port, process.main_port) == ports
    finally:
        await process.stop()


async def is_unchanged(port: int, first: int) -> bool:
    """Whether the port still shows the first certificate, or is just being opened anew."""
    try:
        return await asyncio.to_thread(shown, port) == first
    except OSError:
        return True


async def test_stopping_while_handshakes_begin_and_end(plant) -> None:
    for _ in range(5):
        process = ControlProcess(plant.configuration())
        await process.start()
        idle = [await asyncio.open_connection("127.0.0.1", process.enrolment_port) for _ in range(50)]
        for _, writer in idle[::2]:
            writer.close()
        await process.stop()
        for _, writer in idle:
            writer.close()
