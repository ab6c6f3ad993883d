"""Rows of datagrams from canned rounds, and the probe's own server and client over loopback."""

import json
import socket
import subprocess
import sys

import pytest

from ztdpu.lab.bench import datagrams, probe
from ztdpu.lab.bench.ground import PLAINTEXT, SEALED


def step(offered, delivered):
    return {"offered_pps": offered, "delivered_pps": delivered, "loss": 1 - delivered / offered}


def one_round(*steps, times=(10.0, 20.0, 30.0, 40.0)):
    return datagrams.read_round([step(*pair) for pair in steps], times, lost=1)


def test_a_round_gives_rate_flood_and_percentiles():
    found = one_round((100, 100), (200, 199), (400, 200))
    assert found["pps"] == 199
    assert (found["flood_offered_pps"], found["flood_delivered_pps"], found["flood_loss"]) == (400, 200, 0.5)
    assert (found["p50_us"], found["p99_us"], found["turns"], found["turns_lost"]) == (20.0, 40.0, 4, 1)


def test_a_round_without_answers_has_no_time():
    assert one_round((100, 100), times=())["p50_us"] == 0.0


def test_a_row_puts_rounds_together():
    results = {
        PLAINTEXT: [one_round((100, 100)), one_round((200, 200))],
        SEALED: [one_round((50, 50)), one_round((120, 120))],
    }
    row = datagrams.row(SEALED, results)
    assert row["pps"]["rounds"] == [50, 120]
    assert row["pps_of_plaintext"] == 0.55
    assert row["pps_of_wireguard_go"] is None
    assert row["turns"] == 8
    assert row["turns_lost"] == 2


@pytest.fixture
def port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.bind(("127.0.0.1", 0))
        number = handle.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "ztdpu.lab.bench.probe", "serve", "--port", str(number)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert json.loads(server.stdout.readline())["listening"]
    yield number
    server.kill()
    server.communicate()


@pytest.fixture
def client(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.connect(("127.0.0.1", port))
        yield handle


def test_the_probe_counts_by_step_and_by_run(client):
    for _ in range(2):  # a second run starts from zero
        steps = probe.measure_rates(client, [200, 400], seconds=0.05)["steps"]
        assert [one["wanted_pps"] for one in steps] == [200, 400]
        assert [one["loss"] for one in steps] == [0, 0]
        assert all(one["delivered_pps"] == one["offered_pps"] for one in steps)


def test_the_probe_times_echoes_in_rising_order(client):
    assert probe.reach(client, seconds=5)["reached_s"] >= 0
    found = probe.measure_turns(client, seconds=0.05)
    assert found["times_us"] == sorted(found["times_us"])
    assert len(found["times_us"]) > 0
    assert found["lost"] == 0


def test_a_deaf_other_end_is_an_error_not_a_figure():
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle,
    ):
        deaf.bind(("127.0.0.1", 0))
        handle.connect(deaf.getsockname())
        with pytest.raises(SystemExit, match="does not answer"):
            probe.reach(handle, seconds=0.3)
