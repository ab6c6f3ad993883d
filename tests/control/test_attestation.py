"""From evidence to lease over a real stream: the good case first, then every refusal with the good case as its twin."""

from __future__ import annotations

import asyncio
import secrets

import grpc
import pytest
from grpc import aio

from ztdpu.agent.own_keys import generate_kem_key, generate_own_keys
from ztdpu.control.appraisal.export import restate_result
from ztdpu.keys.epoch import open_epoch_keys
from ztdpu.keys.kem import kem_public_octets
from ztdpu.model.device import DeviceState
from ztdpu.trust.ear import open_ear
from ztdpu.trust.ear_cwt import open_ear_cwt
from ztdpu.trust.firmware import FirmwareFault, alter_firmware, default_firmware
from ztdpu.trust.spdm.messages import Code, Error, ErrorCode
from ztdpu.v1 import attestation_pb2


async def refusal(attempt) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await attempt
    return caught.value.code(), caught.value.details() or ""


async def test_enrolment_grants_lease_identity_and_keys(make_agent, admin, process) -> None:
    agent = await make_agent()
    result = await agent.attest()
    assert result.state == "affirming", result
    assert result.lease.duration_ms == 60_000
    assert len(result.svid) == 1
    assert result.ear_public_key == process.issuer.ear_public_key
    context = _context("dpu-0", kem_public_octets(agent.kem))
    keys = open_epoch_keys(result.lease.sealed_epoch_keys, kem_private_key=agent.kem, context=context)
    assert {key.epoch for key in keys} == {1}
    status = await admin.get_device("dpu-0")
    assert status.state is DeviceState.AFFIRMING
    assert 55 < status.lease_s <= 60
    assert status.tier == "affirming"


def _context(device: str, public: bytes) -> bytes:
    import hashlib

    return b"ztdpu/v1/epoch-keys\0" + hashlib.sha256(device.encode() + b"\0" + public).digest()


async def test_renewal_keeps_the_binding_and_the_version(make_agent, admin) -> None:
    agent = await make_agent()
    await agent.attest()
    before = await admin.get_device("dpu-0")
    agent.token, agent.applied_generation = "", 1 << 50
    result = await agent.attest()
    assert result.lease.duration_ms == 60_000
    assert not result.svid
    assert agent.challenged == 1
    assert (await admin.get_device("dpu-0")).version == before.version


async def test_lease_request_that_is_not_proven_needs_a_new_binding(make_agent) -> None:
    """A relay that shows genuine measurements must not have epoch keys sealed to a KEM key of its own."""
    agent = await make_agent()
    await agent.attest()
    agent.applied_generation = 1 << 50
    await agent.attest(begin=agent.begin(offer_signature=b""))
    assert agent.challenged == 2
    begin = agent.begin()
    begin.begin.lease.kem_public_key = secrets.token_bytes(1216)
    code, _ = await refusal(agent.attest(begin=begin))  # not even a key: refused after the new challenge
    assert agent.challenged == 3
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_altered_firmware_gets_nothing(make_agent, admin) -> None:
    altered = alter_firmware(make_profile(), default_firmware(make_profile()), FirmwareFault.FIRMWARE_ALTERED)
    agent = await make_agent(firmware=altered)
    result = await agent.attest()
    assert result.state == "contraindicated"
    assert not result.HasField("lease")
    assert not result.svid
    assert result.findings
    assert agent.challenged == 0
    report = await admin.get_attestation("dpu-0")
    assert report.findings[0].index
    agent.firmware = None
    agent.boot_counter = 2
    agent.boot()
    assert (await agent.attest()).state == "affirming"


def make_profile():
    from ztdpu.trust.profile import load_profile

    return load_profile("bluefield-3")


@pytest.mark.parametrize("case", ["none", "wrong", "other device's", "spent"])
async def test_token(case: str, make_agent, admin, process, plant) -> None:
    agent = await make_agent()
    good = agent.token
    if case == "none":
        agent.token = ""
    elif case == "wrong":
        agent.token = secrets.token_urlsafe(32)
    elif case == "other device's":
        agent.token = (await admin.create_join_token("dpu-1")).token
    else:
        with process.fleet.transaction() as transaction:
            import hashlib

            transaction.use_token(hashlib.sha256(good.encode()).digest(), device="dpu-0", now_unix_ms=1)
    assert await refusal(agent.attest()) == (grpc.StatusCode.PERMISSION_DENIED, "permission-denied")
    assert (await admin.get_device("dpu-0")).state is DeviceState.PENDING
    if case != "spent":
        agent.token = good
        assert (await agent.attest()).state == "affirming"


