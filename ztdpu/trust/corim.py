"""CoRIM: reference values as a manufacturer publishes them (draft-ietf-rats-corim), read strictly and told plainly.

    501 corim-map | 18 COSE_Sign1 over it -> tags: 506 CoMID -> reference triples: environment, measurements

Reads files that strangers wrote: bounded, one pass, signature before content. What is not read is not passed over: it
stands by name in `unread` of the part that it would have changed, and `ztdpu.policy.corim_import` refuses it. Never
judges a device; `now` decides whether the manifest is valid.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import CorimError
from ztdpu.trust import cose, strict_cbor
from ztdpu.trust.strict_cbor import Tag

LIMIT_OCTETS: Final = 1024 * 1024
DEPTH_LIMIT: Final = 16
CONTENT_TYPE: Final = "application/rim+cbor"
TAG_CORIM, TAG_COSWID, TAG_COMID, TAG_COTL = 501, 505, 506, 508
_TAG_TIME, _TAG_URI, _TAG_UUID, _TAG_OID = 1, 32, 37, 111
_TAG_SVN, _TAG_MIN_SVN, _TAG_BYTES = 552, 553, 560
_HEADER_META = 8
_HEADERS: Final = frozenset({cose.HEADER_ALGORITHM, cose.HEADER_CONTENT_TYPE, cose.HEADER_KEY_ID, _HEADER_META})
_OTHER_TAGS: Final = {TAG_COSWID: "a CoSWID tag", TAG_COTL: "a CoTL tag"}
_TRIPLES: Final = {
    1: "endorsed values",
    2: "identity keys",
    3: "attestation keys",
    5: "membership",
    6: "CoSWID references",
    8: "a series of conditional endorsements",
    10: "conditional endorsements",
}
_VALUES: Final = {
    3: "flags",
    4: "a raw value",
    5: "a mask of a raw value",
    6: "a MAC address",
    7: "an IP address",
    8: "a serial number",
    9: "a UEID",
    10: "a UUID",
    13: "keys",
    14: "integrity registers",
    15: "a range of numbers",
}
_DIGESTS: Final = {1: ("sha256", 32), 7: ("sha384", 48), 8: ("sha512", 64)}
"""Number in the IANA registry of named information -> hash and its octets."""
_DIGEST_PARTS: Final = 2
_TRIPLE_PARTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What measurements are about."""

    class_id: str = ""
    """Printable: `uuid ...`, `oid ...`, `bytes ...`."""
    vendor: str = ""
    model: str = ""
    layer: int | None = None
    index: int | None = None
    unread: tuple[str, ...] = ()
    """An instance or a group, for example: what would narrow this down, and is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Values that hold together."""

    key: int | str | None = None
    """A number, or printable text for every other kind; None without one."""
    digests: Mapping[str, str]
    """Hash -> lower-case hexadecimal."""
    name: str = ""
    version: str = ""
    svn: int | None = None
    """Exactly this one."""
    minimum_svn: int | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTriple:
    """Measurements that an environment may show."""

    environment: Environment
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corim:
    """A manifest, as read."""

    name: str
    """Its id, printable."""
    is_signed: bool
    signer: str = ""
    """As the signed header names it; who it is was decided by the key."""
    triples: tuple[ReferenceTriple, ...]
    unread: tuple[str, ...] = ()
    """Of the manifest as a whole: its profile, other tags, other kinds of triples, extensions."""


def read_corim(blob: bytes, *, now: datetime, key: ec.EllipticCurvePublicKey | None = None) -> Corim:
    """Read a manifest; a signed one is verified with `key`.

    Raises:
        CorimError: malformed, not valid at `now`, signed without a key given or a key given without a signature, or a
            signature that does not verify.
        ValueError: `now` has no time zone, or a key on a curve that is not known.

    """
    if now.tzinfo is None:
        raise ValueError("`now` needs a time zone")
    item = _decode(blob)
    if not isinstance(item, Tag) or item.number not in (TAG_CORIM, cose.TAG_SIGN1):
        raise CorimError("no CoRIM: neither tag 501 nor a COSE_Sign1 stands in front")
    if item.number == TAG_CORIM:
        if key is not None:
            raise CorimError("manifest is not signed, and a signer's key was named")
        return _read_map(item, now, is_signed=False, signer="")
    if key is None:
        raise CorimError("manifest is signed, and no key was named to verify it with")
    message = cose.take_apart(item, refusal=CorimError, limit_octets=LIMIT_OCTETS, is_deterministic=False)
    cose.verify(message, key=key, refusal=CorimError)
    if not set(message.header) <= _HEADERS or message.header.get(cose.HEADER_CONTENT_TYPE) != CONTENT_TYPE:
        raise CorimError(f"manifest is signed under another header than algorithm, key id, meta and {CONTENT_TYPE}")
    signer = _read_meta(message.header.get(_HEADER_META), now)
    return _read_map(_decode(message.payload), now, is_signed=True, signer=signer)


