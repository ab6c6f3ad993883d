"""Train a digit classifier on several machines at once: plain sockets and numpy, nothing else.

One process per rank. Every rank holds a slice of the training set, computes the gradient of its slice,
and a ring all-reduce over TCP sums the slices' gradients, so that every rank takes the same step. With
W ranks and gradients of n numbers a rank sends 2 (W - 1) / W * n numbers per step, whatever W is.

    python train_digits.py --rank 0 --world-size 2 --hosts alpha,beta --port 29500     # on alpha
    python train_digits.py --rank 1 --world-size 2 --hosts alpha,beta --port 29500     # on beta

Each rank ends by printing one JSON object, with --progress after others that say step and loss. Rank 0 also trains alone on the same batches and reports how
far the two models are apart: the proof that nothing was lost, doubled or mixed up on the way.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CLASSES = 10
TEST_EVERY = 5  # every fifth picture is kept for the test
HELLO = struct.Struct(">II")  # rank, world size


@dataclass(frozen=True)
class Settings:
    """What all ranks must agree on."""

    steps: int
    batch: int
    hidden: int
    rate: float
    seed: int


# --- the ring ---------------------------------------------------------------------------------


class Ring:
    """Neighbours in a ring of ranks: we send to the next, receive from the one before."""

    def __init__(self, rank: int, hosts: list[str], port: int, timeout_s: float) -> None:
        self.rank, self.size = rank, len(hosts)
        self._timeout_s = timeout_s
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None
        if self.size == 1:
            return
        deadline = time.monotonic() + timeout_s
        with listen(hosts[rank], port + rank) as listening:
            self._next = connect(hosts[(rank + 1) % self.size], port + (rank + 1) % self.size, deadline)
            self._next.sendall(HELLO.pack(rank, self.size))
            listening.settimeout(max(deadline - time.monotonic(), 1))
            self._previous, _ = listening.accept()
        for neighbour in (self._next, self._previous):
            neighbour.settimeout(timeout_s)
            neighbour.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = HELLO.unpack(receive(self._previous, HELLO.size))
        self._next.setblocking(False)
        if hello != ((rank - 1) % self.size, self.size):
            raise SystemExit(f"rank {rank}: unexpected neighbour (rank, world size) = {hello}")

    def all_reduce(self, vector: Array) -> Array:
        """Return the sum of every rank's vector: reduce-scatter, then all-gather."""
        if self._next is None or self._previous is None:
            return vector
        chunks = [chunk.copy() for chunk in np.array_split(vector, self.size)]
        for turn in range(self.size - 1):
            out, into = (self.rank - turn) % self.size, (self.rank - turn - 1) % self.size
            chunks[into] += self._exchange(chunks[out], chunks[into].nbytes)
        for turn in range(self.size - 1):
            out, into = (self.rank - turn + 1) % self.size, (self.rank - turn) % self.size
            chunks[into] = self._exchange(chunks[out], chunks[into].nbytes)
        return np.concatenate(chunks)

    def _exchange(self, chunk: Array, octets: int) -> Array:
        """Send a chunk on while receiving one: both at once, or a full ring of senders would wait for ever."""
        assert self._next is not None
        assert self._previous is not None
        outgoing, incoming = memoryview(chunk.tobytes()), bytearray(octets)
        missing = memoryview(incoming)
        while outgoing or missing:
            readers = [self._previous] if missing else []
            writers = [self._next] if outgoing else []
            readable, writable, _ = select.select(readers, writers, [], self._timeout_s)
            if not readable and not writable:
                raise SystemExit(f"rank {self.rank}: a neighbour is silent for {self._timeout_s:.0f} s")
            if writable:
                outgoing = outgoing[self._next.send(outgoing) :]
            if readable:
                count = self._previous.recv_into(missing)
                if count == 0:
                    raise SystemExit(f"rank {self.rank}: a neighbour ended early")
                missing = missing[count:]
        return np.frombuffer(incoming, dtype=np.float64)

    def close(self) -> None:
        """Say goodbye to both neighbours."""
        for neighbour in (self._next, self._previous):
            if neighbour is not None:
                neighbour.close()


