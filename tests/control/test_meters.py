"""The metrics port: answers a scrape, and stands whatever strangers do to it."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from contextlib import ExitStack

import pytest

from ztdpu.control import meters
from ztdpu.control.meters import SCRAPES_LIMIT, Meters
from ztdpu.errors import ConfigurationError

HOST = "127.0.0.1"


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(meters._Handler, "timeout", 1.0)
    shown = Meters()
    shown.generation.set(7)
    return shown.serve(HOST, 0)


def scrape(port):
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def test_a_scrape_is_answered(port):
    assert "ztdpu_generation 7.0" in scrape(port)


def test_silent_connections_cost_few_threads_and_are_hung_up_on(port):
    before = threading.active_count()
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((HOST, port), 5)) for _ in range(4 * SCRAPES_LIMIT)]
        held[0].sendall(b"GET /metrics HT")
        assert held[-1].recv(1) == b"", "beyond the limit: hung up at once"
        assert threading.active_count() - before <= SCRAPES_LIMIT
        assert held[0].recv(1) == b"", "silent: hung up after a while"
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "ztdpu_generation 7.0" in scrape(port)


def test_a_port_that_is_taken_is_named_with_what_to_do(port):
    with pytest.raises(ConfigurationError, match=f"metrics on {HOST}:{port}"):
        Meters().serve(HOST, port)
