"""What an agent signs to prove that it holds its keys, as octets: made by the agent, verified by control.

Both ends call these functions, so they cannot differ. No key and no I/O here.
"""

from __future__ import annotations

import hashlib
from typing import Final

POSSESSION_LABEL: Final = b"ztdpu/v1/possession\0"
LEASE_REQUEST_LABEL: Final = b"ztdpu/v1/lease-request\0"
HELLO_LABEL: Final = b"ztdpu/v1/hello\0"


def possession_octets(*, nonce: bytes, binding_sha256: bytes, applied_generation: int, kem_public_key: bytes) -> bytes:
    """Signed by the TLS key and by the offer key: whoever answered this nonce holds what the binding names.

    And it is what asked for the lease: a first request is signed under no binding that control knows, so its KEM key
    and generation are covered here.
    """
    return b"".join(
        (
            POSSESSION_LABEL,
            nonce,
            binding_sha256,
            applied_generation.to_bytes(8, "big"),
            hashlib.sha256(kem_public_key).digest(),
        )
    )


def lease_request_octets(
    *, device: str, binding_sha256: bytes, applied_generation: int, kem_public_key: bytes
) -> bytes:
    """Signed by the bound offer key.

    Without it a relay could show the real device's measurements and have epoch keys sealed to a KEM key of its own.
    """
    return b"".join(
        (
            LEASE_REQUEST_LABEL,
            hashlib.sha256(device.encode()).digest(),
            binding_sha256,
            applied_generation.to_bytes(8, "big"),
            hashlib.sha256(kem_public_key).digest(),
        )
    )


def hello_octets(*, device: str, binding_sha256: bytes, worker_instance: bytes, number: int) -> bytes:
    """Signed by the bound offer key: whoever opens the device's stream holds more than its TLS key and SVID."""
    return b"".join(
        (
            HELLO_LABEL,
            hashlib.sha256(device.encode()).digest(),
            binding_sha256,
            worker_instance,
            number.to_bytes(8, "big"),
        )
    )
