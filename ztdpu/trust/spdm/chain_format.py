"""The form of a certificate chain in SPDM (DSP0274 1.2, 10.6.1): length, root hash, certificates root first.

Splits and joins octets; whether the certificates are worth anything is decided by `trust.chain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.evidence import CERTIFICATES_LIMIT
from ztdpu.trust.spdm.suite import Suite

CHAIN_LIMIT_OCTETS: Final = 16 * 1024
_FIXED_OCTETS: Final = 4
_SEQUENCE: Final = 0x30
_LONG_FORMS: Final = {0x81: 1, 0x82: 2}


def encode_chain(certificates: Sequence[bytes], suite: Suite) -> bytes:
    """Join certificates, root first, into the form that CERTIFICATE portions are cut from."""
    rest = suite.digest(certificates[0]) + b"".join(certificates)
    return (_FIXED_OCTETS + len(rest)).to_bytes(2, "little") + bytes(2) + rest


def split_chain(chain: bytes, suite: Suite) -> tuple[bytes, tuple[bytes, ...]]:
    """Split a chain into its root hash and its certificates.

    Raises:
        SpdmError: another length than announced, no or too many certificates, octets that are no
            certificate, or a root hash that is not the first one's.

    """
    offset = _FIXED_OCTETS + suite.hash_octets
    if not offset <= len(chain) <= CHAIN_LIMIT_OCTETS:
        raise SpdmError(f"certificate chain of {len(chain)} octets")
    if int.from_bytes(chain[:2], "little") != len(chain):
        raise SpdmError("certificate chain names another length than it has")
    certificates: list[bytes] = []
    while offset < len(chain):
        octets = _certificate_octets(chain, offset)
        if offset + octets > len(chain) or len(certificates) == CERTIFICATES_LIMIT:
            raise SpdmError("certificate chain is cut short or too long")
        certificates.append(chain[offset : offset + octets])
        offset += octets
    root_hash = chain[_FIXED_OCTETS : _FIXED_OCTETS + suite.hash_octets]
    if not certificates or suite.digest(certificates[0]) != root_hash:
        raise SpdmError("root hash of the certificate chain is not that of its first certificate")
    return root_hash, tuple(certificates)


def _certificate_octets(chain: bytes, offset: int) -> int:
    """Size of the DER sequence at `offset`, tag and length included."""
    form = _LONG_FORMS.get(chain[offset + 1]) if offset + 2 <= len(chain) else None
    if chain[offset] != _SEQUENCE or form is None:
        raise SpdmError("certificate chain has octets that are no certificate")
    return 2 + form + int.from_bytes(chain[offset + 2 : offset + 2 + form], "big")
