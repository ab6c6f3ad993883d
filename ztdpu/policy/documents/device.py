"""Device: one DPU."""

from __future__ import annotations

from pydantic import Field

from ztdpu.policy.documents.base import Document, Name, Part, Sha256Hex, UnderlayAddress


class Underlay(Part):
    """Where a device stands on the network between devices."""

    address: UnderlayAddress


class DeviceSpec(Part):
    """A DPU."""

    profile: Name
    underlay: Underlay
    device_id_sha256: Sha256Hex | None = Field(default=None, alias="deviceIdSha256")
    """Pins the DeviceID key; without it the device enrols once with a join token."""


class Device(Document):
    """One DPU."""

    KIND = "Device"
    spec: DeviceSpec
