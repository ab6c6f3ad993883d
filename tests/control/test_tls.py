"""Which group TLS agrees on, read from the handshake on the wire between a device's channel and control.

Recorded attestations and key messages stay closed to a quantum computer only if this is the hybrid one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct

import pytest

from ztdpu.agent.control_channel import enrolment_channel
from ztdpu.control.run import ControlProcess

SECP256R1, X25519MLKEM768 = 0x0017, 0x11EC
SERVER_HELLO, KEY_SHARE = 2, 0x0033


def group_of(stream: bytes) -> int:
    """Return the group of the key share in a TLS 1.3 ServerHello (RFC 8446 sections 4.1.3 and 4.2.8)."""
    assert stream[0] == 22
    hello = stream[5:]
    assert hello[0] == SERVER_HELLO
    at = 4 + 2 + 32
    at += 1 + hello[at] + 2 + 1
    end = at + 2 + struct.unpack_from(">H", hello, at)[0]
    at += 2
    while at < end:
        kind, octets = struct.unpack_from(">HH", hello, at)
        if kind == KEY_SHARE:
            return struct.unpack_from(">H", hello, at + 4)[0]
        at += 4 + octets
    raise AssertionError("no key share: this is not TLS 1.3")


@contextlib.asynccontextmanager
async def overheard(port: int):
    """A relay to `port`; gives its own port and everything that came back through it."""
    said = bytearray()

    async def carry(reader, writer, keep=None):
        with contextlib.suppress(ConnectionError):
            while octets := await reader.read(65536):
                if keep is not None:
                    keep += octets
                writer.write(octets)
                await writer.drain()
        writer.close()

    async def relay(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer, said))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], said
    finally:
        server.close()


async def server_hello(said: bytearray) -> bytes:
    async with asyncio.timeout(30):
        while len(said) < 5 or len(said) < 5 + struct.unpack_from(">H", said, 3)[0]:
            await asyncio.sleep(0.01)
    return bytes(said)


@pytest.fixture
async def control(plant):
    process = ControlProcess(plant.configuration())
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


@pytest.mark.parametrize("name", ["enrolment_port", "main_port"])
async def test_agent_and_control_agree_on_the_hybrid_group(control, name) -> None:
    """On the main port too, which says so before it asks for the certificate that this channel has not."""
    async with overheard(getattr(control, name)) as (port, said):
        channel = enrolment_channel(
            f"127.0.0.1:{port}", trust_domain=control.spec.trust_domain, bundle_pem=control.issuer.bundle_pem
        )
        channel.get_state(try_to_connect=True)
        assert group_of(await server_hello(said)) == X25519MLKEM768
        await channel.close()


async def test_a_client_without_it_is_told_apart(control) -> None:
    context = ssl.create_default_context(cadata=control.issuer.bundle_pem.decode())
    context.check_hostname = False
    context.set_ecdh_curve("prime256v1")
    context.set_alpn_protocols(["h2"])
    async with overheard(control.enrolment_port) as (port, said):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert group_of(await server_hello(said)) == SECP256R1
        writer.close()
