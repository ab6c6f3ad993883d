"""The verifier's end of SPDM over TCP: connect, say hello, ask and be answered, stop (`trust.spdm.framing`).

Called by `ztdpu attestation probe`; `read_address` also by the other end. Carries octets and decides nothing; every
wait is bounded.
"""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address
from types import TracebackType
from typing import Final, Self

from ztdpu.errors import SpdmError, UnreachableError, UsageError
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.framing import CLIENT_HELLO, DEFAULT_PORT, SERVER_HELLO, Command, Frame, FrameReader, wrap
from ztdpu.trust.spdm.requester import MeasurementSession

TIMEOUT_S: Final = 10.0
_READ_OCTETS: Final = 4096


def read_address(text: str, *, loopback_only: bool) -> tuple[str, int]:
    """Read `HOST:PORT`, `[HOST]:PORT` or `HOST`; UsageError when it is no address or not a loopback one."""
    host, separator, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not separator or (host.count(":") and not host.startswith("[")):
        host, port = text, str(DEFAULT_PORT)
    try:
        address, number = ip_address(host.strip("[]")), int(port)
    except ValueError:
        raise UsageError(f"{text!r} is no address", remedy=f"like 127.0.0.1:{DEFAULT_PORT}") from None
    if not 0 <= number <= 65535:
        raise UsageError(f"port {number} is out of bounds", remedy=f"like 127.0.0.1:{DEFAULT_PORT}")
    if loopback_only and not address.is_loopback:
        raise UsageError(
            f"{address} is not a loopback address, and SPDM over TCP has no access control",
            remedy="listen on 127.0.0.1, or say --any-address",
        )
    return str(address), number


class SpdmPeer:
    """One connection to a responder. `with SpdmPeer(host, port) as peer: peer.ask(request)`."""

    def __init__(self, host: str, port: int, *, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` bounds connecting and each answer."""
        self._place = f"{host}:{port}"
        self._address = host, port
        self._timeout_s = timeout_s
        self._reader = FrameReader()

    def __enter__(self) -> Self:
        """Connect and exchange hellos. UnreachableError when nobody answers, SpdmError when it is something else."""
        try:
            self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            self._greet()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Say stop when all went well, and hang up."""
        with self._socket:
            if error is None:
                self._exchange(Frame(Command.STOP))

    def ask(self, request: bytes) -> bytes:
        """Send one SPDM request and give the answer.

        Raises UnreachableError when there is none in time, SpdmError when it is no SPDM message.
        """
        return self._exchange(wrap(request)).message

    def _greet(self) -> None:
        if self._exchange(Frame(Command.HELLO, CLIENT_HELLO)) != Frame(Command.HELLO, SERVER_HELLO):
            raise SpdmError(f"{self._place} does not answer the hello of an SPDM emulator")

    def _exchange(self, frame: Frame) -> Frame:
        deadline_s = time.monotonic() + self._timeout_s
        try:
            self._socket.sendall(frame.encode())
            while True:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
                octets = self._socket.recv(_READ_OCTETS)
                if not octets:
                    raise ConnectionResetError("hung up")
                frames = self._reader.feed(octets)
                if frames:
                    break
        except OSError as error:
            raise self._unreachable(error) from error
        if len(frames) > 1 or not self._reader.is_empty:
            raise SpdmError(f"{self._place} sends more than it was asked for")
        return frames[0]

    def _unreachable(self, error: OSError) -> UnreachableError:
        cause = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return UnreachableError(f"{self._place}: {cause}", remedy="does an SPDM responder listen there?")


def collect_evidence(peer: SpdmPeer, session: MeasurementSession) -> Evidence:
    """Drive a session to its end.

    Raises SpdmError when the responder is refused, UnreachableError when it does not answer.
    """
    while (request := session.next_request()) is not None:
        time.sleep(session.wait_s)
        session.receive(peer.ask(request), now_s=time.monotonic())
    return session.evidence()
