"""Replacing the authority: each step with its refusal, what agents hear, who is believed before and after."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from ztdpu.control.authority.key_store import FileKeyStore, SigningKey
from ztdpu.control.clock import SystemClock
from ztdpu.control.devices.leases import Instant
from ztdpu.control.run import ControlProcess
from ztdpu.errors import ConflictError, StateError, UsageError
from ztdpu.model.identity import BACKDATED_S, IdentityKind, judge_expiry
from ztdpu.trust.authority import BACKDATING
from ztdpu.trust.bundle_document import read_bundle_document
from ztdpu.trust.svid import verify_path
from ztdpu.v1 import agent_pb2

TRUST_DOMAIN = "test.example"


def authorities_of(push: agent_pb2.ControlMessage) -> int:
    return len(read_bundle_document(push.bundle.document, trust_domain=TRUST_DOMAIN).authorities)


async def say(stream: Any, agent: Any, sequence: int) -> None:
    status = agent_pb2.AgentStatus(bundle_sequence=sequence, worker_instance=agent.worker_instance)
    await stream.send(status=status)


async def until(condition: Any, limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.02)


async def sequence_of(admin: Any, device: str) -> int:
    found = (await admin.list_identities()).identities
    return next(one.bundle_sequence for one in found if one.spiffe_id.endswith(f"/dpu/{device}"))


@pytest.fixture
async def connected(make_agent, open_stream):
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    assert authorities_of(await stream.receive("bundle")) == 1
    return agent, stream


async def test_three_steps_and_nobody_is_cut_off(connected, process, admin, open_stream) -> None:
    agent, stream = connected
    first = process.issuer.standing.active.name
    ports = process.enrolment_port, process.main_port
    old_svid = agent.svid

    prepared = await admin.rotate_authority("prepare", reason="yearly")
    assert authorities_of(await stream.receive("bundle")) == 2
    assert process.issuer.standing.active.name == first
    with pytest.raises(StateError, match="dpu-0"):
        await admin.rotate_authority("activate", reason="yearly")
    await say(stream, agent, prepared.bundle_sequence)

    async def followed() -> bool:
        return await sequence_of(admin, "dpu-0") == prepared.bundle_sequence

    await until(followed)
    activated = await admin.rotate_authority("activate", reason="yearly")
    assert activated.authority == prepared.authority == process.issuer.standing.active.name != first
    assert (process.enrolment_port, process.main_port) == ports
    await say(stream, agent, prepared.bundle_sequence)  # the stream of before still carries messages
    with pytest.raises(StateError, match="dpu-0"):
        await admin.rotate_authority("retire", reason="yearly")

    assert (await agent.attest()).svid  # far from half its life, and still a new one
    _, authority = verify_path(agent.svid, process.issuer.bundle, datetime.now(UTC))
    assert process.issuer.name_of_authority(authority) == activated.authority
    newer = await open_stream(agent)
    await newer.receive("bundle")
    retired = await admin.rotate_authority("retire", reason="yearly")
    assert (retired.authority, retired.state) == (first, "retired")
    assert authorities_of(await newer.receive("bundle")) == 1
    await say(newer, agent, retired.bundle_sequence)
    agent.svid = old_svid
    assert await (await open_stream(agent)).code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.PERMISSION_DENIED,
    )

    leaves = [json.loads(one.leaf) for one in await admin.list_audit(limit=100)]
    told = [(one["subject"], one["outcome"]) for one in leaves if one["action"] == "rotate-authority"]
    assert told == [
        ("prepare", "done"),
        ("activate", "refused"),
        ("activate", "done"),
        ("retire", "refused"),
        ("retire", "done"),
    ]


async def test_forced_steps_wait_for_nobody_and_end_old_streams(connected, process, admin) -> None:
    _, stream = connected
    await admin.rotate_authority("prepare", reason="key is known")
    activated = await admin.rotate_authority("activate", reason="key is known", force=True)
    assert activated.devices_behind == ("dpu-0",)
    retired = await admin.rotate_authority("retire", reason="key is known", force=True)
    assert retired.devices_behind == ("dpu-0",)
    assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    keys = {path.name for path in process.spec.state_dir.glob("authority*.key")}
    assert keys == {f"{process.issuer.standing.active.key_name}.key"}


async def test_steps_out_of_turn_and_without_reason_are_refused(process, admin) -> None:
    before = process.issuer.standing
    for step, kind in (("activate", StateError), ("retire", StateError), ("undo", UsageError)):
        with pytest.raises(kind):
            await admin.rotate_authority(step, reason="x")
    with pytest.raises(UsageError):
        await admin.rotate_authority("prepare", reason=" ")
    assert process.issuer.standing == before
    await admin.rotate_authority("prepare", reason="x")
    with pytest.raises(StateError, match="under way"):
        await admin.rotate_authority("prepare", reason="x")
    assert len(list(process.spec.state_dir.glob("authority*.key"))) == 2  # refused ones leave no key behind


async def test_a_repeated_request_is_one_step(process, admin) -> None:
    first = await admin.rotate_authority("prepare", reason="x", request_id="one")
    assert await admin.rotate_authority("prepare", reason="x", request_id="one") == first
    assert len(process.issuer.standing.authorities) == 2
    assert len(list(process.spec.state_dir.glob("authority*.key"))) == 2
    with pytest.raises(ConflictError):
        await admin.rotate_authority("activate", reason="x", request_id="one", force=True)


async def test_a_restart_goes_on_where_the_rotation_stood(plant, process, admin) -> None:
    await admin.rotate_authority("prepare", reason="x")
    await admin.rotate_authority("activate", reason="x", force=True)
    standing = process.issuer.standing
    await process.stop()
    again = ControlProcess(plant.configuration())
    await again.start()
    try:
        assert again.issuer.standing == standing
        assert again.issuer.own().authority == standing.active.name
    finally:
        await again.stop()
        await process.start()


async def test_what_ends_is_listed_with_what_is_left(connected, process, admin) -> None:
    found = (await admin.list_identities()).identities
    assert [one.kind for one in found] == [IdentityKind.AUTHORITY, IdentityKind.CONTROL, IdentityKind.DEVICE]
    assert {one.authority for one in found} == {process.issuer.standing.active.name}
    assert {str(one.expiry) for one in found} == {"ok"}
    process._listeners._identities.sweep()
    kinds = {
        sample.labels["kind"]: sample.value
        for metric in process.meters.identity_seconds.collect()
        for sample in metric.samples
    }
    assert 0 < kinds["device"] <= 600
    assert kinds["control"] > 80_000
    assert kinds["authority"] > 360 * 86_400


def test_a_signing_key_is_not_handed_out(tmp_path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = FileKeyStore(tmp_path)
    made = store.make("one")
    assert isinstance(made, SigningKey)
    assert store.path("one").stat().st_mode & 0o777 == 0o600
    opened = store.open("one")
    signature = opened.sign(b"octets", ec.ECDSA(SHA384()))
    made.public_key().verify(signature, b"octets", ec.ECDSA(SHA384()))
    with pytest.raises(UnsupportedAlgorithm):
        opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(UnsupportedAlgorithm):
        opened.private_numbers()
    store.destroy("one")
    assert not store.path("one").exists()


def test_how_near_an_end_is() -> None:
    assert timedelta(seconds=BACKDATED_S) == BACKDATING

    def judge(kind: IdentityKind, left_s: float, life_s: int = 1000) -> str:
        return str(
            judge_expiry(kind, not_before_unix_s=-BACKDATED_S, not_after_unix_s=life_s, now_unix_s=life_s - left_s)
        )

    assert [judge(IdentityKind.DEVICE, left) for left in (1000, 251, 249, 51, 49, 1, 0, -5)] == [
        "ok", "ok", "soon", "soon", "now", "now", "over", "over",
    ]  # fmt: skip
    assert [judge(IdentityKind.AUTHORITY, left) for left in (201, 199)] == ["ok", "soon"]


async def test_an_end_that_comes_nearer_is_told_once_in_the_log(plant, monkeypatch, make_bare_agent) -> None:
    told: list[dict[str, Any]] = []

    class Log:
        def error(self, event: str, **fields: Any) -> None:
            told.append({"event": event, **fields})

    monkeypatch.setattr("ztdpu.control.authority.view.get_logger", Log)
    clock = ShiftedClock()
    process = ControlProcess(plant.configuration(), clock=clock)
    await process.start()
    try:
        for task in process._tasks:
            task.cancel()
        view = process._listeners._identities
        for share, expected in ((0.5, []), (0.85, ["soon"]), (0.9, []), (0.96, ["now"]), (1.01, ["over"]), (1.02, [])):
            clock.shift_ms = int(365 * 86_400_000 * share)
            view._due_ns = 0
            told.clear()
            await process._listeners.renew()
            view.sweep()
            assert [one["expiry"] for one in told if one["kind"] == "authority"] == expected
        agent = make_bare_agent("dpu-0", process)
        with pytest.raises(StateError, match="authority ended"):
            process.issuer.issue_device_svid("dpu-0", agent.keys.tls_key.public_key(), ttl_s=60)
    finally:
        await process.stop()


class ShiftedClock(SystemClock):
    """The machine's clocks, with the wall clock moved forward."""

    shift_ms = 0

    def now(self) -> Instant:
        real = super().now()
        return dataclasses.replace(real, unix_ms=real.unix_ms + self.shift_ms)
