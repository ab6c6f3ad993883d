"""Busy, resynch, not ready, too late; measurements one by one; slow ones."""

import dataclasses
from datetime import UTC, datetime

import pytest

from ztdpu.errors import SpdmError
from ztdpu.trust.boot import boot_device
from ztdpu.trust.extensions import Boot
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.evidence import decode_evidence
from ztdpu.trust.spdm.messages import Code, Error, ErrorCode
from ztdpu.trust.spdm.patience import PAUSES_LIMIT, RESTARTS_LIMIT, SESSION_LIMIT_S
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.responder import Responder
from ztdpu.trust.spdm.suite import suite_of

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NONCE = b"\x99" * 32
BUSY = Error(version=0x12, code=ErrorCode.BUSY).encode()
RESYNCH = Error(version=0x12, code=ErrorCode.REQUEST_RESYNCH).encode()


class Moody:
    """A responder that says something else before it answers."""

    def __init__(self, responder, *, at, words):
        self.responder, self.at, self.words, self.asked = responder, at, list(words), []

    def answer(self, request):
        self.asked.append(request)
        if request[1] == self.at and self.words:
            return self.words.pop(0)
        return self.responder.answer(request, NONCE)


def drive(session, device):
    waits = []
    while (request := session.next_request()) is not None:
        waits.append(session.wait_s)
        session.receive(device.answer(request))
    return waits


@pytest.mark.parametrize("at", [code for code in Code if 0x80 <= code < Code.RESPOND_IF_READY])
def test_busy_is_asked_again_after_pauses_that_grow(bench, at):
    session, device = bench.session(), Moody(bench.responder(), at=at, words=[BUSY] * 3)
    waits = [wait for wait in drive(session, device) if wait]
    assert waits == sorted(waits)
    assert len(waits) == 3
    first = next(place for place, request in enumerate(device.asked) if request[1] == at)
    assert len(set(device.asked[first : first + 4])) == 1
    assert session.evidence().blocks == bench.device.blocks
    assert BUSY not in session.evidence().messages


def test_busy_without_end_is_refused(bench):
    session, device = bench.session(), Moody(bench.responder(), at=Code.GET_MEASUREMENTS, words=[BUSY] * PAUSES_LIMIT)
    drive(session, device)
    device = Moody(bench.responder(), at=Code.GET_MEASUREMENTS, words=[BUSY] * (PAUSES_LIMIT + 1))
    with pytest.raises(SpdmError, match="still busy"):
        drive(bench.session(), device)


@pytest.mark.parametrize("at", [Code.GET_DIGESTS, Code.GET_CERTIFICATE, Code.CHALLENGE, Code.GET_MEASUREMENTS])
def test_resynch_starts_again_at_get_version(bench, at):
    session, device = bench.session(), Moody(bench.responder(), at=at, words=[RESYNCH])
    drive(session, device)
    assert [request[1] for request in device.asked].count(Code.GET_VERSION) == 2
    assert session.evidence().blocks == bench.device.blocks
    assert decode_evidence(session.evidence().encode()) == session.evidence()


def test_resynch_without_end_is_refused(bench):
    good, bad = ([RESYNCH] * count for count in (RESTARTS_LIMIT, RESTARTS_LIMIT + 1))
    drive(bench.session(), Moody(bench.responder(), at=Code.GET_DIGESTS, words=good))
    with pytest.raises(SpdmError, match="again and again"):
        drive(bench.session(), Moody(bench.responder(), at=Code.GET_DIGESTS, words=bad))


@pytest.mark.parametrize("version", [0x11, 0x13, 0])
def test_an_error_of_another_version_ends_the_session(bench, version):
    words = [Error(version=version, code=ErrorCode.BUSY).encode()]
    with pytest.raises(SpdmError, match="ERROR of version"):
        drive(bench.session(), Moody(bench.responder(), at=Code.GET_DIGESTS, words=words))


def not_ready(code, *, exponent=15, token=0x5A, version=0x12, extended=None):
    octets = bytes((exponent, code, token, 1)) if extended is None else extended
    return Error(version=version, code=ErrorCode.RESPONSE_NOT_READY, extended=octets).encode()


class Unready(Moody):
    """Defers a request, and answers it when it is asked for by its token."""

    def answer(self, request):
        if request[1] == Code.RESPOND_IF_READY:
            self.asked.append(request)
            return self.words.pop(0) if self.words else self.responder.answer(self.deferred, NONCE)
        if request[1] == self.at and self.words:
            self.deferred = request
        return super().answer(request)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("at", [Code.GET_DIGESTS, Code.GET_CERTIFICATE, Code.CHALLENGE, Code.GET_MEASUREMENTS])
def test_an_answer_that_is_not_ready_is_asked_for_by_its_token(bench, at, times):
    session, device = bench.session(), Unready(bench.responder(), at=at, words=[not_ready(at)] * times)
    waits = [wait for wait in drive(session, device) if wait]
    assert waits == [2**15 / 1e6] * times
    later = [request.hex() for request in device.asked if request[1] == Code.RESPOND_IF_READY]
    assert later == [f"12ff{at:02x}5a"] * times
    assert session.evidence().blocks == bench.device.blocks
    assert all(message[1] not in {Code.ERROR, Code.RESPOND_IF_READY} for message in session.evidence().messages)


def test_never_ready_is_refused(bench):
    words = [not_ready(Code.GET_MEASUREMENTS)] * (PAUSES_LIMIT + 1)
    with pytest.raises(SpdmError, match="still not ready"):
        drive(bench.session(), Unready(bench.responder(), at=Code.GET_MEASUREMENTS, words=words))


