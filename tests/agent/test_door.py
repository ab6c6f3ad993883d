from __future__ import annotations

import array
import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

from ztdpu.agent import door
from ztdpu.errors import UnreachableError


@pytest.fixture
def listening(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "door"))
        listening.listen(4)
        yield listening


def serve(listening: socket.socket, answer) -> threading.Thread:
    """Answer one connection in a thread."""

    def run() -> None:
        connection, _ = listening.accept()
        with connection:
            while question := connection.recv(1 << 17):
                if not answer(connection, question):
                    return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


async def test_one_visit_asks_several_times(listening, tmp_path):
    serve(listening, lambda connection, question: connection.send(question.upper()))
    async with door.Visit(tmp_path / "door") as visit:
        assert await visit.ask(b"one") == (b"ONE", [])
        assert await visit.ask(b"two") == (b"TWO", [])


async def test_descriptor_comes_with_the_answer(listening, tmp_path):
    def answer(connection, _):
        rights = array.array("i", [listening.fileno()])
        connection.sendmsg([b"here"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        return True

    serve(listening, answer)
    text, descriptors = await door.ask(tmp_path / "door", b"give")
    assert text == b"here"
    assert os.fstat(descriptors[0]).st_ino == os.fstat(listening.fileno()).st_ino
    assert not os.get_inheritable(descriptors[0])
    door.close_all(descriptors)


async def test_nobody_there(tmp_path):
    with pytest.raises(UnreachableError):
        await door.ask(tmp_path / "door", b"hello")


async def test_hanging_up_is_no_answer(listening, tmp_path):
    serve(listening, lambda *_: False)
    with pytest.raises(UnreachableError):
        await door.ask(tmp_path / "door", b"hello")


async def test_silence_ends_in_time(listening, tmp_path):
    async with asyncio.timeout(30):
        with pytest.raises(UnreachableError):
            await door.ask(tmp_path / "door", b"hello", timeout_s=0.1)


async def test_answer_too_long_is_refused(listening, tmp_path):
    def answer(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return connection.send(bytes(door.DATAGRAM_LIMIT_OCTETS + 1))

    serve(listening, answer)
    with pytest.raises(UnreachableError):
        await door.ask(tmp_path / "door", b"hello")
