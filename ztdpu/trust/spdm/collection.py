"""The measurements of one session: all at once, or the count and then one by one, with a signature at the end.

Owned by one `requester.MeasurementSession`. An answer must be what its request asked for: no block for the count,
exactly that block for an index. The last answer alone is signed, over everything since the session's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.profile import Profile
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.suite import Suite

COUNT: Final = 0
_CONTENT_CHANGED: Final = 1


def plan_operations(profile: Profile) -> tuple[int, ...]:
    """What to ask a device of this profile: all at once, or the count and every index that is not slow."""
    if not profile.one_by_one:
        return (auth.ALL_MEASUREMENTS,)
    return (COUNT, *(spec.index for spec in profile.measurements if not spec.slow_ms))


class Collection:
    """One run of GET_MEASUREMENTS."""

    def __init__(self, suite: Suite, *, operations: Sequence[int], nonce: bytes, slot: int) -> None:
        self._suite = suite
        self._operations = tuple(operations)
        self._nonce = nonce
        self._slot = slot
        self.messages: list[bytes] = []
        """Requests and answers, the last one without its signature."""
        self.signature = b""
        self.record = b""
        """All blocks joined, in the order read."""

    @property
    def is_whole(self) -> bool:
        """True when every answer is there."""
        return len(self.messages) == 2 * len(self._operations)

    def make_request(self) -> bytes:
        """Ask for the next measurement."""
        place = len(self.messages) // 2
        is_last = place == len(self._operations) - 1
        return auth.GetMeasurements(
            version=self._suite.version,
            operation=self._operations[place],
            nonce=self._nonce if is_last else b"",
            slot=self._slot if is_last else 0,
        ).encode()

    def take(self, request: bytes, response: bytes) -> None:
        """Take MEASUREMENTS.

        Raises:
            SpdmError: malformed, signed for another slot, fewer measurements than asked for, or they changed.

        """
        place = len(self.messages) // 2
        is_last = place == len(self._operations) - 1
        answer = auth.Measurements.decode(response, is_signed=is_last, suite=self._suite)
        if is_last and answer.slot != self._slot:
            raise SpdmError("measurements are signed for another slot")
        if answer.content_changed == _CONTENT_CHANGED:
            raise SpdmError("the device's measurements changed while they were read")
        if self._operations[place] == COUNT and answer.total < len(self._operations) - 1:
            raise SpdmError(f"the device has {answer.total} measurements, {len(self._operations) - 1} are asked for")
        self.messages += (request, auth.slice_unsigned(response, self._suite) if is_last else response)
        self.signature = answer.signature
        self.record += answer.record
