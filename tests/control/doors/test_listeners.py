"""The doors of control: certificates change while it runs, and a hostile moment does not end it."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl

import pytest
from cryptography import x509

from ztdpu.agent.attester import AGAIN_S
from ztdpu.control.authority.issue import CONTROL_CERTIFICATE_RENEWAL
from ztdpu.control.clock import SystemClock
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.devices.leases import Instant
from ztdpu.control.run import ControlProcess
from ztdpu.errors import ConfigurationError


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


async def test_ports_are_opened_anew_and_whoever_comes_again_is_served(plant) -> None:
    """A handshake that is under way in the very moment is cut (gRPC cannot stop listening alone); the next one works."""
    process = ControlProcess(plant.configuration())
    await process.start()
    served, faults, stopping = 0, [], False

    async def shake_hands() -> None:
        nonlocal served
        while not stopping:
            try:
                try:
                    await asyncio.to_thread(shown, process.enrolment_port)
                except OSError:
                    await asyncio.sleep(AGAIN_S)
                    await asyncio.to_thread(shown, process.enrolment_port)
                served += 1
            except OSError as error:
                faults.append(repr(error))

    try:
        callers = [asyncio.create_task(shake_hands()) for _ in range(4)]
        before = await asyncio.to_thread(shown, process.enrolment_port)
        for _ in range(8):
            process.issuer._own = None  # as if half its life were over
            await process._listeners.renew()
            await asyncio.sleep(0.2)
        stopping = True
        await asyncio.gather(*callers)
        assert await asyncio.to_thread(shown, process.enrolment_port) != before
        assert served > 20
        assert faults == []
    finally:
        await process.stop()


async def test_a_port_of_somebody_else_is_refused_although_ours_may_be_shared(plant) -> None:
    first = ControlProcess(plant.configuration())
    await first.start()
    try:
        document = plant.configuration().model_dump(by_alias=True)
        document["spec"] |= {
            "stateDir": plant.folder / "other",
            "adminSocket": plant.folder / "other-admin" / "admin.sock",
            "listen": {"enrolment": f"127.0.0.1:{first.enrolment_port}", "main": "127.0.0.1:0"},
        }
        second = ControlProcess(ControlConfiguration.model_validate(document))
        with pytest.raises(ConfigurationError, match="cannot listen"):
            await second.start()
    finally:
        await first.stop()
