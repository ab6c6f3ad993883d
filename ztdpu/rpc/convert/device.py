"""Devices and their changes, to and from messages."""

from __future__ import annotations

from ztdpu.model.administration import BlastRadius, DeviceChange, JoinToken, PeerAcknowledgement
from ztdpu.model.device import Condition, DeviceState, DeviceStatus
from ztdpu.v1 import device_pb2


def device_to_message(status: DeviceStatus) -> device_pb2.Device:
    """Message for a device."""
    return device_pb2.Device(
        name=status.name,
        state=str(status.state),
        since_unix_ms=status.since_unix_ms,
        reason=status.reason,
        ready=status.ready,
        tier=status.tier,
        lease_ms=round(status.lease_s * 1000),
        generation_wanted=status.generation_wanted,
        generation_applied=status.generation_applied,
        key_epochs=status.key_epochs,
        underlay_address=status.underlay_address,
        profile=status.profile,
        device_id_sha256=status.device_id_sha256,
        boot_counter=status.boot_counter,
        version=status.version,
        connected=status.connected,
        waiting_for=status.waiting_for,
        revision_wanted=status.revision_wanted,
        revision_applied=status.revision_applied,
        binding_sha256=status.binding_sha256,
        tenants=status.tenants,
        packets_by_reason=status.packets_by_reason,
        sealed_packets=status.sealed_packets,
        opened_packets=status.opened_packets,
        appraised_unix_ms=status.appraised_unix_ms,
        deadline_unix_ms=status.deadline_unix_ms,
        next=status.next,
        conditions=[
            device_pb2.Condition(
                name=one.name,
                met=one.met,
                since_unix_ms=one.since_unix_ms,
                reason=one.reason,
                deadline_unix_ms=one.deadline_unix_ms,
                next=one.next,
            )
            for one in status.conditions
        ],
    )


def device_from_message(message: device_pb2.Device) -> DeviceStatus:
    """The device that a message tells of."""
    return DeviceStatus(
        name=message.name,
        state=DeviceState(message.state),
        since_unix_ms=message.since_unix_ms,
        reason=message.reason,
        ready=message.ready,
        tier=message.tier,
        lease_s=message.lease_ms / 1000,
        generation_wanted=message.generation_wanted,
        generation_applied=message.generation_applied,
        key_epochs=dict(message.key_epochs),
        underlay_address=message.underlay_address,
        profile=message.profile,
        device_id_sha256=message.device_id_sha256,
        boot_counter=message.boot_counter,
        version=message.version,
        connected=message.connected,
        waiting_for=message.waiting_for,
        revision_wanted=message.revision_wanted,
        revision_applied=message.revision_applied,
        binding_sha256=message.binding_sha256,
        tenants=tuple(message.tenants),
        packets_by_reason=dict(message.packets_by_reason),
        sealed_packets=message.sealed_packets,
        opened_packets=message.opened_packets,
        appraised_unix_ms=message.appraised_unix_ms,
        deadline_unix_ms=message.deadline_unix_ms,
        next=message.next,
        conditions=tuple(
            Condition(
                name=one.name,
                met=one.met,
                since_unix_ms=one.since_unix_ms,
                reason=one.reason,
                deadline_unix_ms=one.deadline_unix_ms,
                next=one.next,
            )
            for one in message.conditions
        ),
    )


def change_to_message(change: DeviceChange) -> device_pb2.ChangeDeviceResponse:
    """Message for the answer to a change."""
    return device_pb2.ChangeDeviceResponse(
        device=device_to_message(change.device),
        generation=change.generation,
        acknowledged_unix_ns=change.acknowledged_unix_ns,
        peers=[
            device_pb2.PeerAcknowledgement(device=peer.device, applied=peer.applied, duration_ms=peer.duration_ms)
            for peer in change.peers
        ],
        blast_radius=device_pb2.BlastRadius(
            endpoints=change.blast_radius.endpoints,
            tenants=change.blast_radius.tenants,
            peers=change.blast_radius.peers,
            jobs=change.blast_radius.jobs,
            ranks=change.blast_radius.ranks,
        ),
    )


def change_from_message(message: device_pb2.ChangeDeviceResponse) -> DeviceChange:
    """The answer that a message carries."""
    return DeviceChange(
        device=device_from_message(message.device),
        generation=message.generation,
        acknowledged_unix_ns=message.acknowledged_unix_ns,
        peers=tuple(
            PeerAcknowledgement(device=peer.device, applied=peer.applied, duration_ms=peer.duration_ms)
            for peer in message.peers
        ),
        blast_radius=BlastRadius(
            endpoints=tuple(message.blast_radius.endpoints),
            tenants=tuple(message.blast_radius.tenants),
            peers=tuple(message.blast_radius.peers),
            jobs=tuple(message.blast_radius.jobs),
            ranks=message.blast_radius.ranks,
        ),
    )


def token_to_message(token: JoinToken) -> device_pb2.JoinToken:
    """Message for a join token."""
    return device_pb2.JoinToken(device=token.device, token=token.token, expires_unix_ms=token.expires_unix_ms)


def token_from_message(message: device_pb2.JoinToken) -> JoinToken:
    """The token that a message carries."""
    return JoinToken(device=message.device, token=message.token, expires_unix_ms=message.expires_unix_ms)
