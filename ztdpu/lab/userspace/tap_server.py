"""The other end of taps: connections of programs, and what each of them watches.

Owned by the factory (endpoints) and the wire (fabric, devices), which say what happens to frames; runs in their
loop. A program that goes takes along what it watched and held. Counting is `capture.count_packet`, here where the
packets pass, so that none is missed between two processes.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ztdpu.lab.capture import PSP_PORT, Counts, Wanted, count_packet
from ztdpu.lab.listening import listen_at
from ztdpu.lab.userspace.tap import LENGTH_OCTETS, MESSAGE_LIMIT_OCTETS, Kind, decode_wanted, encode_message

_READ_OCTETS: Final = 256 * 1024
_ANSWER_TIMEOUT_S: Final = 2.0
_ETHERTYPES: Final = {4: 0x0800, 6: 0x86DD}


class Watch:
    """What one program counts at one place."""

    def __init__(self, interface: str, wanted: Wanted) -> None:
        self.interface = interface
        self.counts = Counts(marks={name: [0, 0] for name, _ in wanted.marks})
        self.lost_before = 0
        self._wanted = wanted

    def see(self, packet: bytes, *, sent_here: bool) -> None:
        """Count an IP packet, if it goes the way that is watched."""
        if (self._wanted.direction == "in" and sent_here) or (self._wanted.direction == "out" and not sent_here):
            return
        ethertype = _ETHERTYPES.get(packet[0] >> 4, 0) if packet else 0
        count_packet(self.counts, self._wanted, ethertype, packet, time.time_ns(), sent_here=sent_here)

    def see_connection(self) -> None:
        """Count a TCP connection of which there are no packets to be seen."""
        now_ns = time.time_ns()
        self.counts.packets += 1
        self.counts.matched += 1
        self.counts.matched_first_unix_ns = self.counts.matched_first_unix_ns or now_ns
        self.counts.matched_last_unix_ns = now_ns


class Program:
    """One connected program."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.place = ""
        self.watching: Watch | None = None
        self.taken = 0
        """Frames of its that were taken since it last asked."""
        self.buffer = bytearray()

    def answer(self, document: dict[str, Any]) -> None:
        """Say something. OSError when it does not read."""
        self.send(Kind.ANSWER, json.dumps(document).encode())

    def send(self, kind: Kind, body: bytes) -> None:
        """Send one message. OSError when it does not read."""
        self.socket.settimeout(_ANSWER_TIMEOUT_S)
        try:
            self.socket.sendall(encode_message(kind, body))
        finally:
            self.socket.setblocking(False)


Handle = Callable[[Program, Kind, bytes], None]


class TapServer:
    """Listens at one path. `handle` gets what is not about watching; OSError or ValueError from it ends the program."""

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        *,
        handle: Handle,
        gone: Callable[[Program], None],
        lost: Callable[[], int],
        psp_port: int = PSP_PORT,
    ) -> None:
        """`lost` counts packets that passed unseen since the beginning."""
        self.programs: set[Program] = set()
        self._selector = selector
        self._handle = handle
        self._gone = gone
        self._lost = lost
        self._psp_port = psp_port
        self._listening = listen_at(path, socket.SOCK_STREAM, backlog=64)
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def see(self, place: str, interface: str, packet: bytes, *, sent_here: bool) -> None:
        """Show a packet to all who watch there."""
        for program in self.programs:
            watch = program.watching
            if watch is not None and program.place == place and watch.interface == interface:
                watch.see(packet, sent_here=sent_here)

    def see_connection(self, place: str, interface: str) -> None:
        """Show a connection to all who watch there."""
        for program in tuple(self.programs):
            watch = program.watching
            if watch is not None and program.place == place and watch.interface == interface:
                watch.see_connection()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        connection.setblocking(False)
        program = Program(connection)
        self.programs.add(program)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(program))

    def _read(self, program: Program) -> None:
        if program not in self.programs:
            return  # dropped since it was ready
        try:
            part = program.socket.recv(_READ_OCTETS)
            if not part:
                raise ConnectionResetError
            program.buffer += part
            self._take_messages(program)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):  # gone, or says what is no message: no reason to end for us
            self._drop(program)

    def _take_messages(self, program: Program) -> None:
        buffer, start = program.buffer, 0
        while len(buffer) - start >= LENGTH_OCTETS:
            length = int.from_bytes(buffer[start : start + LENGTH_OCTETS], "big")
            if not 1 <= length <= MESSAGE_LIMIT_OCTETS:
                raise ValueError(length)
            end = start + LENGTH_OCTETS + length
            if len(buffer) < end:
                break
            kind, body = Kind(buffer[start + LENGTH_OCTETS]), bytes(buffer[start + LENGTH_OCTETS + 1 : end])
            start = end
            self._obey(program, kind, body)
        del buffer[:start]

    def _obey(self, program: Program, kind: Kind, body: bytes) -> None:
        if kind is Kind.OPEN:
            program.place = str(json.loads(body)["place"])
        elif kind is Kind.WATCH:
            order = json.loads(body)
            wanted = replace(decode_wanted(order["wanted"]), psp_port=self._psp_port)
            program.watching = Watch(str(order["interface"]), wanted)
            program.watching.lost_before = self._lost()
            program.answer({"capturing": True})
        elif kind is Kind.COUNTS and program.watching is not None:
            program.watching.counts.lost = self._lost() - program.watching.lost_before
            program.answer(asdict(program.watching.counts))
        elif kind is Kind.SYNC:
            program.answer({"taken": program.taken})
            program.taken = 0
        else:
            self._handle(program, kind, body)

    def _drop(self, program: Program) -> None:
        self.programs.discard(program)
        self._selector.unregister(program.socket)
        program.socket.close()
        self._gone(program)
