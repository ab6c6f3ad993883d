"""PSP Security Protocol: header, key derivation, seal and unseal, replay window, device.

Pure: keys, IVs and payloads come in as arguments, packets go out as bytes. Versions 0 (AES-GCM-128) and 1
(AES-GCM-256); versions 2 and 3 have no confidentiality and are refused.
"""

from __future__ import annotations

from ztdpu.psp.device import PspCapabilities, PspDevice
from ztdpu.psp.header import (
    COOKIE_OCTETS,
    HEADER_OCTETS,
    ICV_OCTETS,
    NEXT_HEADER_IPV4,
    NEXT_HEADER_IPV6,
    NEXT_HEADER_TCP,
    NEXT_HEADER_UDP,
    RECORD,
    UDP_PORT,
    PspHeader,
    fixed_octets,
)
from ztdpu.psp.kdf import KEY_OCTETS, MASTER_KEY_OCTETS, derive_key, master_key_slot
from ztdpu.psp.replay import DEFAULT_SIZE_PACKETS, ReplayWindow
from ztdpu.psp.seal import SaKey, Unsealed, seal, seal_with_header, sealed_octets, unseal

__all__ = [
    "COOKIE_OCTETS",
    "DEFAULT_SIZE_PACKETS",
    "HEADER_OCTETS",
    "ICV_OCTETS",
    "KEY_OCTETS",
    "MASTER_KEY_OCTETS",
    "NEXT_HEADER_IPV4",
    "NEXT_HEADER_IPV6",
    "NEXT_HEADER_TCP",
    "NEXT_HEADER_UDP",
    "RECORD",
    "UDP_PORT",
    "PspCapabilities",
    "PspDevice",
    "PspHeader",
    "ReplayWindow",
    "SaKey",
    "Unsealed",
    "derive_key",
    "fixed_octets",
    "master_key_slot",
    "seal",
    "seal_with_header",
    "sealed_octets",
    "unseal",
]
