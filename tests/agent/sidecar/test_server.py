"""The socket itself: who may stand behind it, and what a hostile tenant can do to it."""

import asyncio
import os
import socket
import time

import grpc
import pytest
from sidecar_ground import HEADER

from ztdpu.agent.sidecar import gate, server
from ztdpu.agent.sidecar.gate import Bucket, Gate
from ztdpu.agent.sidecar.server import CONNECTIONS_LIMIT, check_folder
from ztdpu.v1 import sidecar_pb2
from ztdpu.workloadapi import workload_pb2

WHO = sidecar_pb2.WhoAmIRequest()


async def test_two_endpoints_have_sockets_and_names_of_their_own_and_lose_them(ground):
    await ground.ready()
    ground.sidecar.set_endpoints(["blue-0", "blue-9", "../evil", "UPPER"])
    await ground.wait((ground.folder / "blue-9" / "api.sock").exists)
    assert sorted(one.name for one in ground.folder.iterdir()) == ["blue-0", "blue-9"]
    assert (ground.folder / "blue-0").stat().st_mode & 0o777 == 0o700
    assert (await ground.service.WhoAmI(WHO)).endpoint == "blue-0"
    ground.sidecar.set_endpoints(["blue-9"])
    await ground.wait(lambda: not ground.socket.exists())
    assert (ground.folder / "blue-9" / "api.sock").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_could_change_is_not_served(tmp_path, mode):
    folder = tmp_path / "blue-0"
    check_folder(folder)
    folder.chmod(mode)
    with pytest.raises(OSError, match="of ours alone"):
        check_folder(folder)


def test_a_link_is_not_followed_and_a_long_path_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "blue-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="of ours alone"):
        check_folder(tmp_path / "blue-0")
    with pytest.raises(OSError, match="too long"):
        check_folder(tmp_path / ("x" * 100))


async def test_what_lies_where_the_socket_belongs_goes(ground):
    folder = ground.folder / "blue-0"
    folder.mkdir(mode=0o700, parents=True)
    (ground.folder / "precious").write_text("stays")
    (folder / "api.sock").symlink_to(ground.folder / "precious")
    await ground.ready()
    assert (ground.folder / "precious").read_text() == "stays"
    assert (await ground.service.WhoAmI(WHO)).tenant == "blue"


async def test_the_sockets_go_with_the_sidecar(ground):
    await ground.ready()
    await ground.sidecar.close()
    assert not ground.socket.exists()
    assert not ground.sidecar.book.view("blue-0").svids


async def test_large_messages_and_headers_are_refused_and_the_next_call_is_not(ground):
    await ground.ready()
    stub = ground.service
    for call in (
        stub.Join(sidecar_pb2.JoinRequest(token="x" * 20_000)),
        stub.WhoAmI(WHO, metadata=(("big", "x" * 60_000),)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await ground.service.WhoAmI(WHO)).endpoint == "blue-0"


async def test_open_streams_are_bounded_and_slow_readers_hold_nobody_up(ground, monkeypatch):
    await ground.ready()
    monkeypatch.setattr(gate, "OPEN_CALLS_LIMIT", 8)
    stubs = [ground.workload for _ in range(2)]
    calls = [stubs[n % 2].FetchX509SVID(workload_pb2.X509SVIDRequest(), metadata=HEADER) for n in range(12)]
    refused, served = 0, 0
    for call in calls:
        try:
            await call.read()
            served += 1
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            refused += 1
    assert (served, refused) == (8, 4)
    for call in calls:
        call.cancel()


async def test_connections_are_bounded(ground):
    """More idle connections than the limit: the server hangs up on those too many."""
    await ground.ready()
    loop = asyncio.get_running_loop()
    idle = []
    for _ in range(3 * CONNECTIONS_LIMIT):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        await loop.sock_connect(one, str(ground.socket))
        idle.append(one)
    closed = 0
    for one in idle:
        try:
            async with asyncio.timeout(0.3):
                closed += not await loop.sock_recv(one, 9)  # the server's preface, or its end
        except TimeoutError:
            pass
        except ConnectionError:
            closed += 1
    for one in idle:
        one.close()
    assert closed >= CONNECTIONS_LIMIT
    await ground.wait(lambda: True)
    assert (await ground.service.WhoAmI(WHO, wait_for_ready=True, timeout=5)).endpoint == "blue-0"


async def test_a_flood_closes_the_own_socket_for_a_while_and_no_other(ground, monkeypatch):
    monkeypatch.setattr(server, "PAUSE_AFTER_FLOOD_S", 0.5)
    monkeypatch.setattr(gate, "FLOOD_PER_S", 150)
    await ground.ready()
    ground.sidecar.set_endpoints(["blue-0", "blue-9"])
    await ground.wait((ground.folder / "blue-9" / "api.sock").exists)
    stub = ground.service
    until = time.monotonic() + 5
    while ground.socket.exists() and time.monotonic() < until:
        calls = [asyncio.ensure_future(stub.WhoAmI(WHO)) for _ in range(50)]
        await asyncio.gather(*calls, return_exceptions=True)
    assert not ground.socket.exists()
    assert (ground.folder / "blue-9" / "api.sock").exists()
    await ground.wait(ground.socket.exists)
    assert (await ground.service.WhoAmI(WHO, wait_for_ready=True, timeout=5)).endpoint == "blue-0"


def test_rates_by_the_clock():
    bucket = Bucket(2, 1)
    assert [bucket.take(now) for now in (0, 0, 0, 0.5, 1.1, 100, 100, 100)] == [
        True, True, False, False, True, True, True, False,
    ]  # fmt: skip


async def test_a_gate_counts_what_it_refuses():
    async def unknown(_details):
        return None

    class Details:
        method = "/Any/Call"
        invocation_metadata = ()

    floods = []
    one = Gate(lambda: floods.append(1), now_s=lambda: 7.0)
    answers = [await one.intercept_service(unknown, Details()) for _ in range(gate.FLOOD_PER_S)]
    assert (sum(answer is None for answer in answers), one.refused) == (gate.BURST, gate.FLOOD_PER_S - gate.BURST)
    assert floods == [1]


def test_we_run_as_whoever_owns_the_directory(tmp_path):
    assert tmp_path.stat().st_uid == os.geteuid()
