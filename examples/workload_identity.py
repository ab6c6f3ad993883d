"""Two ranks of a job that prove to each other who they are: SVIDs from the sidecar, mutual TLS, nothing configured.

    T=$(ztdpu job token --tenant blue --job train-1 --world-size 2)
    ztdpu lab exec blue-0 -- python examples/workload_identity.py --token "$T" --rank 0 --listen 5005 &
    ztdpu lab exec blue-1 -- python examples/workload_identity.py --token "$T" --rank 1 --connect blue-0:5005

The first rank listens until the second has come, so it runs in the background. Identities come from any client of the
SPIFFE Workload API; here `pip install spiffe`. Joining a job is one call of ztdpu's own service on the same socket.
SPIFFE_ENDPOINT_SOCKET says where that is; `ztdpu lab exec` sets it.
"""

import argparse
import os
import socket
import ssl
import tempfile
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import Encoding
from spiffe import WorkloadApiClient

from ztdpu.v1 import sidecar_pb2, sidecar_pb2_grpc

REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED: "this is not the token of an open job of this endpoint's tenant",
    grpc.StatusCode.ALREADY_EXISTS: "the rank is another endpoint's, or this endpoint has another rank of the job",
    grpc.StatusCode.INVALID_ARGUMENT: "the job has no such rank: they are 0 to world size minus 1",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too many tries: wait a second",
    grpc.StatusCode.UNAVAILABLE: "the device or control does not answer: try again",
}
"""What the sidecar means, for people: it does not say more than it must."""


def join(token: str, rank: int) -> str:
    """Take a rank; its identity is there when this returns."""
    options = [("grpc.default_authority", "localhost")]
    place = os.environ.get("SPIFFE_ENDPOINT_SOCKET")
    if not place:
        raise SystemExit("error: SPIFFE_ENDPOINT_SOCKET is not set: run it in an endpoint, as the lines above do")
    with grpc.insecure_channel(place, options=options) as channel:
        sidecar = sidecar_pb2_grpc.SidecarServiceStub(channel)
        try:
            return str(sidecar.Join(sidecar_pb2.JoinRequest(token=token, rank=rank), timeout=10).spiffe_id)
        except grpc.RpcError as error:
            code = error.code()
            raise SystemExit(f"error: cannot join as rank {rank}: {REFUSALS.get(code, code.name)}") from None


def make_context(side: ssl._SSLMethod) -> ssl.SSLContext:
    """TLS with the default identity (the newest rank), believing the trust domain's authorities alone."""
    client = WorkloadApiClient()
    svid = client.fetch_x509_svid()
    bundle = client.fetch_x509_bundles().get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
    context = ssl.SSLContext(side)
    context.check_hostname = False  # a workload has a SPIFFE ID and no host name: see `peer_id`
    context.verify_mode = ssl.CERT_REQUIRED
    roots = b"".join(one.public_bytes(Encoding.PEM) for one in bundle.x509_authorities)
    context.load_verify_locations(cadata=roots.decode())
    with tempfile.TemporaryDirectory() as folder:  # 0700, in memory; the library reads files alone
        svid.save(f"{folder}/svid.pem", f"{folder}/key.pem", Encoding.PEM)
        context.load_cert_chain(f"{folder}/svid.pem", f"{folder}/key.pem")
    return context


def peer_id(connection: ssl.SSLSocket) -> str:
    """The SPIFFE ID that the other side proved."""
    certificate: Any = connection.getpeercert()
    return str(next(value for kind, value in certificate["subjectAltName"] if kind == "URI"))


def main() -> None:
    """Join, then greet one other rank of the same job."""
    parser = argparse.ArgumentParser(description="Greet another rank over mutual TLS.")
    parser.add_argument("--token", required=True)
    parser.add_argument("--rank", type=int, required=True)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--listen", type=int, metavar="PORT")
    way.add_argument("--connect", metavar="HOST:PORT")
    given = parser.parse_args()
    own = join(given.token, given.rank)
    if given.listen:
        context = make_context(ssl.PROTOCOL_TLS_SERVER)
        with socket.create_server(("", given.listen)) as listening:
            plain, _ = listening.accept()
        connection = context.wrap_socket(plain, server_side=True)
    else:
        host, _, port = given.connect.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=10)
        connection = make_context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain)
    with connection:
        other = peer_id(connection)
        if other.rpartition("/rank/")[0] != own.rpartition("/rank/")[0]:
            raise SystemExit(f"{other} is no rank of my job")
        connection.sendall(b"hello")
        print(f"{own} talks to {other}: {connection.recv(5).decode()}")


if __name__ == "__main__":
    main()