async def test_token_is_spent_once_when_two_race(make_agent) -> None:
    agent, rival = await make_agent(), await make_agent(token=False)
    rival.token = agent.token
    results = await asyncio.gather(agent.attest(), rival.attest(), return_exceptions=True)
    assert sorted(isinstance(one, aio.AioRpcError) for one in results) == [False, True]


async def test_evidence_of_another_device_is_refused(make_agent, admin) -> None:
    agent = await make_agent(secrets_of="stranger")
    assert await refusal(agent.attest()) == (grpc.StatusCode.PERMISSION_DENIED, "certificate")
    honest = await make_agent()
    assert (await honest.attest()).state == "affirming"


async def test_relayed_evidence_without_the_devices_binding_is_refused(make_agent) -> None:
    """An attacker reaches door one of the real device, and binds its own keys with a root of its own."""
    genuine = await make_agent()
    thief = await make_agent(secrets_of="stranger")
    code, word = await refusal(thief.attest(spdm=genuine.root.spdm))
    assert (code, word) == (grpc.StatusCode.PERMISSION_DENIED, "binding")
    assert (await genuine.attest()).state == "affirming"


async def test_replayed_answers_are_refused(make_agent) -> None:
    agent = await make_agent()
    recorded: list[bytes] = []

    def record(request: bytes) -> bytes:
        answer = agent.root.spdm(request)
        recorded.append(answer)
        return answer

    await agent.attest(spdm=record)
    replay = iter(recorded)
    code, word = await refusal(agent.attest(begin=agent.begin(binding_sha256=b""), spdm=lambda _: next(replay)))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert word in {"spdm", "evidence"}


@pytest.mark.parametrize(
    "changes",
    [{"nonce": b"\0" * 32}, {"trust_domain": "other.example"}],
    ids=["another nonce", "another domain"],
)
async def test_binding_that_does_not_fit_is_refused(changes, make_agent) -> None:
    agent = await make_agent()
    code, word = await refusal(agent.attest(bind=lambda nonce: agent.bind(**{"nonce": nonce} | changes)))
    assert (code, word) == (grpc.StatusCode.PERMISSION_DENIED, "binding")
    agent.binding = b""
    assert (await agent.attest()).state == "affirming"


async def test_possession_must_be_of_the_bound_keys(make_agent) -> None:
    agent, other = await make_agent(), generate_own_keys()

    def bind(nonce: bytes) -> attestation_pb2.AttestRequest:
        answer = agent.bind(nonce)
        answer.binding.offer_possession = agent.bind(nonce, keys=other).binding.offer_possession
        return answer

    assert await refusal(agent.attest(bind=bind)) == (grpc.StatusCode.PERMISSION_DENIED, "binding")


@pytest.mark.parametrize(
    "swap", [{"kem_public_key": kem_public_octets(generate_kem_key())}, {"applied_generation": 1 << 60}]
)
async def test_first_lease_request_is_covered_by_the_proofs_of_possession(make_agent, swap) -> None:
    agent = await make_agent()
    assert await refusal(agent.attest(begin=agent.begin(**swap))) == (grpc.StatusCode.PERMISSION_DENIED, "binding")
    agent.binding = b""
    assert (await agent.attest()).state == "affirming"


async def test_key_of_another_device_is_refused(make_agent) -> None:
    first, second = await make_agent("dpu-0"), await make_agent("dpu-1")
    await first.attest()
    second.keys = first.keys
    assert await refusal(second.attest()) == (grpc.StatusCode.PERMISSION_DENIED, "binding")
    second.keys, second.binding = generate_own_keys(), b""
    assert (await second.attest()).state == "affirming"


async def test_alias_of_a_revoked_binding_never_returns(make_agent, process) -> None:
    """Whatever the boot counter says: what an Alias signed was revoked, so new keys beside it do not help."""
    agent = await make_agent()
    await agent.attest()
    with process.fleet.transaction() as transaction:
        transaction.retire_bindings("dpu-0", denied=True)
    process.fleet.set_binding("dpu-0", None)
    agent.keys, agent.binding = generate_own_keys(), b""
    refused = await agent.attest()
    assert "Alias never seen before" in refused.reason
    assert not refused.HasField("lease")
    assert not refused.svid
    agent.reboot()
    assert (await agent.attest()).HasField("lease")