@pytest.mark.parametrize(
    ("at", "answer"),
    [
        pytest.param(Code.GET_CAPABILITIES, not_ready(Code.GET_CAPABILITIES), id="while negotiating"),
        pytest.param(Code.GET_VERSION, not_ready(Code.GET_VERSION, version=0x10), id="before a version"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.CHALLENGE), id="another request"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.GET_DIGESTS, exponent=23), id="8 s"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.GET_DIGESTS, exponent=255), id="for ever"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.GET_DIGESTS, extended=b""), id="no token"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.GET_DIGESTS, extended=bytes(5)), id="an octet too many"),
        pytest.param(Code.GET_DIGESTS, not_ready(Code.GET_DIGESTS, version=0x10), id="of no version"),
    ],
)
def test_not_ready_where_it_may_not_be(bench, at, answer):
    drive(bench.session(), Unready(bench.responder(), at=Code.GET_DIGESTS, words=[not_ready(Code.GET_DIGESTS)]))
    with pytest.raises(SpdmError, match="not ready"):
        drive(bench.session(), Unready(bench.responder(), at=at, words=[answer]))


@pytest.mark.parametrize(("late_s", "is_refused"), [(SESSION_LIMIT_S, False), (SESSION_LIMIT_S + 0.1, True)])
def test_the_deadline(bench, late_s, is_refused):
    session, responder = bench.session(now_s=100.0), bench.responder()
    session.receive(responder.answer(session.next_request(), NONCE), now_s=101.0)
    answer = responder.answer(session.next_request(), NONCE)
    if is_refused:
        with pytest.raises(SpdmError, match="within 20 s"):
            session.receive(answer, now_s=100.0 + late_s)
    else:
        session.receive(answer, now_s=100.0 + late_s)


@pytest.fixture(scope="module")
def erot():
    profile = load_profile("bluefield-3-erot")
    maker = create_manufacturer(profile=profile, random=lambda octets: b"\x41" * octets, now=NOW)
    secrets = maker.make_device(serial="EMU2", uds=b"\x5b" * 32, now=NOW)
    device = boot_device(profile, secrets, secrets.firmware, Boot(counter=1, nonce=bytes(16)))

    def respond(blocks=device.blocks):
        return Responder(profile=profile, certificates=device.certificates, key=device.alias_key, blocks=blocks)

    return profile, device, respond


def collect(profile, responder, spoil=lambda _request, answer: answer):
    session = MeasurementSession(profile=profile, nonce=b"\xaa" * 32, challenge_nonce=b"\xbb" * 32)
    while (request := session.next_request()) is not None:
        session.receive(spoil(request, responder.answer(request, NONCE)))
    return session.evidence()


def test_one_by_one_gives_every_measurement_that_is_not_slow(erot):
    profile, device, respond = erot
    evidence = collect(profile, respond())
    assert [block.index for block in evidence.blocks] == [1, 2, 3, 4, 5, 6, 7, 254]
    assert evidence.blocks == tuple(block for block in device.blocks if block.index != 50)
    asked = list(evidence.messages[::2])
    assert [request[3] for request in asked] == [0, 1, 2, 3, 4, 5, 6, 7, 254]
    assert [request[2] for request in asked] == [0] * 8 + [1]
    assert evidence.l1[:2] == b"\x11\xe0"
    assert decode_evidence(evidence.encode()) == evidence


def test_an_answer_with_another_measurement_is_refused_though_signed(erot):
    profile, device, _respond = erot
    swapped = {2: 3}

    class Swapping(Responder):
        def _make_measurements(self, asked, nonce):
            return super()._make_measurements(
                dataclasses.replace(asked, operation=swapped.get(asked.operation, asked.operation)), nonce
            )

    responder = Swapping(profile=profile, certificates=device.certificates, key=device.alias_key, blocks=device.blocks)
    with pytest.raises(SpdmError, match="other measurements"):
        collect(profile, responder)
    swapped.clear()
    collect(profile, responder)


def test_a_device_with_fewer_measurements_is_refused(erot):
    profile, device, respond = erot
    with pytest.raises(SpdmError, match="asked for"):
        collect(profile, respond(device.blocks[:3]))


def test_an_unsigned_answer_is_signed_over_by_the_last_one(erot):
    profile, _device, respond = erot

    def spoil(request, answer):
        if request[:4] == b"\x11\xe0\x00\x02":
            return answer[:20] + bytes((answer[20] ^ 1,)) + answer[21:]
        return answer

    with pytest.raises(SpdmError, match="does not verify"):
        collect(profile, respond(), spoil)


def test_slow_measurements_are_busy_until_their_time_has_passed(erot):
    profile, _device, respond = erot
    responder, suite = respond(), suite_of(profile)
    session = MeasurementSession(profile=profile, nonce=NONCE)
    for _ in range(3):
        session.receive(responder.answer(session.next_request(), NONCE, 0.0))
    slow = auth.GetMeasurements(version=0x11, operation=50).encode()
    fast = auth.GetMeasurements(version=0x11, operation=2).encode()
    assert responder.answer(slow, NONCE, 10.0) == Error(version=0x11, code=ErrorCode.BUSY).encode()
    assert responder.answer(slow, NONCE, 10.3)[1] == Code.ERROR
    assert responder.answer(fast, NONCE, 10.3)[1] == Code.MEASUREMENTS
    answer = responder.answer(slow, NONCE, 10.4)
    assert auth.Measurements.decode(answer, is_signed=False, suite=suite).record[0] == 50
    assert responder.answer(slow, NONCE, 10.5)[1] == Code.ERROR
    assert responder.answer(slow, NONCE)[1] == Code.MEASUREMENTS
