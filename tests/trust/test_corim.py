"""Reference manifests: those of another project to the last field, and nothing hostile read as anything else."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import CorimError
from ztdpu.trust import corim, cose, strict_cbor
from ztdpu.trust.corim import read_corim
from ztdpu.trust.strict_cbor import Tag

THEN = datetime(2025, 12, 1, tzinfo=UTC)
EXAMPLE_KEY = ("MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM")
"""Key `1` of RFC 7517 appendix A.1: the signed manifest names it as its key id, and is signed by it."""


def example_key():
    x, y = (int.from_bytes(base64.urlsafe_b64decode(one + "=")) for one in EXAMPLE_KEY)
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()


@pytest.fixture
def vector(shared_vectors):
    def read(name):
        path = shared_vectors / "rats" / name
        if not path.exists():
            pytest.skip(f"{name} is not here")
        return path.read_bytes()

    return read


def test_vector_of_a_layer(vector):
    manifest = read_corim(vector("veraison_corim-1.cbor"), now=THEN)
    (triple,) = manifest.triples
    (one,) = triple.measurements
    environment = triple.environment
    assert (environment.vendor, environment.model, environment.layer) == ("ACME Inc.", "ACME RoadRunner", 1)
    assert environment.class_id == "uuid 67b28b6c-34cc-40a1-9117-ab5b05911e37"
    assert one.digests == {"sha256": "44aa336af4cb14a879432e53dd6571c7fa9bccafb75f488259262d6ea3a4d91b"}
    assert (one.key, one.version, one.unread) == (None, "1.0.0", ())
    assert (manifest.unread, manifest.is_signed) == ((), False)


def test_vector_with_a_profile_of_its_own(vector):
    manifest = read_corim(vector("veraison_unsigned-example-corim.cbor"), now=THEN)
    assert manifest.name == "test corim id"
    assert manifest.unread == ("extension -1 of the manifest", "profile http://example.com/example-profile")
    (triple,) = manifest.triples
    assert (triple.environment.vendor, triple.environment.model) == ("ACME", "RoadRunner")
    assert [one.key for one in triple.measurements] == ["uuid 31fb5abf-023e-4992-aa4e-95f9c1503bfa"] * 3
    assert [one.digests["sha256"][:4] for one in triple.measurements] == ["8742", "0263", "a3a5"]
    assert {one.unread for one in triple.measurements} == {("measurement value -1",)}


def test_signed_vector_verifies_and_says_what_the_unsigned_one_says(vector):
    blob, plain = vector("veraison_signed-example-corim.cbor"), vector("veraison_unsigned-example-corim.cbor")
    signed = read_corim(blob, now=THEN, key=example_key())
    assert (signed.is_signed, signed.signer) == (True, "ACME Ltd signing key")
    assert signed.triples == read_corim(plain, now=THEN).triples
    key = ec.derive_private_key(5, ec.SECP256R1()).public_key()
    for changes in ({"key": None}, {"key": key}, {"key": ec.derive_private_key(5, ec.SECP384R1()).public_key()}):
        with pytest.raises(CorimError):
            read_corim(blob, **{"now": THEN, "key": example_key()} | changes)
    with pytest.raises(CorimError, match="not signed"):
        read_corim(plain, now=THEN, key=example_key())


def test_signature_of_the_vector_counts_from_its_first_to_its_last_second(vector):
    blob = vector("veraison_signed-example-corim.cbor")
    first, last = datetime(2021, 12, 31, tzinfo=UTC), datetime(2025, 12, 31, tzinfo=UTC)
    for now in (first, last):
        assert read_corim(blob, now=now, key=example_key())
    for now in (first - timedelta(seconds=1), last + timedelta(seconds=1)):
        with pytest.raises(CorimError, match=r"expired|before"):
            read_corim(blob, now=now, key=example_key())
    with pytest.raises(ValueError, match="zone"):
        read_corim(blob, now=datetime(2025, 1, 1), key=example_key())  # noqa: DTZ001


def test_every_octet_of_the_signed_vector_counts(vector):
    blob = vector("veraison_signed-example-corim.cbor")
    for place in range(len(blob)):
        with pytest.raises(CorimError):
            read_corim(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :], now=THEN, key=example_key())


@pytest.mark.parametrize("name", ["veraison_corim-1.cbor", "veraison_unsigned-example-corim.cbor"])
def test_mutations_of_the_vectors_raise_nothing_else(vector, name):
    blob, dice, refused = vector(name), random.Random(20261201), 0
    for _ in range(2000):
        mutated = bytearray(blob)
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(len(mutated))
            if dice.randrange(4):
                mutated[place] = dice.randrange(256)
            else:
                del mutated[place]
        try:
            read_corim(bytes(mutated), now=THEN)
        except CorimError:
            refused += 1
    assert refused > 1000
    assert read_corim(blob, now=THEN)


# --- manifests of our own making ---

DIGEST = [7, bytes(48)]


def comid(**changes):
    document = {1: {0: "tag"}, 4: {0: [[{0: {1: "NVIDIA", 2: "BlueField-3"}}, [{0: 2, 1: {2: [DIGEST]}}]]]}}
    return Tag(506, strict_cbor.encode(document | changes.get("comid", {})))


def manifest(**changes):
    return strict_cbor.encode(Tag(501, {0: "an id", 1: [comid(**changes)]} | changes.get("top", {})))


def triples(environment=None, measurement=None):
    environment = {0: {1: "NVIDIA", 2: "BlueField-3"}} if environment is None else environment
    return {"comid": {4: {0: [[environment, [{0: 2, 1: {2: [DIGEST]}} if measurement is None else measurement]]]}}}


HOSTILE = {
    "no tags": {"top": {1: None}},
    "a tag of no kind": {"top": {1: [Tag(507, b"")]}},
    "a tag that is no octets": {"top": {1: [Tag(506, [1])]}},
    "a CoMID that is no map": {"top": {1: [Tag(506, b"\x80")]}},
    "an id of floats": {"top": {0: [1]}},
    "an id that a terminal obeys": {"top": {0: "\x1b[2J"}},
    "expired": {"top": {4: {1: Tag(1, 1_600_000_000)}}},
    "not valid yet": {"top": {4: {0: Tag(1, 1_900_000_000), 1: Tag(1, 1_900_000_001)}}},
    "validity without end": {"top": {4: {0: Tag(1, 1)}}},
    "time without tag": {"top": {4: {1: 1_900_000_000}}},
    "time past all calendars": {"top": {4: {1: Tag(1, (1 << 64) - 1)}}},
    "no tag identity": {"comid": {1: None}},
    "no triples": {"comid": {4: None}},
    "a triple of three": {"comid": {4: {0: [[{}, [{1: {}}], 1]]}}},
    "a triple without measurements": {"comid": {4: {0: [[{}, []]]}}},
    "vendor as a number": triples({0: {1: 7}}),
    "layer below zero": triples({0: {3: -1}}),
    "layer true": triples({0: {3: True}}),
    "class id as true": triples({0: {0: True}}),
    "values missing": triples(measurement={0: 2}),
    "digest of another size": triples(measurement={0: 2, 1: {2: [[7, bytes(32)]]}}),
    "digest of an old hash": triples(measurement={0: 2, 1: {2: [[3, bytes(20)]]}}),
    "digest as text": triples(measurement={0: 2, 1: {2: [[7, "00"]]}}),
    "two digests of a hash": triples(measurement={0: 2, 1: {2: [DIGEST, DIGEST]}}),
    "no digests in the list": triples(measurement={0: 2, 1: {2: []}}),
    "svn below zero": triples(measurement={0: 2, 1: {1: -1}}),
    "svn of octets": triples(measurement={0: 2, 1: {1: Tag(553, b"1")}}),
    "key of a list": triples(measurement={0: [2], 1: {2: [DIGEST]}}),
    "version without text": triples(measurement={0: 2, 1: {0: {1: 1}}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests(name):
    assert read_corim(manifest(), now=THEN).triples[0].measurements[0].digests == {"sha384": bytes(48).hex()}
    with pytest.raises(CorimError):
        read_corim(manifest(**HOSTILE[name]), now=THEN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top": {2: []}}, "manifests that it depends on"),
        ({"top": {3: Tag(111, b"\x2a\x03")}}, "profile oid 2a03"),
        ({"top": {-5: 1}}, "extension -5 of the manifest"),
        ({"top": {"x": 1}}, "extension x of the manifest"),
        ({"top": {1: [Tag(505, b""), comid()]}}, "a CoSWID tag"),
        ({"top": {1: [Tag(508, b""), comid()]}}, "a CoTL tag"),
        ({"comid": {3: []}}, "CoMIDs that it replaces or adds to"),
        ({"comid": {4: {10: []}}}, "conditional endorsements"),
        ({"comid": {4: {77: []}}}, "triples of kind 77"),
    ],
)
def test_what_is_not_read_is_named(changes, said):
    assert said in read_corim(manifest(**changes), now=THEN).unread


@pytest.mark.parametrize(
    ("values", "said"), [({3: {0: True}}, "flags"), ({4: b"x"}, "a raw value"), ({-1: 1}, "measurement value -1")]
)
def test_values_that_are_not_read_are_named(values, said):
    (triple,) = read_corim(manifest(**triples(measurement={0: 2, 1: {2: [DIGEST]} | values})), now=THEN).triples
    assert triple.measurements[0].unread == (said,)


def test_versions_exact_and_at_least():
    for value, expected in ((7, (7, None)), (Tag(552, 7), (7, None)), (Tag(553, 7), (None, 7))):
        (triple,) = read_corim(manifest(**triples(measurement={0: 2, 1: {1: value}})), now=THEN).triples
        assert (triple.measurements[0].svn, triple.measurements[0].minimum_svn) == expected


def test_headers_of_the_signature():
    key = ec.derive_private_key(9, ec.SECP384R1())
    meta = strict_cbor.encode({0: {0: "maker"}})
    good = {cose.HEADER_CONTENT_TYPE: corim.CONTENT_TYPE, 8: meta}

    def sign(header, payload=None):
        return cose.sign(manifest() if payload is None else payload, key=key, header=header, unprotected={})

    assert read_corim(sign(good), now=THEN, key=key.public_key()).signer == "maker"
    for blob in (
        sign(good | {3: "text/plain"}),
        sign({3: corim.CONTENT_TYPE}),
        sign(good | {2: [8]}),
        sign(good | {15: {1: "x"}}),
        sign(good | {8: strict_cbor.encode({0: {0: "maker"}, 1: {1: Tag(1, 1)}})}),
        sign(good | {8: b"\xff"}),
        sign(good, payload=strict_cbor.encode({0: "no tag"})),
        sign(good, payload=sign(good)),
    ):
        with pytest.raises(CorimError):
            read_corim(blob, now=THEN, key=key.public_key())


def test_bounds():
    for blob in (b"", bytes(corim.LIMIT_OCTETS + 1), b"\xd9\x01\xf5" * 99, b"\xd9\x01\xf5\x9a\xff\xff\xff\xff"):
        with pytest.raises(CorimError):
            read_corim(blob, now=THEN)


JUNK = [
    *(None, True, 0, -1, (1 << 64) - 1, -(1 << 64), b"", b"x" * 16, "", "\x00", "a" * 300),
    *([], [[]], [1, 2], {}, {0: {}}, {"x": 1}, {0: 0, 1: 1}),
    *(Tag(number, value) for number in (1, 18, 32, 37, 111, 501, 506, 552, 553) for value in (0, b"", "", [], {})),
]


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def put(value, path, new):
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = put(value[path[0]], path[1:], new)
    return changed


def test_junk_in_every_place_of_a_manifest_raises_nothing_else():
    """Well-formed CBOR with something else in one place, as a key or as a value."""
    environment = {0: {0: Tag(37, bytes(16)), 1: "NVIDIA", 2: "BlueField-3", 3: 1, 4: 0}, 1: Tag(550, b"x")}
    measurement = {0: 2, 1: {0: {0: "1.0"}, 1: Tag(553, 1), 2: [DIGEST], 11: "name"}}
    inner = {0: "en", 1: {0: "tag"}, 4: {0: [[environment, [measurement]]]}}
    validity = {0: Tag(1, 0), 1: Tag(1, 1_900_000_000)}
    outer = {0: "an id", 1: [], 3: Tag(32, "u"), 4: validity}

    def read(inner, outer):
        blob = outer | {1: [Tag(506, strict_cbor.encode(inner))]} if isinstance(outer, dict) and 1 in outer else outer
        return read_corim(strict_cbor.encode(Tag(501, blob)), now=THEN)

    assert read(inner, outer).triples
    refused = 0
    for junk in JUNK:
        cases = [(put(inner, path, junk), outer) for path in places(inner)]
        cases += [(inner, put(outer, path, junk)) for path in places(outer)]
        for case in cases:
            try:
                read(*case)
            except CorimError:
                refused += 1
    assert refused > 500
