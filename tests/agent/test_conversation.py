"""Revocations under adverse circumstances: a worker that hangs, a stream that is replaced, lists from before.

Control and agents are those of `test_daemon.py`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ztdpu.v1 import agent_pb2

_spec = importlib.util.spec_from_file_location("small_lab", Path(__file__).with_name("test_daemon.py"))
small_lab = importlib.util.module_from_spec(_spec)
sys.modules["small_lab"] = small_lab
_spec.loader.exec_module(small_lab)

lab = small_lab.lab
both_ready = small_lab.both_ready


def stop_worker(daemon) -> int:
    os.kill(daemon._supervisor._worker.pid, signal.SIGSTOP)
    return daemon._supervisor._worker.pid


async def test_revocation_does_not_wait_behind_what_the_worker_owes(lab):
    await both_ready(lab)
    worker = stop_worker(lab.daemons["dpu-0"])
    lab.control.push_config("dpu-0", generation=lab.control.generation + 1000)
    generation = lab.control.revoke("dpu-1")
    await lab.until(lambda: lab.control.known["dpu-0"].applied == [generation], limit_s=3)
    assert not small_lab.is_alive(worker)
    await lab.until(lambda: lab.ready("dpu-0"))


async def test_revocations_are_acknowledged_in_order(lab):
    await both_ready(lab)
    stop_worker(lab.daemons["dpu-0"])
    first, second = lab.control.revoke("dpu-1"), lab.control.generation + 1
    lab.control.push("dpu-0", revocation=agent_pb2.Revocation(generation=second, device="dpu-9"))
    await lab.until(lambda: lab.control.known["dpu-0"].applied == [first, second])


async def test_stream_that_is_replaced_does_not_interrupt_a_revocation(lab):
    await both_ready(lab)
    daemon = lab.daemons["dpu-0"]
    stop_worker(daemon)
    generation = lab.control.revoke("dpu-1")
    await lab.until(lambda: daemon._exchange.devices == ())
    daemon._uplink.open(daemon._identity)
    await lab.until(lambda: lab.control.known["dpu-0"].applied == [generation], limit_s=5)
    await lab.until(lambda: dict(lab.status("dpu-0").key_epochs) == {small_lab.NETWORK.hex(): 2})


async def test_revocation_without_a_generation_outweighs_every_list_from_before(lab):
    await both_ready(lab)
    exchange, known = lab.daemons["dpu-0"]._exchange, lab.control.known["dpu-0"]
    before = agent_pb2.Peers(generation=lab.control.generation, peers=[lab.control.peer("dpu-1")])
    lab.control.push("dpu-0", revocation=agent_pb2.Revocation(generation=0, device="dpu-1"))
    lab.control.push("dpu-0", peers=before)
    lab.control.push_config("dpu-0", generation=lab.control.generation + 1000)
    await lab.until(lambda: known.status.applied_generation >= lab.control.generation + 1000)
    assert exchange.devices == ()
    lab.control.push_peers()
    await lab.until(lambda: exchange.devices == ("dpu-1",))


async def test_what_a_worker_removed_is_not_believed_installed(lab):
    await both_ready(lab)
    daemon = lab.daemons["dpu-0"]
    await lab.until(lambda: not daemon._exchange.missing())
    await daemon._conversation._remove_at_worker("dpu-1", cut_flows=False)
    assert daemon._exchange.missing() == [("dpu-1", small_lab.NETWORK)]
    await lab.until(lambda: not daemon._exchange.missing())


async def test_full_disk_refuses_new_peers_and_nothing_else(lab, monkeypatch):
    lab.control.interval_ms = 300
    await both_ready(lab)
    daemon, known = lab.daemons["dpu-0"], lab.control.known["dpu-1"]

    def full(*_args, **_keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ztdpu.agent.floors._write", full, raising=False)
        patch.setattr(Path, "write_text", full)
        begins = len(lab.control.known["dpu-0"].begins)
        lab.control.push_peers()
        await lab.until(lambda: len(lab.control.known["dpu-0"].begins) > begins + 1)
        assert daemon._exchange.devices == ("dpu-1",), "nothing about it is new"
        known.binding = b""  # its next binding raises its floor
        await lab.until(lambda: daemon._exchange.devices == ())
        assert lab.ready("dpu-0"), "it reports and attests all the same"
    lab.control.push_peers()
    await lab.until(lambda: daemon._exchange.devices == ("dpu-1",))


async def test_peer_whose_attestation_result_ended_is_one_no_more(lab):
    await both_ready(lab)
    daemon, now = lab.daemons["dpu-0"], datetime.now(UTC)
    await daemon._conversation.judge_again(now + timedelta(seconds=70))
    assert daemon._exchange.devices == ("dpu-1",), "60 s and 30 s of slack"
    await daemon._conversation.judge_again(now + timedelta(hours=2))
    assert daemon._exchange.devices == ()
    lab.control.push_peers()
    await lab.until(lambda: daemon._exchange.devices == ("dpu-1",))


async def test_every_grant_has_the_peers_judged_again(lab, monkeypatch):
    monkeypatch.setattr("ztdpu.agent.conversation.JUDGED_FOR", timedelta(0))
    lab.control.interval_ms = 300
    await both_ready(lab)
    conversation = lab.daemons["dpu-0"]._conversation
    judged = conversation._judged
    await lab.until(lambda: conversation._judged > max(judged, conversation._peers_received))


async def test_floors_are_kept_where_the_start_up_file_says(lab, tmp_path):
    await both_ready(lab, floorsDir=str(tmp_path / "kept" / "floors"))
    assert (tmp_path / "kept" / "floors" / "floors.json").exists()
    assert not (lab.daemons["dpu-0"]._spec.state_dir / "floors.json").exists()
