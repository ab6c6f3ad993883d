"""The inside of an offer: each SA wrapped under its tenant's epoch key, all of them sealed to the request's KEM key.

    sealed   = HPKE(KEM key of the request, info = label 0x00 SHA-256(H) request hash, [[prefix, wrapped], ...])
    prefix   = [network, generation, epoch, use, lane, PSP version]
    wrapped  = AES-256-GCM(wrap key, nonce 0, [SPI, SA key, ttl, soft limit, IV mode],
                           aad = request hash, SHA-256(H), prefix)
    wrap key = HKDF-SHA256(epoch key, salt = request hash, info = label 0x00 SHA-256(H) SHA-256(prefix))

So an offer opens only for whom it was made, in answer to exactly that request, and only with the epoch keys
that a lease brings. A wrap key is used once because H holds a sequence number. Used by `exchange`, which has
checked the signature before anything here runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ztdpu.errors import ExchangeError, PspFormatError
from ztdpu.keys import kem, wire
from ztdpu.keys.kem import KemKey
from ztdpu.keys.messages import Head
from ztdpu.model.sa import PspVersion, SaGrant, SaWant
from ztdpu.psp.header import check_spi, check_version
from ztdpu.psp.kdf import KEY_OCTETS

EPOCH_KEY_OCTETS: Final = 32
TTL_S_MAX: Final = 24 * 3600
IV_MODE_COUNTER: Final = 1
"""The receiver sees IVs and keeps a replay window; the sender counts from 1."""
_ZERO_NONCE: Final = bytes(12)
_HPKE_LABEL: Final = b"ztdpu/v1/sa-offer/hpke\0"
_WRAP_LABEL: Final = b"ztdpu/v1/sa-wrap\0"


def seal_grants(
    wants: Sequence[SaWant],
    grants: Sequence[SaGrant],
    epoch_keys: Sequence[bytes],
    *,
    head: Head,
    request_hash: bytes,
    kem_public: bytes,
) -> bytes:
    """Return `sealed` for an offer. The three sequences go in step.

    Raises ExchangeError when the request's KEM key turns out to be unusable.
    """
    head_sha256 = _sha256(head.encode())
    rows = []
    for want, grant, epoch_key in zip(wants, grants, epoch_keys, strict=True):
        prefix = _prefix(want, grant.psp_version)
        secret = wire.encode([grant.spi, grant.key, grant.ttl_s, grant.soft_limit_octets, IV_MODE_COUNTER])
        aead = AESGCM(_wrap_key(epoch_key, request_hash, head_sha256, prefix))
        rows.append([prefix, aead.encrypt(_ZERO_NONCE, secret, request_hash + head_sha256 + prefix)])
    try:
        return kem.seal_to(kem_public, wire.encode(rows), info=_HPKE_LABEL + head_sha256 + request_hash)
    except kem.KemError:
        raise ExchangeError("the request's KEM key is not usable") from None


def open_grants(
    sealed: bytes,
    wants: Sequence[SaWant],
    epoch_key_for: Callable[[SaWant], bytes],
    *,
    head: Head,
    request_hash: bytes,
    kem_key: KemKey,
) -> tuple[SaGrant, ...]:
    """Return the grants of an offer, in the order of `wants`: one for each, or for some where others are withheld.

    Raises ExchangeError when the seal or a wrap does not open, an entry is not what was wanted, or its epoch is not in
    force (`epoch_key_for`).
    """
    head_sha256 = _sha256(head.encode())
    try:
        opened = kem.open_with(kem_key, sealed, info=_HPKE_LABEL + head_sha256 + request_hash)
        rows = wire.take_rows(wire.decode(opened), 1, len(wants))
        answered = _match(rows, wants)
        grants = tuple(
            _open_row(row, want, epoch_key_for(want), request_hash, head_sha256)
            for row, want in zip(rows, answered, strict=True)
        )
    except kem.KemError:
        raise ExchangeError("the offer does not open") from None
    except (wire.WireError, PspFormatError):
        raise ExchangeError("the offer's entries are malformed or not what was wanted") from None
    if len({grant.spi for grant in grants}) != len(grants):
        raise ExchangeError("the offer names an SPI twice")
    return grants


def _match(rows: Sequence[Any], wants: Sequence[SaWant]) -> list[SaWant]:
    """The want that each row answers: the next of its network, use and lane. None twice, none out of order."""
    following = iter(wants)
    answered = []
    for row in rows:
        prefix, _ = wire.take_array(row, 2)
        fields = wire.take_array(wire.decode(wire.take_blob(prefix)), 6)
        place = (fields[0], fields[3], fields[4])
        want = next((one for one in following if (one.network_id, int(one.use), one.lane) == place), None)
        if want is None:
            raise wire.WireError("the entry is not what was wanted")
        answered.append(want)
    return answered


def _open_row(row: Any, want: SaWant, epoch_key: bytes, request_hash: bytes, head_sha256: bytes) -> SaGrant:
    prefix, wrapped = (wire.take_blob(field) for field in wire.take_array(row, 2))
    version = check_version(wire.take_unsigned(wire.take_array(wire.decode(prefix), 6)[5], 15))
    if prefix != _prefix(want, version):
        raise wire.WireError("the entry is not what was wanted")
    aead = AESGCM(_wrap_key(epoch_key, request_hash, head_sha256, prefix))
    try:
        secret = aead.decrypt(_ZERO_NONCE, wrapped, request_hash + head_sha256 + prefix)
    except InvalidTag:
        raise ExchangeError("an SA is not wrapped under the tenant's epoch key") from None
    spi, key, ttl_s, soft_limit, iv_mode = wire.take_array(wire.decode(secret), 5)
    if iv_mode != IV_MODE_COUNTER or not ttl_s:
        raise wire.WireError("unknown IV mode, or no time to live")
    return SaGrant(
        network_id=want.network_id,
        use=want.use,
        lane=want.lane,
        psp_version=version,
        spi=check_spi(wire.take_unsigned(spi)),
        key=wire.take_bytes(key, KEY_OCTETS[version]),
        ttl_s=wire.take_unsigned(ttl_s, TTL_S_MAX),
        soft_limit_octets=wire.take_unsigned(soft_limit),
    )


def _prefix(want: SaWant, version: PspVersion) -> bytes:
    return wire.encode(
        [want.network_id, want.network_generation, want.key_epoch, int(want.use), want.lane, int(version)]
    )


def _wrap_key(epoch_key: bytes, request_hash: bytes, head_sha256: bytes, prefix: bytes) -> bytes:
    info = _WRAP_LABEL + head_sha256 + _sha256(prefix)
    return HKDF(algorithm=SHA256(), length=32, salt=request_hash, info=info).derive(epoch_key)


def _sha256(octets: bytes) -> bytes:
    return hashlib.sha256(octets).digest()