def _decode(blob: Any) -> Any:
    if not isinstance(blob, bytes):
        raise CorimError("something stands where octets should")
    return strict_cbor.decode(
        blob, refusal=CorimError, limit_octets=LIMIT_OCTETS, depth_limit=DEPTH_LIMIT, is_deterministic=False
    )


def _read_meta(octets: Any, now: datetime) -> str:
    """Name of the signer; the signature has a validity of its own. Without corim-meta nobody says who signed."""
    if octets is None:
        raise CorimError("manifest is signed without saying by whom (corim-meta)")
    meta = _map(_decode(octets), "corim-meta")
    signer = _map(meta.get(0), "signer")
    _check_validity(meta.get(1), now, "signature")
    return _text(signer.get(0), "name of the signer")


def _read_map(item: Any, now: datetime, *, is_signed: bool, signer: str) -> Corim:
    if not isinstance(item, Tag) or item.number != TAG_CORIM:
        raise CorimError("no corim-map (tag 501)")
    document = _map(item.value, "corim-map")
    _check_validity(document.get(4), now, "manifest")
    unread = [f"extension {_short(key)} of the manifest" for key in document if key not in range(6)]
    if 2 in document:
        unread.append("manifests that it depends on")
    if 3 in document:
        unread.append(f"profile {_identifier(document[3])}")
    triples: list[ReferenceTriple] = []
    for tag in _list(document.get(1), "tags"):
        if isinstance(tag, Tag) and tag.number in _OTHER_TAGS:
            unread.append(_OTHER_TAGS[tag.number])
            continue
        if not isinstance(tag, Tag) or tag.number != TAG_COMID:
            raise CorimError("manifest holds something that is no CoMID, CoSWID or CoTL tag")
        found, others = _read_comid(_map(_decode(tag.value), "CoMID"))
        triples += found
        unread += others
    name = _identifier(document.get(0))
    return Corim(name=name, is_signed=is_signed, signer=signer, triples=tuple(triples), unread=_once(unread))


def _read_comid(comid: Mapping[Any, Any]) -> tuple[list[ReferenceTriple], list[str]]:
    _map(comid.get(1), "tag identity of a CoMID")
    triples = _map(comid.get(4), "triples of a CoMID")
    unread = [f"extension {_short(key)} of a CoMID" for key in comid if key not in range(5)]
    unread += [_TRIPLES.get(key, f"triples of kind {key}") for key in triples if key != 0]
    if 3 in comid:
        unread.append("CoMIDs that it replaces or adds to")
    return [_read_triple(one) for one in _list(triples.get(0, []), "reference triples")], unread


def _read_triple(item: Any) -> ReferenceTriple:
    parts = _list(item, "reference triple")
    if len(parts) != _TRIPLE_PARTS:
        raise CorimError("a reference triple is not an environment and its measurements")
    measurements = tuple(_read_measurement(one) for one in _list(parts[1], "measurements"))
    if not measurements:
        raise CorimError("a reference triple has no measurements")
    return ReferenceTriple(environment=_read_environment(_map(parts[0], "environment")), measurements=measurements)


def _read_environment(item: Mapping[Any, Any]) -> Environment:
    described = _map(item.get(0, {}), "class")
    unread = [
        {1: "an instance", 2: "a group"}.get(key, f"extension {_short(key)} of an environment")
        for key in item
        if key != 0
    ]
    unread += [f"extension {_short(key)} of a class" for key in described if key not in range(5)]
    return Environment(
        class_id=_identifier(described[0]) if 0 in described else "",
        vendor=_text(described[1], "vendor") if 1 in described else "",
        model=_text(described[2], "model") if 2 in described else "",
        layer=_number(described[3], "layer") if 3 in described else None,
        index=_number(described[4], "index") if 4 in described else None,
        unread=_once(unread),
    )


