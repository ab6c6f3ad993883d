"""What the demo prints: whole at 80 columns, without colour or wrapping in a pipe, and true to its figures."""

import copy

import pytest

from ztdpu.cli.board import Board
from ztdpu.cli.demo import print_next_steps, print_result
from ztdpu.cli.dump import lines_of
from ztdpu.lab.demo import Progress, Step

RESULT = {
    "ok": True,
    "seconds": 17.6,
    "fabric": "netns",
    "isolation": "full",
    "devices": [{"name": "dpu-0", "tier": "affirming", "lease_s": 59.8}],
    "tenants": {
        "blue": {
            "ranks": 2, "steps": 2500, "loss_first": 2.54, "loss_last": 0.0151, "accuracy": 0.972,
            "max_abs_diff_to_single_process": 1.3e-15,
        }
    },
    "attacks": [
        {
            "name": "sidecar-of-another-endpoint", "expected": "a", "reason": "bad_offload_header", "attempts": 20,
            "seen": 20, "delivered": 0, "twin_delivered": 20,
        },
        {
            "name": "altered-firmware", "expected": "fwid_unexpected, measurement_unexpected",
            "reason": "fwid_unexpected, measurement_unexpected", "attempts": 3, "seen": 3, "delivered": 0,
            "twin_delivered": 3,
        },
    ],
    "wire": {"psp_packets": 39048, "clear_packets": 0, "canary_hits": 0, "canary_hits_without_encryption": 200},
    "revocation": {"device": "dpu-1", "pps_before": 1997, "ack_to_last_packet_ms": 41.26, "packets_after_ack": 17},
}  # fmt: skip


def test_a_result_fits_80_columns_and_names_and_reasons_are_whole(capsys):
    print_result(RESULT)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    words = said.split()
    for word in ("sidecar-of-another-endpoint", "bad_offload_header", "fwid_unexpected", "measurement_unexpected"):
        assert word in words
    assert "\u2026" not in said
    assert "all held" in said


def test_late_packets_are_said_with_their_meaning_and_the_bound(capsys):
    print_result(RESULT)
    said = " ".join(capsys.readouterr().out.split())
    assert "dpu-1 revoked: last packet 41.3 ms later" in said
    assert "accepted after control's acknowledgement: 17, up to 41.3 ms after it. The bound is 1 s." in said


def test_a_result_that_does_not_hold_is_not_called_held(capsys):
    bad = copy.deepcopy(RESULT) | {"ok": False}
    print_result(bad)
    assert "something did not hold" in capsys.readouterr().out


@pytest.mark.parametrize(("keep", "last"), [(True, "lab down --state /run/x"), (False, "lab down")])
def test_three_commands_to_try_and_how_to_end(capsys, tmp_path, keep, last):
    from pathlib import Path

    print_next_steps(Path("/run/x"), keep=keep)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  ")]) == 3
    assert lines[-1].endswith(last)
    assert all("/run/x" in line for line in lines[2:]) is keep


def test_steps_in_a_pipe_are_one_whole_line_each(capsys):
    detail = "3 tried, 0 through: fwid_unexpected, measurement_unexpected, " + "x" * 200
    with Board() as board:
        board.show(Step(name="attack: altered-firmware", state="running"))
        board.progress(Progress(tenant="blue", step=1, steps=9, loss=0.5))
        board.show(Step(name="attack: altered-firmware", state="done", detail=detail))
        board.show(Step(name="lab down", state="failed"))
    said = capsys.readouterr()
    assert said.err == f"done   attack: altered-firmware: {detail}\nfailed lab down\n"
    assert said.out == ""


CLEAR = bytes([0x45]) + bytes(27) + b"my gradient" * 6
SEALED = bytes([0x45]) + bytes(range(100, 143)) + bytes(len(CLEAR)) + bytes(16)


@pytest.mark.parametrize(("octets_a_row", "columns"), [(8, 80), (12, 112)])
def test_a_packet_stands_twice_side_by_side_with_every_octet(octets_a_row, columns):
    lines = [line.plain for line in lines_of(CLEAR, SEALED, octets_a_row=octets_a_row)]
    assert max(map(len, lines)) <= columns
    width = 5 + 4 * octets_a_row
    rows = lines[1:-2]
    for octets, start in ((CLEAR, 0), (SEALED, width + 3)):
        cells = [row[start + 3 : start + 3 + 3 * octets_a_row] for row in rows]
        assert bytes.fromhex("".join(cells)) == octets
    assert lines[-1].endswith(f"-{len(SEALED) - 1:02x} tag")
