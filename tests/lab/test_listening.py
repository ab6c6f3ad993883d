"""Sockets get their name once somebody listens."""

import os
import socket
import threading

import pytest

from ztdpu.lab.listening import listen_at


def test_whoever_sees_the_file_may_connect(tmp_path):
    path = tmp_path / "door.sock"
    refused, met = [], []
    stop = threading.Event()

    def knock():
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
                try:
                    guest.connect(str(path))
                except FileNotFoundError:
                    continue
                except ConnectionRefusedError as error:
                    refused.append(error)
                else:
                    met.append(guest.getpeername())

    knocking = threading.Thread(target=knock)
    knocking.start()
    doors = [listen_at(path, socket.SOCK_SEQPACKET, backlog=4096) for _ in range(300)]
    stop.set()
    knocking.join()
    for door in doors:
        door.close()
    assert met
    assert refused == []


@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_owner_and_mode_and_what_was_there(tmp_path):
    path = tmp_path / "door.sock"
    path.write_text("something old")
    with listen_at(path, socket.SOCK_STREAM, backlog=1, owner=65534) as listening:
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (65534, 65534, 0o600)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
            guest.connect(str(path))
            listening.accept()[0].close()
    assert [each.name for each in tmp_path.iterdir()] == ["door.sock"]