def _read_measurement(item: Any) -> Measurement:
    outer = _map(item, "measurement")
    values = _map(outer.get(1), "measurement values")
    unread = ["who may have measured it"] if 2 in outer else []
    unread += [f"extension {_short(key)} of a measurement" for key in outer if key not in range(3)]
    unread += [_VALUES.get(key, f"measurement value {key}") for key in values if key not in (0, 1, 2, 11)]
    key = outer.get(0)
    svn, minimum = _read_svn(values.get(1))
    return Measurement(
        key=key if key is None or (isinstance(key, int) and not isinstance(key, bool)) else _identifier(key),
        digests=_read_digests(values[2]) if 2 in values else {},
        name=_text(values[11], "name of a measurement") if 11 in values else "",
        version=_text(_map(values[0], "version").get(0), "version") if 0 in values else "",
        svn=svn,
        minimum_svn=minimum,
        unread=_once(unread),
    )


def _read_svn(value: Any) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    if isinstance(value, Tag) and value.number == _TAG_MIN_SVN:
        return None, _number(value.value, "svn")
    plain = value.value if isinstance(value, Tag) and value.number == _TAG_SVN else value
    return _number(plain, "svn"), None


def _read_digests(value: Any) -> dict[str, str]:
    digests: dict[str, str] = {}
    for one in _list(value, "digests"):
        pair = _list(one, "digest")
        if len(pair) != _DIGEST_PARTS or isinstance(pair[0], bool) or not isinstance(pair[1], bytes):
            raise CorimError("a digest is not an algorithm and octets")
        named = _DIGESTS.get(pair[0]) if isinstance(pair[0], int) else None
        if named is None:
            raise CorimError(f"a digest is of algorithm {_identifier(pair[0])}; SHA-256, SHA-384 and SHA-512 are read")
        name, octets = named
        if len(pair[1]) != octets or name in digests:
            raise CorimError(f"a digest of {name} has another size, or stands twice")
        digests[name] = pair[1].hex()
    if not digests:
        raise CorimError("digests are an empty list")
    return digests


# --- values ---


def _check_validity(item: Any, now: datetime, what: str) -> None:
    """Both ends belong to it, as with certificates; no slack."""
    if item is None:
        return
    validity = _map(item, f"validity of the {what}")
    if 0 in validity and now < _time(validity[0]):
        raise CorimError(f"{what} is not valid before {_time(validity[0]).isoformat()}")
    if now > _time(validity.get(1)):
        raise CorimError(f"{what} expired at {_time(validity.get(1)).isoformat()}")


def _time(value: Any) -> datetime:
    if not isinstance(value, Tag) or value.number != _TAG_TIME:
        raise CorimError("a time is no tagged number of seconds")
    try:
        return datetime.fromtimestamp(_number(value.value, "time"), tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise CorimError("a time is out of bounds") from error


def _identifier(value: Any) -> str:
    """Something that names something, printable: never compared, only shown."""
    match value:
        case str():
            return _text(value, "identifier")
        case bool():
            pass
        case int():
            return str(value)
        case bytes():
            return _of_octets("uuid" if len(value) == len(uuid.NAMESPACE_DNS.bytes) else "bytes", value)
        case Tag(number=number, value=str() as text) if number == _TAG_URI:
            return _text(text, "URI")
        case Tag(number=number, value=bytes() as octets):
            known = {_TAG_UUID: "uuid", _TAG_OID: "oid", _TAG_BYTES: "bytes"}
            return _of_octets(known.get(number, f"tag {number}"), octets)
        case Tag(number=number):
            return f"tag {number}"
    raise CorimError("an identifier of a type that is not known")


def _short(key: int | str) -> str:
    """A key of a map in a phrase."""
    return str(key)[:40]


def _of_octets(kind: str, octets: bytes) -> str:
    if kind == "uuid" and len(octets) == len(uuid.NAMESPACE_DNS.bytes):
        return f"uuid {uuid.UUID(bytes=octets)}"
    return f"{kind} {octets[:64].hex()}"


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        raise CorimError(f"{what} is no printable text of 1 to 255 characters")
    return value


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CorimError(f"{what} is no number from 0")
    return value


def _map(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise CorimError(f"{what} is missing or no map")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise CorimError(f"{what}: missing or no list")
    return value


def _once(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
