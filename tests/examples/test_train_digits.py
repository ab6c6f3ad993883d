"""The training example: several ranks over loopback sum to what one process computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="extra `demo` is not installed")
PROGRAM = Path(__file__).parents[2] / "examples" / "train_digits.py"


def run_ranks(size: int, port: int, *extra: str) -> list[dict[str, float]]:
    command = [sys.executable, str(PROGRAM), "--world-size", str(size), "--port", str(port), "--timeout", "30", *extra]
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(size)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size
    return [json.loads(text) for text in said]


def test_two_ranks_train_as_well_as_one():
    first, second = run_ranks(2, 29610)
    assert first["accuracy"] >= 0.9
    assert first["loss_last"] < first["loss_first"] / 5
    assert first["max_abs_diff_to_single_process"] <= 1e-5
    assert (second["loss_last"], second["accuracy"]) == (first["loss_last"], first["accuracy"])


def test_uneven_chunks_and_batches_sum_up():
    reports = run_ranks(3, 29620, "--steps", "40", "--batch", "100")
    assert reports[0]["max_abs_diff_to_single_process"] <= 1e-5
    assert len({report["loss_last"] for report in reports}) == 1


def test_chunks_larger_than_socket_buffers_do_not_stall():
    reports = run_ranks(2, 29630, "--steps", "3", "--hidden", "30000", "--batch", "16", "--rate", "0.001")
    assert reports[0]["max_abs_diff_to_single_process"] <= 1e-5


def test_a_neighbour_that_never_comes_is_named():
    command = [sys.executable, str(PROGRAM), "--world-size", "2", "--port", "29640", "--timeout", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "cannot reach localhost:29641" in ended.stderr
