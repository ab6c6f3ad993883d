"""Choosing sections, writing and printing results, and one quick run with real namespaces."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ztdpu.errors import MachineError, UsageError
from ztdpu.lab.bench import run, wireguard
from ztdpu.lab.bench.report import print_report, ratio_text, spread_text

TINY = dataclasses.replace(run.QUICK, core_s=0.01)


def test_no_words_are_all_sections_and_words_come_in_the_benchs_order():
    assert run.choose_sections([]) == run.SECTIONS
    assert run.choose_sections(["sealing", "overlay"]) == ("overlay", "sealing")
    assert run.choose_sections(["profile"]) == ("overlay",)


def test_an_unknown_section_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="warp") as caught:
        run.choose_sections(["overlay", "warp"])
    assert "sealing" in caught.value.remedy


@pytest.fixture(scope="module")
def document():
    return run.Bench(effort=TINY, say=lambda _: None).run(["sealing", "firewall"])


def test_the_document_names_machine_and_sections(document):
    assert list(document["sections"]) == ["sealing", "firewall"]
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert machine["kernel"].startswith("Linux")
    assert "CPython" in machine["interpreter"]
    assert len(machine["load"]) == 3
    assert document["skipped"] == {}


def test_the_report_begins_with_the_machine(document):
    stream = io.StringIO()
    print_report(document, Console(file=stream, width=120))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("machine")
    for word in ("kernel", "interpreter", "load"):
        assert any(line.startswith(word) for line in lines[:10])
    assert any("sealing" in line for line in lines)


def test_the_document_is_written_where_it_was_asked(document, tmp_path):
    path = tmp_path / "deep" / "bench.json"
    run.write_document(document, path)
    assert json.loads(path.read_text())["sections"].keys() == document["sections"].keys()
    with pytest.raises(MachineError, match="cannot be written"):
        run.write_document(document, path / "below-a-file.json")


def test_without_root_packets_are_left_out_or_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = run.Bench(effort=TINY, say=lambda _: None).run(["overlay", "firewall"])
    assert found["skipped"].keys() == {"overlay"}
    assert found["sections"].keys() == {"firewall"}
    with pytest.raises(MachineError, match="root"):
        run.Bench(effort=TINY, say=lambda _: None, insist=True).run(["overlay"])


def test_cells_read_well():
    assert spread_text({"median": 1234.5, "least": 1, "most": 2}, 1) == "1,234.5 (1.0\u20132.0)"
    assert ratio_text(None) == "-"
    assert ratio_text(0.126) == "0.13"


def test_wireguard_is_configured_as_its_interface_asks():
    own, peer = (wireguard.X25519PrivateKey.generate() for _ in range(2))
    text = wireguard.uapi_text(own, peer, peer_endpoint="10.90.0.11:51820", peer_address="10.77.0.2")
    lines = text.splitlines()
    assert lines[0] == "set=1"
    assert f"private_key={own.private_bytes_raw().hex()}" in lines
    assert f"public_key={peer.public_key().public_bytes_raw().hex()}" in lines
    assert "allowed_ip=10.77.0.2/32" in lines
    assert text.endswith("\n\n")


def test_an_old_wireguard_is_called_old():
    assert "without segmentation offload" in wireguard.remark("wireguard-go v0.0.20220316")
    assert wireguard.remark("wireguard-go 0.0.20250522") == ""
    assert wireguard.remark("wireguard-go (devel)") == ""


def test_what_was_measured_before_a_failure_is_kept(monkeypatch):
    def fail(**_):
        raise MachineError("no")

    monkeypatch.setattr(run.firewall, "measure", fail)
    bench = run.Bench(effort=TINY, say=lambda _: None)
    with pytest.raises(MachineError):
        bench.run(["sealing", "firewall"])
    assert bench.document["sections"].keys() == {"sealing"}


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")
@pytest.mark.soak
def test_a_quick_run_measures_and_leaves_nothing_behind(tmp_path):
    prefix = f"zb{os.getpid()}"
    state = Path("/run") / prefix
    out = tmp_path / "bench.json"
    command = [
        sys.executable, "-m", "ztdpu.lab.bench", "overlay", "--quick", "--rounds", "1",
        "--out", str(out), "--state", str(state), "--prefix", prefix,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not state.exists()
    assert not list(Path("/run/netns").glob(f"{prefix}-*"))
    found = json.loads(out.read_text())
    rows = found["sections"]["overlay"]["rows"]
    expected = ["plaintext", *(["wireguard-go"] if wireguard.is_installed() else []), "ztdpu"]
    assert [(row["mtu_octets"], row["path"]) for row in rows] == [
        (mtu, one) for mtu in (9000, 1500) for one in expected
    ]
    assert all(row["gbits"]["median"] > 0 for row in rows)
    processes = {row["process"] for row in found["sections"]["overlay"]["profile"] if row["path"] == "ztdpu"}
    assert {"sender's worker", "receiver's worker", "sender's agent", "iperf3 sender", "whole machine"} <= processes
    assert "MTU 9000" in ended.stdout