async def test_denied_keys_never_return_with_a_newer_boot(make_agent, process) -> None:
    agent = await make_agent()
    await agent.attest()
    with process.fleet.transaction() as transaction:
        transaction.retire_bindings("dpu-0", denied=True)
    process.fleet.set_binding("dpu-0", None)
    keys = agent.keys
    agent.reboot()
    fresh, agent.keys = agent.keys, keys
    refused = await agent.attest()
    assert "keys never seen before" in refused.reason
    assert not refused.HasField("lease")
    agent.keys, agent.binding = fresh, b""
    assert (await agent.attest()).HasField("lease")


async def test_older_boot_never_returns(make_agent) -> None:
    agent = await make_agent(boot_counter=5)
    await agent.attest()
    agent.boot_counter, agent.binding = 4, b""
    agent.boot()
    code, _ = await refusal(agent.attest())
    assert code is grpc.StatusCode.PERMISSION_DENIED
    agent.boot_counter = 6
    agent.boot()
    assert (await agent.attest()).state == "affirming"


async def test_out_of_turn_and_unknown_device_are_refused(make_agent) -> None:
    agent = await make_agent()
    out_of_turn = attestation_pb2.AttestRequest(spdm=b"\x12")
    assert (await refusal(agent.attest(begin=out_of_turn)))[0] is grpc.StatusCode.PERMISSION_DENIED
    agent.name = "dpu-9"
    assert (await refusal(agent.attest()))[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_every_refusal_is_one_audit_entry(make_agent, admin) -> None:
    agent = await make_agent(secrets_of="stranger")
    size = (await admin.status()).audit_size
    for _ in range(3):
        await refusal(agent.attest())
    assert (await admin.status()).audit_size == size + 3


async def test_idle_connections_block_nobody(make_agent, process) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", process.enrolment_port) for _ in range(50)]
    agent = await make_agent()
    async with asyncio.timeout(30):
        assert (await agent.attest()).state == "affirming"
    for _, writer in idle:
        writer.close()
    # gRPC's dynamic credentials can crash a server that stops in the very moment in which handshakes end: let them end.
    for _ in range(3):
        assert (await agent.attest()).state == "affirming"


@pytest.mark.parametrize(("octets", "code"), [(1_000, "PERMISSION_DENIED"), (66_000, "RESOURCE_EXHAUSTED")])
async def test_size_of_a_message_is_bounded(octets: int, code: str, make_agent) -> None:
    agent = await make_agent()
    begin = agent.begin()
    begin.begin.join_token = "x" * octets
    got, _ = await refusal(agent.attest(begin=begin))
    assert got.name == code


async def test_a_busy_device_is_waited_for_and_one_that_stays_so_is_refused(make_agent) -> None:
    agent = await make_agent()
    words = [Error(version=0x11, code=code).encode() for code in (ErrorCode.BUSY, ErrorCode.BUSY)]

    def moody(request: bytes) -> bytes:
        return words.pop() if request[1] == Code.GET_MEASUREMENTS and words else agent.root.spdm(request)

    assert (await agent.attest(spdm=moody)).state == "affirming"
    assert not words

    def busy(request: bytes) -> bytes:
        return (
            Error(version=0x11, code=ErrorCode.BUSY).encode()
            if request[1] == Code.GET_DIGESTS
            else agent.root.spdm(request)
        )

    started = asyncio.get_running_loop().time()
    assert await refusal(agent.attest(spdm=busy)) == (grpc.StatusCode.PERMISSION_DENIED, "spdm")
    assert 2 < asyncio.get_running_loop().time() - started < 20


async def test_spdm_1_1_is_challenged_so_that_its_negotiation_is_signed(make_agent) -> None:
    agent, asked = await make_agent(), []

    def negotiated(request: bytes) -> bytes:
        asked.append(request[1])
        answer = agent.root.spdm(request)
        # A capability that nobody needs: measurements alone would not tell.
        return answer[:8] + bytes((answer[8] | 1,)) + answer[9:] if request[1] == Code.GET_CAPABILITIES else answer

    assert await refusal(agent.attest(spdm=negotiated)) == (grpc.StatusCode.PERMISSION_DENIED, "spdm")
    assert Code.CHALLENGE in asked
    assert (await agent.attest()).state == "affirming"


async def test_the_result_is_handed_out_in_both_forms(make_agent, admin, process) -> None:
    agent = await make_agent()
    await agent.attest()
    report, key = await admin.get_attestation("dpu-0"), process.issuer.ear_key.public_key()
    assert open_ear_cwt(report.ear_cwt, key) == open_ear(report.ear, key)
    assert restate_result(process.issuer, "") == restate_result(process.issuer, report.ear[:-8] + "AAAAAAAA") == b""
