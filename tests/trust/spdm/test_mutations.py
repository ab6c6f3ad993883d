"""Mutations in every field of every message, at both ends, and of stored evidence: nothing wrong is accepted.

One in a hundred stays untouched and must be accepted. `make soak` makes at least 50 in each field, 20,000 in all, and
prints the table; here each field gets a few.
"""

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

import cbor2
import pytest

from ztdpu.errors import EvidenceError, Location
from ztdpu.trust.appraise import appraise
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import list_profiles, load_profile
from ztdpu.trust.reference import AppraisalPolicy, ReferenceValues
from ztdpu.trust.root import EmulatedRoot
from ztdpu.trust.spdm.evidence import decode_evidence
from ztdpu.trust.spdm.messages import Code
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.suite import suite_of

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SHORT, FULL = 3, 60
TOTAL = 20_000
SOURCE = Location(file="none", line=0)
HEADER = {"version": 1, "code": 1, "param1": 1, "param2": 1}
CAPABILITIES = {"reserved": 1, "exponent": 1, "reserved 2": 2, "flags": 4, "transfer": 4, "message": 4}
SIZES = {
    Code.GET_CAPABILITIES: CAPABILITIES,
    Code.CAPABILITIES: CAPABILITIES,
    Code.NEGOTIATE_ALGORITHMS: {
        "length": 2, "specification": 1, "other": 1, "asymmetric": 4, "hash": 4, "reserved": 12, "extended": 2, "end": 2,
    },
    Code.ALGORITHMS: {
        "length": 2, "specification": 1, "other": 1, "measurement hash": 4, "asymmetric": 4, "hash": 4,
        "reserved": 12, "extended": 2, "end": 2,
    },
    Code.GET_CERTIFICATE: {"offset": 2, "length": 2},
    Code.CERTIFICATE: {"length": 2, "remainder": 2, "portion": None},
    Code.CHALLENGE: {"nonce": 32},
    Code.GET_MEASUREMENTS: {"nonce": 32, "slot": 1},
    Code.VERSION: {"reserved": 1, "count": 1, "entries": None},
    Code.DIGESTS: {"digests": None},
}  # fmt: skip


def measurement_sizes(answer):
    """Fields of MEASUREMENTS, those of its blocks named by index."""
    sizes, at, end = {"blocks": 1, "record length": 3}, 8, 8 + int.from_bytes(answer[5:8], "little")
    while at < end:
        index, octets = answer[at], int.from_bytes(answer[at + 5 : at + 7], "little")
        parts = {"index": 1, "specification": 1, "size": 2, "type": 1, "value size": 2, "value": octets}
        sizes |= {f"block {index} {part}": size for part, size in parts.items()}
        at += 7 + octets
    return sizes | {"nonce": 32, "opaque length": 2, "signature": None}


def fields_of(message, suite, *, summary):
    """(name, start, end) of every field that the message has."""
    code = message[1]
    if code == Code.MEASUREMENTS:
        sizes = measurement_sizes(message)
    elif code == Code.CHALLENGE_AUTH:
        digests = {"chain hash": suite.hash_octets, "nonce": 32, "summary": suite.hash_octets if summary else 0}
        sizes = digests | {"opaque length": 2, "signature": None}
    else:
        sizes = SIZES.get(code, {})
    at, found = 0, []
    for name, size in (HEADER | sizes).items():
        end = len(message) if size is None else min(at + size, len(message))
        if end > at:
            found.append((f"{Code(code).name} {name}", at, end))
        at = end
    assert at == len(message), (Code(code).name, at, len(message))
    return found


def mutate(octets, start, end, rng):
    """Another content of one field; never the same octets."""
    field = octets[start:end]
    while True:
        kind = rng.randrange(9)
        place = rng.randrange(len(field))
        changed = bytearray(field)
        if kind < 3:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            changed[place] = rng.randrange(256)
        elif kind == 4:
            changed = rng.randbytes(len(field))
        elif kind == 5:
            changed = rng.choice((b"\0", b"\xff")) * len(field)
        elif kind == 6:
            changed = field[:place]
        elif kind == 7:
            changed = field + field[place:]
        else:
            changed = field[:place] + rng.randbytes(rng.randrange(1, 5)) + field[place:]
        whole = octets[:start] + bytes(changed) + octets[end:]
        if whole != octets:
            return whole


@dataclass
class Tally:
    mutated: Counter
    untouched: int = 0
    wrong: int = 0
    refused_untouched: int = 0

    def take(self, name, *, is_touched, is_accepted):
        if is_touched:
            self.mutated[name] += 1
            self.wrong += is_accepted
        else:
            self.untouched += 1
            self.refused_untouched += not is_accepted


