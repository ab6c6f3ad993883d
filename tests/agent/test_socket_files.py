"""Socket files: what nobody serves is taken away, what somebody serves stays."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ztdpu.agent.socket_files import is_served, remove_unserved
from ztdpu.errors import StateError


@pytest.fixture
def served(tmp_path: Path):
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(path))
        door.listen(1)
        yield path


def test_a_served_socket_stays(served: Path) -> None:
    with pytest.raises(StateError, match="another process serves"):
        remove_unserved(served, wait_s=0.05)
    assert is_served(served)


def test_a_served_socket_with_a_full_backlog_is_served(served: Path) -> None:
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(str(served))
    assert is_served(served)
    for one in waiting:
        one.close()


def test_what_a_dead_process_left_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(path))
        door.listen(1)
    assert path.exists()
    assert not is_served(path)
    remove_unserved(path)
    assert not path.exists()
    remove_unserved(path)
