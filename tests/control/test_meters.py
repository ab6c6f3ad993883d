"""The metrics port: answers a scrape, and stands whatever strangers do to it."""

from __future__ import annotations

import asyncio
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
    deadline = time.monotonic() + 30
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "ztdpu_generation 7.0" in scrape(port)


def test_a_port_that_is_taken_is_named_with_what_to_do(port):
    with pytest.raises(ConfigurationError, match=f"metrics on {HOST}:{port}"):
        Meters().serve(HOST, port)


async def test_packets_by_reason_and_policy_faults_are_shown(process, plant, admin, make_agent, open_stream):
    def value(name, **labels):
        return process.meters.registry.get_sample_value(name, labels)

    async def until(condition):
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.02)

    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    await stream.send(status={"packets_by_reason": {"no_lease": 7, 'x"} 1': 9, "made_up": 9}})
    await until(lambda: value("ztdpu_packets", device="dpu-0", reason="no_lease") == 7)
    (family,) = [one for one in process.meters.registry.collect() if one.name == "ztdpu_packets"]
    assert {sample.labels["reason"] for sample in family.samples} == {"no_lease"}, "an agent makes no labels"
    assert value("ztdpu_policy_faults") == 0
    (plant.policy_dir / "broken.yaml").write_text("kind: Nonsense\n")
    faults = (await admin.sync_policy()).faults
    assert faults
    await until(lambda: value("ztdpu_policy_faults") == len(faults))
    await stream.close()
    await until(lambda: value("ztdpu_packets", device="dpu-0", reason="no_lease") is None)