class Bench:
    """One device of a profile and a good session with it."""

    def __init__(self, name):
        self.rng = random.Random(f"mutations of {name}")
        self.profile = load_profile(name)
        self.suite = suite_of(self.profile)
        since = NOW - timedelta(days=1)
        maker = create_manufacturer(profile=self.profile, random=self.rng.randbytes, now=since)
        device = maker.make_device(serial="EMU1", uds=self.rng.randbytes(32), now=since)
        self.roots = (maker.root,)
        self.device = EmulatedRoot(
            secrets=device, profile=self.profile, firmware=device.firmware, boot_counter=1, boot_nonce=bytes(16),
            random=self.rng.randbytes,
        )  # fmt: skip
        self.nonces = {"nonce": b"\xaa" * 32, "challenge_nonce": b"\xbb" * 32}
        self.pairs = []
        session, door = self.session(), self.device.open_session()
        while (request := session.next_request()) is not None:
            self.pairs.append((request, door.answer(request)))
            session.receive(self.pairs[-1][1])
        self.evidence = session.evidence()

    def session(self):
        return MeasurementSession(profile=self.profile, **self.nonces)

    def fields(self, message):
        return fields_of(message, self.suite, summary=not self.profile.one_by_one)

    def plays_answer(self, number, changed):
        """Whether a requester accepts a recorded session with this answer in one place."""
        session = self.session()
        try:
            for place, (_, answer) in enumerate(self.pairs):
                session.next_request()
                session.receive(changed if place == number else answer)
        except EvidenceError:
            return False
        # An ERROR that the session bears leaves it one answer behind: it asked again, and is not done.
        return session.done

    def plays_request(self, number, changed):
        """Whether a session succeeds in which the device got this request in one place."""
        session, door = self.session(), self.device.open_session()
        try:
            for place in range(len(self.pairs)):
                request = session.next_request()
                answer = door.answer(changed if place == number else request)
                assert answer[1] < 0x80, "the device answers with a request"
                session.receive(answer)
        except EvidenceError:
            return False
        return session.done

    def reads_evidence(self, blob):
        try:
            appraise(
                decode_evidence(blob),
                ReferenceValues(name="none", profile=self.profile.name, source=SOURCE),
                AppraisalPolicy(name="none", source=SOURCE),
                NOW,
                manufacturer_roots=self.roots,
                pinned_device_id_sha256=None,
                nonce=self.nonces["nonce"],
            )
        except EvidenceError:
            return False
        return True


def run(bench, rounds):
    """Mutate every field `rounds` times; gives the tally."""
    tally, rng, cases = Tally(Counter()), bench.rng, count()
    for number, pair in enumerate(bench.pairs):
        for message, play in zip(pair, (bench.plays_request, bench.plays_answer), strict=True):
            for name, start, end in bench.fields(message):
                for _ in range(rounds):
                    is_touched = next(cases) % 100 > 0
                    changed = mutate(message, start, end, rng) if is_touched else message
                    tally.take(name, is_touched=is_touched, is_accepted=play(number, changed))
    blob = bench.evidence.encode()
    for name, start, end in evidence_fields(blob):
        for _ in range(rounds):
            is_touched = next(cases) % 100 > 0
            changed = mutate(blob, start, end, rng) if is_touched else blob
            tally.take(name, is_touched=is_touched, is_accepted=bench.reads_evidence(changed))
    return tally


def evidence_fields(blob):
    """Every value in stored evidence, with its CBOR head."""
    found, at = [("evidence head", 0, 1)], 1
    for name, value in zip(
        ("label", "format", "profile", "certificates", "root hash", "messages", "signature"),
        cbor2.loads(blob),
        strict=True,
    ):
        parts = value if isinstance(value, list) else [value]
        if isinstance(value, list):
            head = len(cbor2.dumps(value)) - sum(len(cbor2.dumps(part)) for part in value)
            found.append((f"evidence {name} head", at, at + head))
            at += head
        for place, part in enumerate(parts):
            octets = len(cbor2.dumps(part))
            found.append((f"evidence {name} {place}", at, at + octets))
            at += octets
    assert at == len(blob)
    return found


@pytest.mark.parametrize("name", list_profiles())
def test_a_few_mutations_of_every_field(name):
    bench = Bench(name)
    assert all(bench.plays_answer(number, answer) for number, (_, answer) in enumerate(bench.pairs))
    assert all(bench.plays_request(number, request) for number, (request, _) in enumerate(bench.pairs))
    assert bench.reads_evidence(bench.evidence.encode())
    tally = run(bench, SHORT)
    assert (tally.wrong, tally.refused_untouched) == (0, 0)
    assert tally.untouched > 5


def test_a_verifier_that_believes_its_peer_would_be_seen(monkeypatch):
    """The test can fail: a requester that verifies no signature accepts mutations."""
    for module in ("requester", "transcript"):
        monkeypatch.setattr(f"ztdpu.trust.spdm.{module}.verify_transcript", lambda *_: None)
    assert run(Bench("generic"), 2).wrong > 10


@pytest.mark.soak
def test_twenty_thousand_mutations():
    wrong = refused = total = untouched = 0
    for name in list_profiles():
        tally = run(Bench(name), FULL)
        print(f"\n{name}: {tally.mutated.total()} mutations, {tally.untouched} untouched, {tally.wrong} wrong")
        for field, times in sorted(tally.mutated.items()):
            print(f"  {field:<48}{times:>6}")
        assert min(tally.mutated.values()) >= 50
        wrong, refused = wrong + tally.wrong, refused + tally.refused_untouched
        total, untouched = total + tally.mutated.total(), untouched + tally.untouched
    print(f"\n{total} mutations, {untouched} untouched and accepted, {wrong} wrong, 0 unhandled exceptions")
    assert total >= TOTAL
    assert untouched >= total // 200
    assert (wrong, refused) == (0, 0)
