"""The form of a certificate chain in SPDM (DSP0274 1.2, 10.6.1): length, root hash, certificates root first.

Splits and joins octets; whether the certificates are worth anything is decided by `trust.chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.authentication import HASH_OCTETS
from ztdpu.trust.spdm.evidence import CERTIFICATES_LIMIT

CHAIN_LIMIT_OCTETS: Final = 16 * 1024
_FIXED_OCTETS: Final = 4 + HASH_OCTETS
_SEQUENCE: Final = 0x30
_LONG_FORMS: Final = {0x81: 1, 0x82: 2}


def encode_chain(certificates: Sequence[bytes]) -> bytes:
    """Join certificates, root first, into the form that CERTIFICATE portions are cut from."""
    joined = b"".join(certificates)
    length = _FIXED_OCTETS + len(joined)
    return length.to_bytes(2, "little") + bytes(2) + hashlib.sha384(certificates[0]).digest() + joined


def split_chain(chain: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Split a chain into its root hash and its certificates.

    Raises:
        SpdmError: another length than announced, no or too many certificates, octets that are no
            certificate, or a root hash that is not the first one's.

    """
    if len(chain) > CHAIN_LIMIT_OCTETS or len(chain) < _FIXED_OCTETS:
        raise SpdmError(f"certificate chain of {len(chain)} octets")
    if int.from_bytes(chain[:2], "little") != len(chain):
        raise SpdmError("certificate chain names another length than it has")
    certificates: list[bytes] = []
    offset = _FIXED_OCTETS
    while offset < len(chain):
        octets = _certificate_octets(chain, offset)
        if offset + octets > len(chain) or len(certificates) == CERTIFICATES_LIMIT:
            raise SpdmError("certificate chain is cut short or too long")
        certificates.append(chain[offset : offset + octets])
        offset += octets
    root_hash = chain[4:_FIXED_OCTETS]
    if not certificates or hashlib.sha384(certificates[0]).digest() != root_hash:
        raise SpdmError("root hash of the certificate chain is not that of its first certificate")
    return root_hash, tuple(certificates)


def _certificate_octets(chain: bytes, offset: int) -> int:
    """Size of the DER sequence at `offset`, tag and length included."""
    form = _LONG_FORMS.get(chain[offset + 1]) if offset + 2 <= len(chain) else None
    if chain[offset] != _SEQUENCE or form is None:
        raise SpdmError("certificate chain has octets that are no certificate")
    return 2 + form + int.from_bytes(chain[offset + 2 : offset + 2 + form], "big")
