"""Stock PyTorch, DistributedDataParallel over gloo, on two endpoints of a lab; it knows nothing of ztdpu."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "train_ddp.py"
STATE = Path("/run/ztdpu/ddp")

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (make setup-torch)")


def ztdpu(*words):
    return [sys.executable, "-m", "ztdpu", *words, "--state", str(STATE)]


@pytest.fixture
def lab():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        subprocess.run(ztdpu("lab", "up", "--prefix", "ddp"), check=True, capture_output=True, timeout=60)
        yield
    finally:
        subprocess.run(ztdpu("lab", "down"), check=False, capture_output=True, timeout=60)


def start_rank(rank, *, prefix=(), interface="ztdpu0", master="blue-0", steps=60):
    told = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": master,
        "MASTER_PORT": "29411",
        "GLOO_SOCKET_IFNAME": interface,
    }
    job = ["env", *(f"{key}={value}" for key, value in told.items()), sys.executable, str(PROGRAM)]
    return subprocess.Popen([*prefix, *job, "--steps", str(steps)], stdout=subprocess.PIPE, text=True)


def finish(ranks):
    said = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(text) for text in said]


def sealed_packets(device, *, at_least, seconds=30):
    """Agents report counters every second or so."""
    command = [sys.executable, "-m", "ztdpu", "device", "show", device, "-o", "json"]
    deadline = time.monotonic() + seconds
    while True:
        said = subprocess.run(
            [*command, "--server", f"{STATE}/control/admin.sock"], capture_output=True, text=True, check=True
        ).stdout
        count = json.loads(said)["sealed_packets"]
        if count >= at_least or time.monotonic() > deadline:
            return count
        time.sleep(0.2)


@pytest.mark.netns
def test_ddp_trains_over_the_fence(lab):
    ranks = [start_rank(rank, prefix=[*ztdpu("lab", "exec", f"blue-{rank}"), "--"]) for rank in (1, 0)]
    second, first = finish(ranks)
    assert (first["rank"], second["rank"], first["ranks"]) == (0, 1, 2)
    assert first["loss_last"] < first["loss_first"] / 5
    assert first["loss_last"] == second["loss_last"]
    assert first["spread"] == second["spread"] == 0.0
    assert sealed_packets("dpu-0", at_least=200) >= 200


def test_ddp_computes_the_same_without_a_fence():
    first, second = finish([start_rank(rank, interface="lo", master="127.0.0.1") for rank in (0, 1)])
    assert first["loss_last"] == second["loss_last"] < first["loss_first"] / 5
