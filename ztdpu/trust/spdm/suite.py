"""What a profile fixes of SPDM: the version, and the sizes and code points that follow from its algorithms.

Made once per profile by `suite_of`, handed to every codec, to both ends and to whoever verifies a signature. Nothing
in it ever comes from a peer: SPDM 1.1 does not sign its negotiation (protocols.md 2), and neither version needs one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from ztdpu.trust.profile import Profile

VERSION_1_1: Final = 0x11
VERSION_1_2: Final = 0x12
_VERSIONS: Final = {"1.1": VERSION_1_1, "1.2": VERSION_1_2}
_HASHES: Final[dict[str, tuple[int, SHA256 | SHA384]]] = {"sha256": (0x01, SHA256()), "sha384": (0x02, SHA384())}
_SIGNATURES: Final = {"ecdsa-p256": (0x10, "secp256r1", 32), "ecdsa-p384": (0x80, "secp384r1", 48)}
_MEASUREMENT_HASHES: Final = {"sha256": 0x02, "sha384": 0x04, "sha512": 0x08}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Version and algorithms of one profile."""

    version: int
    """Version octet of every message but GET_VERSION and VERSION: 0x11 or 0x12."""
    asymmetric: int
    """Bit of BaseAsymAlgo."""
    curve: str
    """Of the key that signs."""
    half_octets: int
    """Size of r and of s."""
    hash_bit: int
    """Bit of BaseHashAlgo."""
    hash: str
    """Name of that hash: of transcripts and of the chain."""
    algorithm: SHA256 | SHA384
    """The same, as the signature scheme takes it."""
    measurement_hash: int
    """Bit of MeasurementHashAlgo."""

    @property
    def version_word(self) -> str:
        """`1.1` or `1.2`."""
        return f"{self.version >> 4}.{self.version & 0xF}"

    @property
    def hash_octets(self) -> int:
        """Size of a digest in messages."""
        return self.algorithm.digest_size

    @property
    def signature_octets(self) -> int:
        """Size of r || s."""
        return 2 * self.half_octets

    @property
    def signs_negotiation(self) -> bool:
        """Whether L1 begins with the negotiation and signatures carry a prefix: from 1.2 on (DSP0274 1.2, 15.2)."""
        return self.version >= VERSION_1_2

    @property
    def ecdsa(self) -> ec.ECDSA:
        """The signature scheme."""
        return ec.ECDSA(self.algorithm)

    def digest(self, octets: bytes) -> bytes:
        """Hash with the negotiated hash."""
        return hashlib.new(self.hash, octets).digest()


def suite_of(profile: Profile) -> Suite:
    """Give the suite of a profile, which was checked when it was loaded."""
    return _make(profile.spdm_version, profile.signature, profile.hash, profile.measurement_hash)


@cache
def _make(version: str, signature: str, digest: str, measurement_hash: str) -> Suite:
    asymmetric, curve, half_octets = _SIGNATURES[signature]
    hash_bit, algorithm = _HASHES[digest]
    return Suite(
        version=_VERSIONS[version],
        asymmetric=asymmetric,
        curve=curve,
        half_octets=half_octets,
        hash_bit=hash_bit,
        hash=digest,
        algorithm=algorithm,
        measurement_hash=_MEASUREMENT_HASHES[measurement_hash],
    )