def listen(host: str, port: int) -> socket.socket:
    """Listen on the address that `host` has here, whatever its family."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(1)
    return listening


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect, and try again until the deadline: the neighbour may start later than we do."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(min(deadline - time.monotonic(), 5), 0.1))
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"cannot reach {host}:{port}: {error}") from error
            time.sleep(0.05)


def receive(connection: socket.socket, octets: int) -> bytes:
    """Return exactly so many octets."""
    buffer = bytearray(octets)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise SystemExit("a neighbour ended early")
        view = view[count:]
    return bytes(buffer)


# --- the model --------------------------------------------------------------------------------


def load_data() -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return training pictures and labels, test pictures and labels (1,797 handwritten digits of 8x8)."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = np.asarray(pictures, dtype=np.float64) / 16.0
    labels = np.asarray(labels, dtype=np.int64)
    is_test = np.arange(len(labels)) % TEST_EVERY == 0
    return pictures[~is_test], labels[~is_test], pictures[is_test], labels[is_test]


def start_weights(settings: Settings) -> list[Array]:
    """Return the same random weights on every rank."""
    random = np.random.default_rng(settings.seed)
    return [
        random.normal(0.0, np.sqrt(2.0 / 64), (64, settings.hidden)),
        np.zeros(settings.hidden),
        random.normal(0.0, np.sqrt(2.0 / settings.hidden), (settings.hidden, CLASSES)),
        np.zeros(CLASSES),
    ]


def forward(weights: list[Array], pictures: Array) -> tuple[Array, Array]:
    """Return the hidden layer and the probabilities of the classes."""
    hidden = np.maximum(pictures @ weights[0] + weights[1], 0.0)
    scores = hidden @ weights[2] + weights[3]
    scores -= scores.max(axis=1, keepdims=True)
    exponentials = np.exp(scores)
    return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)


def gradient(weights: list[Array], pictures: Array, labels: NDArray[np.int64]) -> Array:
    """Return the summed (not averaged) gradient of these pictures and, as last number, their summed loss."""
    hidden, probabilities = forward(weights, pictures)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(probabilities[rows, labels], 1e-300)).sum()
    error = probabilities.copy()
    error[rows, labels] -= 1.0
    back = (error @ weights[2].T) * (hidden > 0.0)
    parts = [pictures.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
    return np.concatenate([*(part.ravel() for part in parts), [loss]])


def train(
    settings: Settings, ring: Ring | None, rank: int, size: int, progress_s: float = 0
) -> tuple[list[Array], float, float]:
    """Train; returns the weights and the first and the last mean loss. Without a ring: alone, same batches."""
    pictures, labels, _, _ = load_data()
    weights = start_weights(settings)
    order = np.random.default_rng(settings.seed + 1)
    first = last = 0.0
    due = time.monotonic() + progress_s
    for step in range(settings.steps):
        batch = order.choice(len(labels), settings.batch, replace=False)  # the same on every rank
        mine = np.array_split(batch, size)[rank]
        total = gradient(weights, pictures[mine], labels[mine])
        if ring is not None:
            total = ring.all_reduce(total)
        total = total / settings.batch
        apply_step(weights, total[:-1], settings.rate)
        last = float(total[-1])
        first = last if step == 0 else first
        if progress_s and time.monotonic() >= due:
            print(json.dumps({"step": step + 1, "loss": round(last, 6)}), flush=True)
            due = time.monotonic() + progress_s
    return weights, first, last


def apply_step(weights: list[Array], flat: Array, rate: float) -> None:
    """Move every weight down its gradient."""
    offset = 0
    for weight in weights:
        np.subtract(weight, rate * flat[offset : offset + weight.size].reshape(weight.shape), out=weight)
        offset += weight.size


def accuracy_of(weights: list[Array]) -> float:
    """Return the share of test pictures that are read right."""
    _, _, pictures, labels = load_data()
    _, probabilities = forward(weights, pictures)
    return float((probabilities.argmax(axis=1) == labels).mean())


def main() -> None:
    """Train with the other ranks and print what came of it."""
    parser = argparse.ArgumentParser(description="Data-parallel training on handwritten digits.")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--hosts", default="localhost", help="one host per rank, commas between")
    parser.add_argument("--port", type=int, default=29500, help="rank r listens on port + r")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for a neighbour")
    parser.add_argument("--progress", type=float, default=0.0, help="a line of JSON every so many seconds")
    given = parser.parse_args()
    hosts = given.hosts.split(",")
    if len(hosts) == 1:
        hosts *= given.world_size
    if len(hosts) != given.world_size or not 0 <= given.rank < given.world_size:
        parser.error("one host per rank, and a rank below the world size")
    settings = Settings(given.steps, given.batch, given.hidden, given.rate, given.seed)
    start = time.monotonic()
    ring = Ring(given.rank, hosts, given.port, given.timeout)
    weights, first, last = train(settings, ring, given.rank, given.world_size, given.progress)
    ring.close()
    seconds = time.monotonic() - start
    report: dict[str, object] = {
        "rank": given.rank,
        "ranks": given.world_size,
        "steps": settings.steps,
        "loss_first": round(first, 6),
        "loss_last": round(last, 6),
        "accuracy": round(accuracy_of(weights), 4),
        "seconds": round(seconds, 3),
    }
    if given.rank == 0:
        alone, _, _ = train(settings, None, 0, 1)
        report["max_abs_diff_to_single_process"] = max(
            float(np.abs(ours - theirs).max()) for ours, theirs in zip(weights, alone, strict=True)
        )
    json.dump(report, sys.stdout)
    print()


if __name__ == "__main__":
    main()
