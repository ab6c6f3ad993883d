from __future__ import annotations

import asyncio
import os
import socket

import pytest

from ztdpu.agent import mailbox
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.errors import StateError


@pytest.fixture
async def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    heard: list[mailbox.Message] = []
    lost: list[bool] = []
    channel = MailboxChannel(ours, on_message=heard.append, on_lost=lambda: lost.append(True))
    yield channel, theirs, heard, lost
    channel.close()
    theirs.close()


async def until(condition, limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


def say(peer: socket.socket, message: mailbox.Message) -> None:
    peer.send(mailbox.encode(message))


async def test_answers_reach_whoever_asked_even_out_of_order(pair):
    channel, peer, heard, _ = pair
    first = asyncio.create_task(channel.ask(mailbox.RemovePeer(1, "a", False), mailbox.PeerRemoved, key=1))
    second = asyncio.create_task(channel.ask(mailbox.RemovePeer(2, "b", False), mailbox.PeerRemoved, key=2))
    await asyncio.sleep(0)
    say(peer, mailbox.PeerRemoved(2, "b", 22))
    say(peer, mailbox.PeerRemoved(1, "a", 11))
    assert (await first).last_packet_realtime_ns == 11
    assert (await second).last_packet_realtime_ns == 22
    assert heard == []


async def test_what_answers_no_question_goes_to_the_daemon(pair):
    _, peer, heard, _ = pair
    say(peer, mailbox.SasWanted("dpu-1", b"n" * 16, 0))
    say(peer, mailbox.PeerRemoved(99, "late", 0))
    await until(lambda: len(heard) == 2)
    assert heard == [mailbox.SasWanted("dpu-1", b"n" * 16, 0), mailbox.PeerRemoved(99, "late", 0)]


async def test_either_of_two_answers_ends_the_question(pair):
    channel, peer, _, _ = pair
    kinds = (mailbox.TablesApplied, mailbox.TablesRefused)
    task = asyncio.create_task(channel.ask_either(mailbox.ApplyTables(7, b"r"), kinds, key=7))
    await asyncio.sleep(0)
    say(peer, mailbox.TablesRefused(7, "no"))
    assert await task == mailbox.TablesRefused(7, "no")


async def test_descriptor_arrives_and_the_callers_copy_stays(pair, tmp_path):
    channel, peer, _, _ = pair
    path = tmp_path / "tun"
    path.write_text("x")
    descriptor = os.open(path, os.O_RDONLY)
    channel.send(mailbox.AttachEndpoint(b"e" * 16), descriptors=(descriptor,))
    datagram, descriptors, _, _ = socket.recv_fds(peer, 1 << 17, 4)
    assert mailbox.decode(datagram) == mailbox.AttachEndpoint(b"e" * 16)
    assert os.fstat(descriptors[0]).st_ino == os.fstat(descriptor).st_ino
    os.close(descriptor)
    os.close(descriptors[0])


async def test_full_socket_queues_and_keeps_the_order(pair):
    channel, peer, _, _ = pair
    count = 2000
    for number in range(count):
        channel.send(mailbox.GetStatistics(number))
    peer.setblocking(False)
    seen: list[int] = []

    def drain() -> bool:
        try:
            while True:
                message = mailbox.decode(peer.recv(1 << 17))
                assert isinstance(message, mailbox.GetStatistics)
                seen.append(message.token)
        except BlockingIOError:
            return len(seen) == count

    await until(drain)
    assert seen == list(range(count))


async def test_worker_that_takes_nothing_loses_its_mailbox(pair):
    channel, _, _, lost = pair
    for number in range(20_000):
        if not channel.is_open:
            break
        channel.send(mailbox.GetStatistics(number))
    assert lost == [True]
    with pytest.raises(StateError):
        channel.send(mailbox.GetStatistics(1))


async def test_hanging_up_fails_whoever_waits_and_is_told_once(pair):
    channel, peer, _, lost = pair
    task = asyncio.create_task(channel.ask(mailbox.RemovePeer(1, "a", False), mailbox.PeerRemoved, key=1))
    await asyncio.sleep(0)
    peer.close()
    with pytest.raises(StateError):
        await task
    channel.close()
    assert lost == [True]


async def test_nonsense_closes_the_mailbox(pair):
    channel, peer, heard, lost = pair
    peer.send(b"\xff\xff")
    await until(lambda: not channel.is_open)
    assert (heard, lost) == ([], [True])
