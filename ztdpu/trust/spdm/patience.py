"""How long a session puts up with a device that is busy, not ready, or has lost its place (DSP0274 1.2, 10.17).

ERROR busy: the same request again, after a pause that doubles. ERROR response-not-ready: RESPOND_IF_READY with the
device's token, after the pause that it names; neither of the two is part of any transcript. ERROR request-resynch: from
GET_VERSION again. All are bounded in number and, when the session is told the time, by a deadline. Owned by one
`requester.MeasurementSession`; has no clock.
"""

from __future__ import annotations

from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.messages import FIRST_VERSION_OCTET, HEADER_OCTETS, Code, Error, ErrorCode, Header, describe_error

PAUSES_LIMIT: Final = 12
"""Busy and not ready together."""
RESTARTS_LIMIT: Final = 2
SESSION_LIMIT_S: Final = 20.0
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_READY_EXPONENT_LIMIT: Final = 22
"""2^22 microseconds are 4.2 s; a device that names more is refused."""
_NEGOTIATING: Final = frozenset({Code.GET_VERSION, Code.GET_CAPABILITIES, Code.NEGOTIATE_ALGORITHMS})
_NOT_READY_OCTETS: Final = 4


def read_error(response: bytes, *, version: int) -> Error | None:
    """Give an ERROR, None for any other message; an ERROR of a foreign version is one that is refused."""
    if len(response) < HEADER_OCTETS or response[1] != Code.ERROR:
        return None
    if response[0] not in {version, FIRST_VERSION_OCTET}:
        raise SpdmError(f"the device answers with ERROR of version 0x{response[0]:02x}")
    return Error(version=response[0], code=response[2], data=response[3], extended=response[HEADER_OCTETS:])


class Patience:
    """What is left of it."""

    def __init__(self, now_s: float | None) -> None:
        """`now_s`: when the session begins, by any clock that does not go back; None: no deadline."""
        self._deadline_s = None if now_s is None else now_s + SESSION_LIMIT_S
        self._pauses = 0
        self._restarts = 0
        self.wait_s = 0.0
        """How long to wait before the next request is sent."""

    def check_time(self, now_s: float | None) -> None:
        """Refuse an answer that comes after the deadline; the pause before it is over."""
        self.wait_s = 0.0
        if now_s is not None and self._deadline_s is not None and now_s > self._deadline_s:
            raise SpdmError(f"the device did not finish within {SESSION_LIMIT_S:g} s")

    def bear(self, error: Error, request: bytes) -> bytes | None:
        """Take an ERROR that answered `request`: sets `wait_s`, gives what to send instead of the request again.

        Raises:
            SpdmError: the session may not go on.

        """
        match error.code:
            case ErrorCode.BUSY:
                self._count_pause("busy (ERROR BUSY)")
                self.wait_s = min(_FIRST_PAUSE_S * 2 ** (self._pauses - 1), _LONGEST_PAUSE_S)
                return None
            case ErrorCode.RESPONSE_NOT_READY:
                self._count_pause("not ready (ERROR RESPONSE_NOT_READY)")
                return self._respond_if_ready(error, request)
            case ErrorCode.REQUEST_RESYNCH:
                self._restarts += 1
                if self._restarts > RESTARTS_LIMIT:
                    raise SpdmError("the device wants to start again and again (ERROR REQUEST_RESYNCH)")
                return None
        raise SpdmError(f"the device answers with ERROR {describe_error(error.code)}")

    def _count_pause(self, state: str) -> None:
        self._pauses += 1
        if self._pauses > PAUSES_LIMIT:
            raise SpdmError(f"the device is still {state} after {PAUSES_LIMIT} attempts")

    def _respond_if_ready(self, error: Error, request: bytes) -> bytes:
        if len(error.extended) != _NOT_READY_OCTETS or error.version != request[0] or request[1] in _NEGOTIATING:
            raise SpdmError("the device is not ready in a form or place where it may not be (ERROR RESPONSE_NOT_READY)")
        exponent, code, token, _ = error.extended
        if code != request[1] or exponent > _READY_EXPONENT_LIMIT:
            raise SpdmError("the device is not ready for another request, or for too long (ERROR RESPONSE_NOT_READY)")
        self.wait_s = 2**exponent / 1e6
        return Header(Code.RESPOND_IF_READY, code, token, version=request[0]).encode()
