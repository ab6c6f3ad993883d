"""Keys (never their octets), to and from messages."""

from __future__ import annotations

from ztdpu.model.administration import KeyRotation, TenantKey
from ztdpu.v1 import key_pb2


def key_to_message(key: TenantKey) -> key_pb2.TenantKey:
    """Message for an epoch."""
    return key_pb2.TenantKey(
        tenant=key.tenant,
        network_id=key.network_id,
        network_generation=key.network_generation,
        epoch=key.epoch,
        created_unix_ms=key.created_unix_ms,
        cause=key.cause,
        devices_current=key.devices_current,
        devices_behind=key.devices_behind,
    )


def key_from_message(message: key_pb2.TenantKey) -> TenantKey:
    """The epoch that a message tells of."""
    return TenantKey(
        tenant=message.tenant,
        network_id=message.network_id,
        network_generation=message.network_generation,
        epoch=message.epoch,
        created_unix_ms=message.created_unix_ms,
        cause=message.cause,
        devices_current=tuple(message.devices_current),
        devices_behind=tuple(message.devices_behind),
    )


def rotation_to_message(rotation: KeyRotation) -> key_pb2.RotateKeysResponse:
    """Message for the answer to a rotation."""
    return key_pb2.RotateKeysResponse(generation=rotation.generation, devices=rotation.devices, epoch=rotation.epoch)


def rotation_from_message(message: key_pb2.RotateKeysResponse) -> KeyRotation:
    """The answer that a message carries."""
    return KeyRotation(generation=message.generation, devices=tuple(message.devices), epoch=message.epoch)
