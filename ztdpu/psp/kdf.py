"""Key derivation of PSP: the receiver turns a master key and an SPI into an SA key.

NIST SP 800-108 in counter mode with AES-256-CMAC, as in the PSP Architecture Specification ("Key Derivation").
Called by `device`. Never generates or keeps a key.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFCMAC, CounterLocation, Mode

from ztdpu.model.sa import PspVersion
from ztdpu.psp.header import check_spi, check_version

MASTER_KEY_OCTETS: Final = 32
KEY_OCTETS: Final = MappingProxyType({PspVersion.AES_GCM_128: 16, PspVersion.AES_GCM_256: 32})
_LABEL: Final = MappingProxyType({PspVersion.AES_GCM_128: b"Pv0", PspVersion.AES_GCM_256: b"Pv1"})


def master_key_slot(spi: int) -> int:
    """Return which of the two master keys `spi` belongs to: bit 31."""
    return spi >> 31


def derive_key(master_keys: tuple[bytes, bytes], spi: int, version: int) -> bytes:
    """Return the SA key, 16 octets for version 0 and 32 for version 1.

    `master_keys` are slots 0 and 1, 32 octets each. Raises PspFormatError for an SPI whose low 31 bits are
    zero and for versions other than 0 and 1; ValueError for a master key of another length.
    """
    suite = check_version(version)
    master_key = master_keys[master_key_slot(check_spi(spi))]
    if len(master_key) != MASTER_KEY_OCTETS:
        raise ValueError(f"a master key has 32 octets, not {len(master_key)}")
    derivation = KBKDFCMAC(
        algorithm=AES,
        mode=Mode.CounterMode,
        length=KEY_OCTETS[suite],
        rlen=4,
        llen=4,
        location=CounterLocation.BeforeFixed,
        label=_LABEL[suite],
        context=spi.to_bytes(4, "big"),
        fixed=None,
    )
    return derivation.derive(master_key)
