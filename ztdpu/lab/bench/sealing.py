"""Section sealing: what AES-GCM in a PSP packet costs by size, through the interface and as the hot path does it."""

from __future__ import annotations

import os
from typing import Any, Final

from ztdpu.lab.bench.figures import time_calls
from ztdpu.model.sa import PspVersion
from ztdpu.psp import HEADER_OCTETS, ICV_OCTETS, NEXT_HEADER_IPV4, seal, unseal
from ztdpu.psp.replay import ReplayWindow
from ztdpu.psp.seal import SaKey

SIZES_OCTETS: Final = (64, 1_400, 8_900, 65_000)
_SPI: Final = 0x1234_5678
_NONCE_OCTETS: Final = 12


def measure(*, seconds: float) -> dict[str, Any]:
    """Time each operation at each size; `seconds` is for the whole section."""
    share = seconds / (len(SIZES_OCTETS) * 4 + 1)
    key = SaKey(os.urandom(32), _SPI, PspVersion.AES_GCM_256)
    return {
        "suite": PspVersion.AES_GCM_256.name,
        "rows": [_row(key, size, share) for size in SIZES_OCTETS],
        "replay_window_us": _replay(share)["median"],
    }


def _row(key: SaKey, size: int, seconds: float) -> dict[str, Any]:
    payload = os.urandom(size)
    packet = seal(key, _SPI, 1, payload, next_header=NEXT_HEADER_IPV4, version=key.version)
    nonce, clear, room = os.urandom(_NONCE_OCTETS), packet[:HEADER_OCTETS], bytearray(size + ICV_OCTETS)
    sealed = memoryview(key.aead.encrypt(nonce, payload, clear))
    plain = bytearray(size)
    costs = {
        "seal_us": time_calls(
            lambda: seal(key, _SPI, 1, payload, next_header=NEXT_HEADER_IPV4, version=key.version), seconds=seconds
        ),
        "unseal_us": time_calls(lambda: unseal(key, packet), seconds=seconds),
        "in_place_seal_us": time_calls(lambda: key.aead.encrypt_into(nonce, payload, clear, room), seconds=seconds),
        "in_place_open_us": time_calls(lambda: key.aead.decrypt_into(nonce, sealed, clear, plain), seconds=seconds),
    }
    return {
        "octets": size,
        **costs,
        "in_place_gigabytes_per_s": round(size / costs["in_place_seal_us"]["median"] / 1e3, 2),
    }


def _replay(seconds: float) -> dict[str, Any]:
    """A look and an update for each of a rising row of IVs."""
    window = ReplayWindow()
    next_iv = iter(range(1, 1 << 40))

    def take() -> None:
        iv = next(next_iv)
        window.look(iv)
        window.update(iv)

    return time_calls(take, seconds=seconds)
