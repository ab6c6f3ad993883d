"""Programs that run in targets of a lab while somebody else goes on: started, asked, ended.

Used by the demo and the end-to-end tests, which have threads and grpc: nothing is forked here, each program
comes through a small process of its own (`lab.enter`). Captures and senders are `lab.capture` and
`lab.traffic`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ztdpu.errors import MachineError
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.record import read_record
from ztdpu.lab.userspace.places import find_tap, own_environment

END_TIMEOUT_S: Final = 10.0


class Hand:
    """One program in one target. Its standard output is JSON lines; closing its standard input ends it."""

    def __init__(
        self, state: Path, target: str, argv: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        """With `environment` the program is started as it is: in that place there is nothing to enter."""
        self.target = target
        self.argv = list(argv)
        self._lines: list[str] = []
        self._follower: threading.Thread | None = None
        entering = [] if environment is not None else [sys.executable, "-m", "ztdpu.lab.enter", str(state), target]
        self._process = subprocess.Popen(
            [*entering, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment if environment is not None else os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def read_line(self) -> dict[str, Any]:
        """Return the next line as JSON. MachineError with what the program said when there is none."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise self._failure()
        return self._parse(line)

    def tell(self, line: str = "") -> None:
        """Put a line on its standard input. MachineError with what the program said when it is gone."""
        if self._process.stdin is None:
            raise MachineError(f"{self._words} in {self.target} takes no more lines")
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure() from error

    def ask(self) -> dict[str, Any]:
        """Put a line on its standard input and return the line that answers."""
        self.tell()
        return self.read_line()

    def follow(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Read its lines in a thread from now on: `take` gets each, `finish` the last."""
        stdout, self._process.stdout = self._process.stdout, None  # finish leaves it to the thread

        def read() -> None:
            for line in stdout or ():
                self._lines.append(line)
                with suppress(MachineError):
                    take(self._parse(line))

        self._follower = threading.Thread(target=read, daemon=True)
        self._follower.start()

    def finish(self, *, timeout_s: float = END_TIMEOUT_S) -> dict[str, Any]:
        """Close its standard input, wait for the end, return its last line as JSON; MachineError when it failed.

        A line that is no JSON object comes as `{"value": ...}`.
        """
        output, errors = self._communicate(timeout_s)
        if self._follower is not None:
            self._follower.join(timeout_s)
        lines = [*self._lines, *(output or "").strip().splitlines()]
        if self._process.returncode != 0 or not lines:
            raise self._failure(errors)
        return self._parse(lines[-1])

    def end(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Close its standard input and wait for the end; MachineError when it failed."""
        _, errors = self._communicate(timeout_s)
        if self._process.returncode != 0:
            raise self._failure(errors)

    @property
    def has_ended(self) -> bool:
        """Whether the program is over."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        except ValueError:  # its pipes were closed before
            self._process.wait()

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError as error:
            raise MachineError(f"{self._words} in {self.target} says {line.strip()[:80]!r}") from error
        return document if isinstance(document, dict) else {"value": document}

    def _communicate(self, timeout_s: float) -> tuple[str, str]:
        try:
            return self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise MachineError(f"{self._words} in {self.target} does not end") from error

    def _failure(self, errors: str = "") -> MachineError:
        if not errors:
            _, errors = self._communicate(END_TIMEOUT_S)
        last = errors.strip().splitlines()[-1:] or [f"status {self._process.returncode}"]
        return MachineError(f"{self._words} in {self.target}: {last[0]}")

    @property
    def _words(self) -> str:
        return next((word.rpartition(".")[2] for word in self.argv if word.startswith("ztdpu.")), self.argv[0])


class Crew:
    """Starts hands in one lab and ends those that still run at the end of the block."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._hands: list[Hand] = []
        record = read_record(state)
        self._plain = record.plan if record is not None and record.fabric is Fabric.USERSPACE else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.kill()

    def start(self, target: str, *argv: str) -> Hand:
        """Start any program in a target."""
        environment = own_environment(self._plain, target) if self._plain is not None else None
        hand = Hand(self._state, target, argv, environment=environment)
        self._hands.append(hand)
        return hand

    def start_python(self, target: str, module: str, *arguments: str) -> Hand:
        """Start one of our modules in a target."""
        return self.start(target, sys.executable, "-m", module, *arguments)

    def start_capture(self, target: str, interface: str, *arguments: str) -> Hand:
        """Start counting; returns when it counts."""
        [hand] = self.start_captures([(target, interface, arguments)])
        return hand

    def start_captures(self, places: Sequence[tuple[str, str, Sequence[str]]]) -> list[Hand]:
        """Start several captures, (target, interface, arguments) each, at the same time."""
        hands = [
            self._begin_capture(target, "--interface", interface, *arguments) for target, interface, arguments in places
        ]
        for hand in hands:
            hand.read_line()
        return hands

    def _begin_capture(self, target: str, *arguments: str) -> Hand:
        if self._plain is None:
            return self.start_python(target, "ztdpu.lab.capture", *arguments)
        from ztdpu.lab.userspace.tap_hand import TapHand

        hand = TapHand(find_tap(self._plain, target), target, arguments)
        self._hands.append(hand)
        return hand
