"""A certificate chain read in portions: GET_CERTIFICATE and CERTIFICATE (DSP0274 1.2, 10.7).

Owned by one `requester.MeasurementSession`. Portions must add up to one length and to the digest that DIGESTS gave.
"""

from __future__ import annotations

from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.chain_format import CHAIN_LIMIT_OCTETS, split_chain
from ztdpu.trust.spdm.messages import TRANSFER_OCTETS
from ztdpu.trust.spdm.suite import Suite

PORTION_OCTETS: Final = 1024
"""Asked for in one GET_CERTIFICATE."""


class ChainReader:
    """One slot's chain, as far as it is there."""

    def __init__(self, suite: Suite, *, slot: int, portion_octets: int) -> None:
        if not 1 <= portion_octets <= 0xFFFF:
            raise ValueError(f"a portion of {portion_octets} octets cannot be asked for; up to {TRANSFER_OCTETS} fit")
        self._suite = suite
        self._slot = slot
        self._portion_octets = portion_octets
        self._chain = b""
        self._octets: int | None = None
        self.digest = b""
        """Of the whole chain, as DIGESTS gave it."""
        self.root_hash = b""
        self.certificates: tuple[bytes, ...] = ()
        """DER, root first; empty before all of it is there."""

    def take_digests(self, response: bytes) -> None:
        """Take DIGESTS; SpdmError when the slot is empty."""
        digest = auth.Digests.decode(response, suite=self._suite).slots.get(self._slot)
        if digest is None:
            raise SpdmError(f"the device has no certificate chain in slot {self._slot}")
        self.digest = digest

    def make_request(self) -> bytes:
        """Ask for the next portion."""
        return auth.GetCertificate(
            version=self._suite.version, slot=self._slot, offset=len(self._chain), length=self._portion_octets
        ).encode()

    def take_portion(self, response: bytes) -> bool:
        """Take CERTIFICATE; True when the chain is whole.

        Raises:
            SpdmError: malformed, another slot, an empty or too long portion, a changed sum, another digest, or octets
                that are no chain.

        """
        answer = auth.Certificate.decode(response, version=self._suite.version)
        total = len(self._chain) + len(answer.portion) + answer.remainder
        if answer.slot != self._slot or not 1 <= len(answer.portion) <= self._portion_octets:
            raise SpdmError("certificate portion is of another slot or size than asked for")
        if total > CHAIN_LIMIT_OCTETS or (self._octets or total) != total:
            raise SpdmError(f"certificate portions add up to {total} octets")
        self._octets = total
        self._chain += answer.portion
        if answer.remainder:
            return False
        if self._suite.digest(self._chain) != self.digest:
            raise SpdmError("certificate chain is not the one that the device gave the digest of")
        self.root_hash, self.certificates = split_chain(self._chain, self._suite)
        return True
