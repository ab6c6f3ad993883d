"""Tables on their way from control to the worker: checked, carried in a sealed memfd, acknowledged.

What is hashed is what is enforced: the octets control sent go to the worker unchanged. Before that they must match
their revision, decode, be meant for this device, not go back in generation, and name only networks and hosts that
the operator-signed roster allows. A refusal leaves what is in force.

Called by `agent.conversation`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ztdpu.agent import mailbox
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.errors import TablesError
from ztdpu.packet.tables import DeviceTables, decode_tables
from ztdpu.trust.roster import Roster, RosterNetwork

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One set of tables as control sent it."""

    generation: int
    revision: bytes
    blob: bytes
    tables: DeviceTables


def open_delivery(*, generation: int, revision: bytes, blob: bytes, device: str, lowest_generation: int) -> Delivery:
    """Check what control sent, apart from the roster. Raises TablesError."""
    if generation < lowest_generation:
        raise TablesError(f"tables of generation {generation} are older than {lowest_generation}")
    if hashlib.sha256(blob).digest() != revision:
        raise TablesError("tables do not match their revision")
    tables = decode_tables(blob)
    if tables.device != device:
        raise TablesError(f"tables are for {tables.device}, this is {device}")
    return Delivery(generation=generation, revision=revision, blob=blob, tables=tables)


def check_against_roster(tables: DeviceTables, roster: Roster) -> None:
    """Require that control stays inside what the operator signed. Raises TablesError or RosterError."""
    signed = {(one.tenant, one.network_id, one.generation): one for one in roster.networks}
    hosts = {one.name: frozenset(one.tenants) for one in roster.devices}
    for network in tables.networks:
        listed = signed.get((network.tenant, network.network_id, network.generation))
        if listed is None:
            raise TablesError(f"network {network.network_id.hex()} of {network.tenant} is not in the roster")
        for route in network.routes:
            if hosts.get(route.device, frozenset()).isdisjoint(listed.tenants):
                raise TablesError(f"{route.device} may not host {network.tenant} by the roster")
    _check_networks_of_endpoints(tables, {one.network_id: one for one in roster.networks})


def _check_networks_of_endpoints(tables: DeviceTables, listed: Mapping[bytes, RosterNetwork]) -> None:
    """An endpoint is in its tenant's network and in Peerings of that tenant: control cannot join what nobody signed."""
    for endpoint in tables.endpoints:
        own = listed.get(endpoint.network_id)
        if own is None or own.members:
            raise TablesError(f"endpoint {endpoint.name} is in no tenant's network by the roster")
        for network_id in endpoint.peerings:
            peering = listed.get(network_id)
            if peering is None or own.tenant not in peering.members:
                raise TablesError(
                    f"{own.tenant} takes no part in the Peering of endpoint {endpoint.name} by the roster"
                )


async def apply(delivery: Delivery, channel: MailboxChannel) -> int:
    """Hand tables to the worker; returns the number of live flows they cut.

    Raises TablesError when the worker refuses them, StateError when it is gone.
    """
    descriptor = os.memfd_create("ztdpu-tables", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(delivery.blob)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        question = mailbox.ApplyTables(delivery.generation, delivery.revision)
        answer = await channel.ask_either(
            question,
            (mailbox.TablesApplied, mailbox.TablesRefused),
            key=delivery.generation,
            descriptors=(descriptor,),
        )
    finally:
        os.close(descriptor)
    if isinstance(answer, mailbox.TablesRefused):
        raise TablesError(f"the worker refused the tables: {answer.message}")
    return answer.flows_cut if isinstance(answer, mailbox.TablesApplied) else 0
