"""What the authority issues, in the hands of stock TLS clients: only control has a name that they accept."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ztdpu.errors import SvidError
from ztdpu.trust.authority import BACKDATING, create_authority, issue_control_certificate, issue_svid
from ztdpu.trust.spiffe_id import check_path

DOMAIN = "ztdpu.lab"
NAMES = ["control.ztdpu.lab", "ztdpu.lab", "dpu-0", "localhost", "dpu-0.ztdpu.lab", "ztdpu authority"]


def pem_key(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture(scope="module")
def authority(world):
    # TLS libraries look at the real clock.
    return create_authority(DOMAIN, datetime.now(UTC), world.p384(40), 1)


@pytest.fixture(scope="module")
def identities(world, authority):
    """Key and chain in PEM, of control and of a device."""
    now = datetime.now(UTC)
    times = {"not_before": now - BACKDATING, "not_after": now + timedelta(minutes=10)}
    control, device = world.p256(41), world.p256(42)
    chains = {
        "control": (control, issue_control_certificate(authority, public_key=control.public_key(), serial=2, **times)),
        "dpu-0": (
            device,
            issue_svid(
                authority, trust_domain=DOMAIN, path="/dpu/dpu-0", public_key=device.public_key(), serial=3, **times
            ),
        ),
    }
    return {
        name: (pem_key(key), b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in chain))
        for name, (key, chain) in chains.items()
    }


def handshake(authority, identity, name, folder):
    """A TLS handshake in memory; the client checks `name`."""
    key, chain = identity
    (folder / "key.pem").write_bytes(key)
    (folder / "chain.pem").write_bytes(chain)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.load_verify_locations(cadata=authority.certificate.public_bytes(Encoding.PEM).decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    pending = [client, server]
    while pending:
        pending = [side for side in pending if not is_done(side)]


def is_done(side):
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_openssl_accepts_control_under_its_name_alone(authority, identities, tmp_path):
    handshake(authority, identities["control"], "control.ztdpu.lab", tmp_path)
    for name in NAMES[1:]:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            handshake(authority, identities["control"], name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_openssl_accepts_a_device_under_no_name(authority, identities, tmp_path, name):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(authority, identities["dpu-0"], name, tmp_path)


def answers(authority, identity, name):
    """Whether a stock gRPC client that expects `name` speaks to a server with this identity."""
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.Echo", {"Say": echo})])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([identity]))
    server.start()
    root = authority.certificate.public_bytes(Encoding.PEM)
    options = [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)]
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(root), options) as channel:
            return channel.unary_unary("/t.Echo/Say")(b"hello", timeout=5) == b"hello"
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    finally:
        server.stop(0).wait()


def test_stock_grpc_accepts_control_and_never_a_device(authority, identities):
    assert answers(authority, identities["control"], "control.ztdpu.lab")
    assert not answers(authority, identities["control"], "localhost")
    for name in NAMES:
        assert not answers(authority, identities["dpu-0"], name)


def test_an_authority_on_another_curve_is_refused(world):
    now = datetime.now(UTC)
    assert create_authority(DOMAIN, now, world.p256(43), 1)
    with pytest.raises(SvidError, match="P-256 or P-384"):
        create_authority(DOMAIN, now, ec.generate_private_key(ec.SECP521R1()), 1)


def test_paths_have_a_leading_slash():
    check_path("/dpu/dpu-0")
    for path in ("", "dpu", "dpu/dpu-0", "x/y"):
        with pytest.raises(SvidError):
            check_path(path)
