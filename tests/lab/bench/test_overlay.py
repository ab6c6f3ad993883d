"""Rows of the overlay from canned rounds."""

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.bench import overlay
from ztdpu.lab.bench.ground import PLAINTEXT, SEALED, WIREGUARD, Way


def way(name):
    return Way(name=name, source="a", destination="b", address="192.0.2.1", mtu_octets=8940)


def rounds(*gbits, cpu=None):
    return [
        {"gbits": value, "octets": 1e9, "seconds": 2.0, "retransmits": 3, "cpu": cpu or {"worker": (0.5, 0.25)}}
        for value in gbits
    ]


RESULTS = {PLAINTEXT: rounds(20, 10), WIREGUARD: rounds(2, 2), SEALED: rounds(5, 4)}


def report(**changes):
    end = {
        "sum_received": {"seconds": 2.0, "bytes": 1_000_000_000, "bits_per_second": 4e9},
        "sum_sent": {"retransmits": 7},
        "cpu_utilization_percent": {"host_user": 10, "host_system": 20, "remote_user": 30, "remote_system": 40},
        "sender_tcp_congestion": "cubic",
        "receiver_tcp_congestion": "cubic",
    }
    return {"end": {**end, **changes}}


def test_a_row_has_spread_and_ratios_round_by_round():
    row = overlay.throughput_row(way(SEALED), 9000, RESULTS)
    assert row["gbits"] == {"median": 4.5, "least": 4, "most": 5, "rounds": [5, 4]}
    assert row["of_plaintext"] == 0.325
    assert row["of_wireguard_go"] == 2.25
    assert row["congestion"] == "cubic"


def test_streams_that_did_not_end_are_counted():
    stalled = {SEALED: [{**one, "stalls": number} for number, one in enumerate(rounds(5, 4, 3))]}
    assert overlay.throughput_row(way(SEALED), 9000, stalled)["stalls"] == 3
    assert overlay.throughput_row(way(SEALED), 9000, RESULTS)["stalls"] == 0


def test_a_path_has_no_ratio_to_itself_nor_to_one_that_is_not_there():
    assert overlay.throughput_row(way(PLAINTEXT), 9000, RESULTS)["of_plaintext"] is None
    alone = {PLAINTEXT: RESULTS[PLAINTEXT], SEALED: RESULTS[SEALED]}
    assert overlay.throughput_row(way(SEALED), 9000, alone)["of_wireguard_go"] is None


def test_the_profile_sums_rounds_and_divides_by_what_was_moved():
    (row,) = overlay.profile_rows(SEALED, 9000, RESULTS, {SEALED: {"worker": 30 * 2**20}})
    assert (row["user_s"], row["system_s"]) == (1.0, 0.5)
    assert row["s_per_gigabyte"] == 0.75
    assert row["of_one_core"] == 0.375
    assert row["resident_mib"] == 30


def test_iperf3s_report_is_read():
    found = overlay.read_report(report(), {"worker": (1.0, 2.0)})
    assert found["gbits"] == 4
    assert found["retransmits"] == 7
    assert found["seconds"] == 2.5, "the omitted start counts, CPU time was used in it"
    assert found["octets"] == 1.25e9
    assert found["cpu"]["iperf3 receiver"] == pytest.approx((0.75, 1.0))
    assert found["cpu"]["worker"] == (1.0, 2.0)


def test_another_congestion_control_is_refused():
    with pytest.raises(MachineError, match="bbr"):
        overlay.read_report(report(sender_tcp_congestion="bbr"), {})


def test_cpu_time_is_what_was_used_between_two_readings():
    assert overlay.spent({"worker": (1.0, 2.0)}, {"worker": (1.5, 2.0), "late": (9.0, 9.0)}) == {"worker": (0.5, 0.0)}


def test_cpu_time_of_a_process_that_is_gone_is_zero():
    assert overlay.read_cpu({"gone": 2**22 + 1})["gone"] == (0.0, 0.0)


def test_the_verdict_is_about_ztdpu():
    rows = [overlay.throughput_row(way(name), 9000, RESULTS) for name in RESULTS]
    assert overlay.verdict(rows) == ["MTU 9000: 4.50 Gbit/s sealed, 0.33 of plaintext, 2.2 times wireguard-go"]
