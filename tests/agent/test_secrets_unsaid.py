"""Nothing that carries a secret shows it when it is printed, logged or part of a traceback."""

from __future__ import annotations

import pytest

from ztdpu.agent import mailbox
from ztdpu.agent.start_files import StartFiles
from ztdpu.keys.epoch import EpochKey
from ztdpu.keys.ring import EpochKeyRing
from ztdpu.model.administration import JoinToken
from ztdpu.model.sa import PspVersion, SaGrant, SaUse
from ztdpu.psp import PspDevice, SaKey

SECRET = b"a secret of thirty-two octets..."
ROW = [b"n" * 16, 0, 0, 1, 7, SECRET, 60, 100]


def ring(*, with_before: bool) -> EpochKeyRing:
    ring = EpochKeyRing()
    ring.set_key(b"n" * 16, 1, 5, SECRET, None)
    if with_before:
        ring.set_key(b"n" * 16, 1, 6, bytes(32), 0.0)
    return ring


CARRIERS = [
    SaGrant(
        network_id=b"n" * 16, use=SaUse.DATAGRAM, lane=0, psp_version=PspVersion.AES_GCM_256, spi=7, key=SECRET,
        ttl_s=60, soft_limit_octets=100,
    ),
    EpochKey(network_id=b"n" * 16, network_generation=1, epoch=5, key=SECRET),
    mailbox.InstallSas(1, "dpu-1", [ROW]),
    mailbox.SasAllocated(1, [ROW]),
    StartFiles(bundle_pem=b"", manufacturer_roots=(), operator_keys=(), join_token=SECRET.decode()),
    JoinToken(device="dpu-0", token=SECRET.decode(), expires_unix_ms=1),
    SaKey(SECRET, 7, PspVersion.AES_GCM_256),
    PspDevice(SECRET),
    ring(with_before=False)._networks[b"n" * 16],
    ring(with_before=True)._networks[b"n" * 16],
]  # fmt: skip


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda one: type(one).__name__)
def test_a_secret_is_not_in_what_is_printed(carrier):
    shown = repr(carrier) + str(carrier)
    assert SECRET.decode() not in shown
    assert type(carrier).__name__ in shown, "what it is may be said"
