"""Attack: a real device whose NIC firmware was altered asks control for an identity.

Runs in a device, as its root, with the device's own start-up file and no agent beside it:

    python -m ztdpu.lab.attacks.altered_firmware --config agent.yaml --attempts 3 --fault firmware-altered

The device boots the firmware, attests as an agent does, honestly measured, and asks for an SVID and a lease.
Without --fault the same program with the shipped firmware is the positive twin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.run import read_configuration
from ztdpu.agent.start_files import make_state_dir, read_start_files
from ztdpu.agent.supervisor import Doors, end, programs, spawn
from ztdpu.errors import MachineError, RefusedError, UnreachableError

DOORS_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class Harvest:
    """What control answered."""

    attempts: int = 0
    identities: int = 0
    """SVIDs that came back."""
    leases: int = 0
    states: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


async def ask_for_identities(spec: AgentSpec, attempts: int, pause_s: float, doors: Doors) -> Harvest:
    """Attest so many times, each time with fresh keys, and keep what comes back."""
    from ztdpu.agent.attester import Attester
    from ztdpu.agent.own_keys import LeaseKemKeys
    from ztdpu.keys.kem import kem_public_octets

    files = read_start_files(spec)
    attester = Attester(spec, doors=doors, bundle_pem=files.bundle_pem, join_token=files.join_token)
    harvest = Harvest()
    for number in range(attempts):
        if number:
            await asyncio.sleep(pause_s)
        harvest.attempts += 1
        kem = kem_public_octets(LeaseKemKeys().ask())
        try:
            answer = await attester.attest(applied_generation=0, kem_public_key=kem, afresh=True)
        except (RefusedError, UnreachableError) as error:
            harvest.states.append("denied")
            harvest.findings.append(error.message)
            continue
        harvest.identities += answer.identity is not None
        harvest.leases += answer.grant is not None
        harvest.states.append(answer.state)
        harvest.findings += [finding for finding in answer.findings if finding not in harvest.findings]
    return harvest


@asynccontextmanager
async def booted(spec: AgentSpec, *, fault: str | None) -> AsyncIterator[Doors]:
    """Boot the device's root of trust; it ends with the block. MachineError when it does not start."""
    root = spec.root_of_trust
    wanted = programs(state_dir=spec.state_dir, secrets_file=root.secrets_file, profile=root.profile, fault=fault)
    child = spawn(wanted.root_of_trust, kind=socket.SOCK_STREAM)
    try:
        deadline = time.monotonic() + DOORS_TIMEOUT_S
        while not wanted.doors.are_open:
            if time.monotonic() > deadline:
                raise MachineError("the root of trust does not start")
            await asyncio.sleep(0.01)
        yield wanted.doors
    finally:
        await end(child)


async def run_attack(spec: AgentSpec, attempts: int, pause_s: float, fault: str | None) -> Harvest:
    """Boot the device, ask, shut it down."""
    async with booted(spec, fault=fault) as doors:
        return await ask_for_identities(spec, attempts, pause_s, doors)


def main() -> None:
    """Run the attack."""
    parser = argparse.ArgumentParser(description="Ask for an identity.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two attempts")
    parser.add_argument("--fault", default=None, help="what the firmware suffers before it boots")
    given = parser.parse_args()
    spec = read_configuration(given.config)
    make_state_dir(spec)
    harvest = asyncio.run(run_attack(spec, given.attempts, given.pause, given.fault))
    json.dump(asdict(harvest), sys.stdout)
    print()


if __name__ == "__main__":
    main()
