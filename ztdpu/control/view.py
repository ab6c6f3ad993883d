"""What admins see: model objects made from the fleet's state. Reads only.

Who is in reach is the servicers' business; what of a device that several tenants share is, is `view_device_for`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ztdpu.control.devices import leases
from ztdpu.control.devices.conditions import list_conditions, next_of
from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord
from ztdpu.control.doors.authorisation import Access, Scope
from ztdpu.control.doors.hub import Connection
from ztdpu.control.fleet import Fleet
from ztdpu.model.administration import (
    BlastRadius,
    DevicePolicy,
    EndpointStatus,
    TenantKey,
    TenantStatus,
)
from ztdpu.model.device import DeviceStatus
from ztdpu.model.endpoint import Endpoint

OVERDUE_FACTOR: Final = 1.5
ACKNOWLEDGEMENT_DUE_MS: Final = 5000
"""Tables that a connected device has not acknowledged by then have failed."""
OVERDUE_MS: Final = 1000
"""Evidence is overdue one and a half intervals after the last, and a second."""


def view_device(fleet: Fleet, device: str) -> DeviceStatus:
    """One device. NotFoundError for a name that policy does not have."""
    record, now = fleet.record(device), fleet.now()
    document, connection = fleet.desired.cluster.devices[device], fleet.hub.get(device)
    tables = fleet.desired.tables[device]
    lease_ms = leases.lease_ms(record, now)
    state = leases.expire(record, now).state
    applied = connection.applied_revision if connection else b""
    tenants = {network.network_id.hex(): tenant for tenant, network in fleet.desired.networks.items()}
    epochs = connection.key_epochs if connection else {}
    is_ready = bool(connection and connection.ready and lease_ms and applied == tables.revision)
    following = next_of(fleet, record, now)
    return DeviceStatus(
        name=device,
        state=state,
        since_unix_ms=record.since_unix_ms,
        reason=record.reason,
        ready=is_ready,
        deadline_unix_ms=0 if following.in_ms is None else now.unix_ms + following.in_ms,
        next=following.what,
        conditions=list_conditions(fleet, device, is_ready=is_ready),
        tier=record.tier,
        lease_s=lease_ms / 1000,
        generation_wanted=fleet.config_generation.get(device, 0),
        generation_applied=connection.applied_generation if connection else 0,
        key_epochs={tenants[n]: epoch for n, epoch in sorted(epochs.items()) if n in tenants},
        underlay_address=str(document.spec.underlay.address),
        profile=document.spec.profile,
        device_id_sha256=record.device_id_sha256.hex(),
        boot_counter=record.boot_counter,
        version=record.version,
        connected=connection is not None,
        waiting_for=_waiting_for(fleet, record, now, connection, leased=bool(lease_ms)),
        appraised_unix_ms=record.appraised_unix_ms,
        revision_wanted=tables.revision.hex(),
        revision_applied=applied.hex(),
        binding_sha256=record.binding_sha256.hex(),
        tenants=fleet.desired.tenants_on(device),
        packets_by_reason=dict(connection.packets_by_reason) if connection else {},
        sealed_packets=connection.sealed_packets if connection else 0,
        opened_packets=connection.opened_packets if connection else 0,
    )


def view_device_for(fleet: Fleet, device: str, access: Access) -> DeviceStatus:
    """One device as this caller may see it.

    A tenant's admin reads of own tenants only; what counts or speaks of all of them together is left out.
    """
    status = view_device(fleet, device)
    if access.scope is Scope.ALL:
        return status
    return replace(
        status,
        reason="",
        conditions=tuple(replace(one, reason="") for one in status.conditions),
        tenants=tuple(tenant for tenant in status.tenants if access.sees_tenant(tenant)),
        key_epochs={tenant: epoch for tenant, epoch in status.key_epochs.items() if access.sees_tenant(tenant)},
        packets_by_reason={},
        sealed_packets=0,
        opened_packets=0,
    )


def _waiting_for(
    fleet: Fleet, record: DeviceRecord, now: Instant, connection: Connection | None, *, leased: bool
) -> str:
    """What the agent says that it waits for; else, that it is late with the evidence that its next lease needs."""
    if connection is None:
        return "no connection to control"
    age_ms = now.unix_ms - record.appraised_unix_ms
    if leased and not connection.waiting_for and age_ms > fleet.attestation_interval_ms * OVERDUE_FACTOR + OVERDUE_MS:
        return f"fresh evidence: not attested for {age_ms // 1000} s"
    return connection.waiting_for


def view_blast_radius(fleet: Fleet, device: str) -> BlastRadius:
    """Who loses something when the device goes dark."""
    endpoints = tuple(e.name for e in fleet.desired.cluster.endpoints.values() if e.device == device)
    ranks = fleet.ranks_on(device)
    return BlastRadius(
        endpoints=endpoints,
        tenants=fleet.desired.tenants_on(device),
        peers=fleet.desired.peers_of(device),
        jobs=tuple(sorted(set(ranks))),
        ranks=len(ranks),
    )


def view_tenant(fleet: Fleet, tenant: str) -> TenantStatus:
    """One tenant of the policy in force."""
    network = fleet.desired.networks.get(tenant)
    epoch = fleet.epochs.get(network.network_id) if network else None
    endpoints = fleet.desired.cluster.endpoints_of(tenant)
    devices = tuple(sorted({e.device for e in endpoints}))
    return TenantStatus(
        name=tenant,
        network_id=network.network_id.hex() if network else "",
        network_generation=network.generation if network else 0,
        key_epoch=epoch.key.epoch if epoch else 0,
        endpoints=tuple(e.name for e in endpoints),
        devices=devices,
        withheld=tuple(
            f"{device}: the tenant's AppraisalPolicy does not allow tier {fleet.record(device).tier}"
            for device in devices
            if fleet.is_leased(device) and tenant in fleet.withheld_on(device)
        ),
    )


def view_endpoint(fleet: Fleet, endpoint: Endpoint) -> EndpointStatus:
    """One endpoint."""
    return EndpointStatus(
        name=endpoint.name,
        tenant=endpoint.tenant,
        device=endpoint.device,
        addresses=tuple(str(address) for address in endpoint.addresses),
        labels=dict(endpoint.labels),
        ready=view_device(fleet, endpoint.device).ready and endpoint.tenant not in fleet.withheld_on(endpoint.device),
        device_state=str(leases.expire(fleet.record(endpoint.device), fleet.now()).state),
        endpoint_id=endpoint.endpoint_id,
    )


def view_keys(fleet: Fleet) -> tuple[TenantKey, ...]:
    """Current epochs and who uses them."""
    return tuple(
        TenantKey(
            tenant=epoch.network.tenant,
            network_id=epoch.network.network_id.hex(),
            network_generation=epoch.network.generation,
            epoch=epoch.key.epoch,
            created_unix_ms=epoch.created_unix_ms,
            cause=epoch.cause,
            devices_current=tuple(d for d, current in users if current),
            devices_behind=tuple(d for d, current in users if not current),
        )
        for epoch in fleet.epochs.list()
        for users in [_users(fleet, epoch.network.tenant, epoch.network.network_id.hex(), epoch.key.epoch)]
    )


def _users(fleet: Fleet, tenant: str, network_id: str, epoch: int) -> list[tuple[str, bool]]:
    """(leased device, whether it says that it uses the epoch)."""
    devices = sorted(fleet.desired.cluster.devices_in(tenant))
    leased = [(name, fleet.hub.get(name)) for name in devices if fleet.is_leased(name)]
    return [(name, bool(c and c.key_epochs.get(network_id) == epoch)) for name, c in leased]


def view_device_policy(fleet: Fleet, device: str) -> DevicePolicy:
    """What a device should enforce and does."""
    status = view_device(fleet, device)
    failed = ""
    if status.revision_applied != status.revision_wanted:
        late_ms = fleet.now().unix_ms - status.generation_wanted
        if not status.connected:
            failed = f"not connected; {status.state}"
        elif late_ms > ACKNOWLEDGEMENT_DUE_MS:
            failed = f"not acknowledged for {late_ms // 1000} s; {status.waiting_for or 'it does not say why'}"
    return DevicePolicy(
        device=device,
        revision_wanted=status.revision_wanted,
        revision_applied=status.revision_applied,
        generation_wanted=status.generation_wanted,
        generation_applied=status.generation_applied,
        failed=failed,
    )
