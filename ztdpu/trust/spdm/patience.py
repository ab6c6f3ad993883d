"""How long a session puts up with a device that is busy or has lost its place (DSP0274 1.2, 10.17).

ERROR busy: the same request again, after a pause that doubles, a bounded number of times. ERROR request-resynch: from
GET_VERSION again, a bounded number of times. Response-not-ready is refused: no profile here has it. All of it ends at
a deadline when the session is told the time. Owned by one `requester.MeasurementSession`; has no clock.
"""

from __future__ import annotations

from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.messages import FIRST_VERSION_OCTET, HEADER_OCTETS, Code, ErrorCode, describe_error

BUSY_LIMIT: Final = 12
RESTARTS_LIMIT: Final = 2
SESSION_LIMIT_S: Final = 20.0
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


def read_error(response: bytes, *, version: int) -> int | None:
    """Give the code of an ERROR, None for any other message; an ERROR of a foreign version is one that is refused."""
    if len(response) < HEADER_OCTETS or response[1] != Code.ERROR:
        return None
    if response[0] not in {version, FIRST_VERSION_OCTET}:
        raise SpdmError(f"the device answers with ERROR of version 0x{response[0]:02x}")
    return response[2]


class Patience:
    """What is left of it."""

    def __init__(self, now_s: float | None) -> None:
        """`now_s`: when the session begins, by any clock that does not go back; None: no deadline."""
        self._deadline_s = None if now_s is None else now_s + SESSION_LIMIT_S
        self._busy = 0
        self._restarts = 0
        self.wait_s = 0.0
        """How long to wait before the next request is sent."""

    def check_time(self, now_s: float | None) -> None:
        """Refuse an answer that comes after the deadline; the pause before it is over."""
        self.wait_s = 0.0
        if now_s is not None and self._deadline_s is not None and now_s > self._deadline_s:
            raise SpdmError(f"the device did not finish within {SESSION_LIMIT_S:g} s")

    def bear(self, code: int) -> None:
        """Take an ERROR: sets `wait_s` when the session may go on; SpdmError when it may not."""
        if code == ErrorCode.BUSY:
            self._busy += 1
            if self._busy > BUSY_LIMIT:
                raise SpdmError(f"the device is still busy after {BUSY_LIMIT} attempts (ERROR BUSY)")
            self.wait_s = min(_FIRST_PAUSE_S * 2 ** (self._busy - 1), _LONGEST_PAUSE_S)
        elif code == ErrorCode.REQUEST_RESYNCH:
            self._restarts += 1
            if self._restarts > RESTARTS_LIMIT:
                raise SpdmError("the device wants to start again and again (ERROR REQUEST_RESYNCH)")
        else:
            raise SpdmError(f"the device answers with ERROR {describe_error(code)}")
