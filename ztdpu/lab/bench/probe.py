"""A sender and an answerer of small datagrams: rates with loss, and round-trip times. Standard library only.

    python -m ztdpu.lab.bench.probe serve --port 5100
    python -m ztdpu.lab.bench.probe reach --host 10.1.0.11 --port 5100
    python -m ztdpu.lab.bench.probe rates --host 10.1.0.11 --port 5100 --seconds 0.4 --rates 10000,20000
    python -m ztdpu.lab.bench.probe turns --host 10.1.0.11 --port 5100 --seconds 1

Every datagram has 64 octets of payload: run, kind, step. The server counts by step, answers with what it counted
when asked, and sends echoes back. The clients end with one JSON object; the server runs until it is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections import Counter
from typing import Any, Final

PAYLOAD_OCTETS: Final = 64
_HEAD: Final = struct.Struct("!IHH")
_ECHO, _COUNT, _ASK = 0, 1, 2
_BURST: Final = 16
"""Packets without a look at the clock; more at once would measure queues."""
_SETTLE_S: Final = 0.1
_WAIT_S: Final = 0.25
_ASK_TIMES: Final = 20
_SOCKET_BUFFER_OCTETS: Final = 4 * 1024 * 1024


def serve(port: int) -> None:
    """Answer until ended."""
    buffer = bytearray(65_536)
    run, counts = 0, Counter[int]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_OCTETS)
        handle.bind(("0.0.0.0", port))  # noqa: S104 - inside a namespace of the lab
        print(json.dumps({"listening": True}), flush=True)
        while True:
            octets, source = handle.recvfrom_into(buffer)
            if octets < _HEAD.size:
                continue
            its_run, kind, step = _HEAD.unpack_from(buffer)
            if kind == _COUNT:
                if its_run != run:
                    run, counts = its_run, Counter()
                counts[step] += 1
            else:
                answer = buffer[:octets] if kind == _ECHO else json.dumps(counts if its_run == run else {}).encode()
                try:
                    handle.sendto(answer, source)
                except OSError:  # a full queue: the asker asks again
                    continue


def _message(run: int, kind: int, step: int = 0) -> bytes:
    return _HEAD.pack(run, kind, step).ljust(PAYLOAD_OCTETS, b"\0")


def send_step(handle: socket.socket, message: bytes, *, rate: int, seconds: float) -> tuple[int, float]:
    """Send at `rate` a second for `seconds`; return how many were taken by the kernel, and the seconds it took."""
    sent = refused = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        due = int(elapsed * rate) + 1 - sent - refused
        for _ in range(min(due, _BURST)):
            try:
                handle.send(message)
                sent += 1
            except OSError:
                refused += 1
        if due < _BURST:
            time.sleep(0.00005)
    return sent, time.perf_counter() - start


def measure_rates(handle: socket.socket, rates: list[int], *, seconds: float) -> dict[str, Any]:
    """Send each rate in turn, then ask how many of each step arrived. A refused `send` was not offered."""
    run = int.from_bytes(os.urandom(4), "big")
    offered = []
    for step, rate in enumerate(rates):
        offered.append(send_step(handle, _message(run, _COUNT, step), rate=rate, seconds=seconds))
        time.sleep(_SETTLE_S)
    counts = _ask(handle, _message(run, _ASK))
    steps = [
        {
            "wanted_pps": rate,
            "offered_pps": round(sent / took),
            "delivered_pps": round(counts.get(str(step), 0) / took),
            "loss": round(1 - counts.get(str(step), 0) / sent, 5) if sent else 1.0,
        }
        for step, (rate, (sent, took)) in enumerate(zip(rates, offered, strict=True))
    ]
    return {"steps": steps}


def _ask(handle: socket.socket, question: bytes) -> dict[str, int]:
    handle.settimeout(_WAIT_S)
    for _ in range(_ASK_TIMES):
        handle.send(question)
        try:
            answer: dict[str, int] = json.loads(handle.recv(65_536))
        except OSError:
            continue
        return answer
    raise SystemExit("error: the other end does not answer")


def reach(handle: socket.socket, *, seconds: float) -> dict[str, Any]:
    """Send echoes until one comes back, `seconds` at most."""
    start = time.perf_counter()
    handle.settimeout(_WAIT_S)
    while time.perf_counter() - start < seconds:
        try:
            handle.send(_message(0, _ECHO))
            handle.recv(65_536)
        except OSError:
            time.sleep(0.05)
        else:
            return {"reached_s": round(time.perf_counter() - start, 3)}
    raise SystemExit("error: the other end does not answer")


def measure_turns(handle: socket.socket, *, seconds: float) -> dict[str, Any]:
    """Send one datagram, wait for its echo, and so on; return all round-trip times in microseconds, rising."""
    handle.settimeout(_WAIT_S)
    times: list[float] = []
    lost = step = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        step = (step + 1) & 0xFFFF
        message = _message(0, _ECHO, step)
        sent = time.perf_counter()
        handle.send(message)
        try:
            while handle.recv(65_536) != message:  # an echo that came too late for its turn
                pass
        except OSError:
            lost += 1
            continue
        times.append(round((time.perf_counter() - sent) * 1e6, 1))
    return {"times_us": sorted(times), "lost": lost}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure small datagrams.")
    parser.add_argument("command", choices=["serve", "reach", "rates", "turns"])
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rates", default="10000")
    given = parser.parse_args()
    if given.command == "serve":
        serve(given.port)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.connect((given.host, given.port))
        if given.command == "reach":
            report = reach(handle, seconds=given.seconds)
        elif given.command == "turns":
            report = measure_turns(handle, seconds=given.seconds)
        else:
            rates = [int(rate) for rate in given.rates.split(",")]
            report = measure_rates(handle, rates, seconds=given.seconds)
    json.dump(report, sys.stdout)
    print()


if __name__ == "__main__":
    main()
