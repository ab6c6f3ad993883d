"""api.sock in a real lab: the PyPI spiffe client in an endpoint, a job of two ranks, withdrawal at once."""

import json
import os
import time
from pathlib import Path

import pytest

from ztdpu.agent.sidecar.server import API_SOCKET
from ztdpu.lab.cluster import SIDECAR_TARGET
from ztdpu.lab.crew import Crew
from ztdpu.lab.enter import SIDECAR_SOCKET

CHECKOUT = Path(__file__).parents[2]
pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def wait_for(condition, *, seconds, every):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)
    return value


CLIENT = """
import json
from spiffe import WorkloadApiClient
client = WorkloadApiClient()
svids = [str(one.spiffe_id) for one in client.fetch_x509_svids()]
jwt = client.fetch_jwt_svid(audience={"db"}, subject=client.fetch_x509_svid().spiffe_id)
print(json.dumps({"svids": svids, "jwt": str(jwt.spiffe_id), "valid": str(client.validate_jwt_svid(jwt.token, "db").spiffe_id)}))
"""
JOIN = """
import sys
from ztdpu.rpc.sidecar_client import SidecarClient
with SidecarClient() as client:
    print(client.join(sys.argv[1], int(sys.argv[2])))
"""
WATCH = """
import json, time, grpc
from ztdpu.rpc.sidecar_client import HEADER, SidecarClient
from ztdpu.workloadapi import workload_pb2, workload_pb2_grpc
with SidecarClient() as client:
    stream = workload_pb2_grpc.SpiffeWorkloadAPIStub(client._channel).FetchX509SVID(workload_pb2.X509SVIDRequest(), metadata=HEADER)
    try:
        for message in stream:
            print(json.dumps({"ids": [one.spiffe_id for one in message.svids], "at": time.time()}), flush=True)
    except grpc.RpcError as error:
        print(json.dumps({"code": error.code().name, "at": time.time()}), flush=True)
"""


def test_the_place_of_the_socket_is_the_same_everywhere():
    assert f"unix://{SIDECAR_TARGET / API_SOCKET}" == SIDECAR_SOCKET


def test_an_independent_client_in_an_endpoint_sees_endpoint_and_rank(lab):
    own = "spiffe://ztdpu.lab/tenant/blue/endpoint/blue-0"
    said = json.loads(lab.exec("blue-0", "python", "-c", CLIENT).stdout)
    assert said == {"svids": [own], "jwt": own, "valid": own}
    token = json.loads(
        lab.ztdpu("job", "token", "--tenant", "blue", "--job", "e2e", "--world-size", "2", "-o", "json").stdout
    )["token"]
    ranks = [lab.exec(f"blue-{n}", "python", "-c", JOIN, token, str(n)).stdout.strip() for n in range(2)]
    assert ranks == [f"spiffe://ztdpu.lab/tenant/blue/job/e2e/rank/{n}" for n in range(2)]
    stolen = lab.exec("red-0", "python", "-c", JOIN, token, "0", check=False)
    assert stolen.returncode != 0
    assert "permission-denied" in stolen.stderr
    assert json.loads(lab.exec("blue-0", "python", "-c", CLIENT).stdout)["svids"] == [ranks[0], own]
    assert json.loads(lab.ztdpu("job", "list", "-o", "json").stdout)[0]["state"] == "complete"


def test_two_ranks_greet_over_mutual_tls_as_the_example_does(lab):
    token = lab.ztdpu("job", "token", "--tenant", "blue", "--job", "greet", "--world-size", "2").stdout.strip()
    program = str(CHECKOUT / "examples" / "workload_identity.py")
    with Crew(lab.state) as crew:
        crew.start("blue-0", "python", program, "--token", token, "--rank", "0", "--listen", "5005")
        calling = ("python", program, "--token", token, "--rank", "1", "--connect", "blue-0:5005")
        said = wait_for(lambda: lab.exec("blue-1", *calling, check=False).stdout, seconds=20, every=0.3)
    rank = "spiffe://ztdpu.lab/tenant/blue/job/greet/rank/"
    assert said.strip() == f"{rank}1 talks to {rank}0: hello"
    lab.ztdpu("job", "end", "greet", "--tenant", "blue")


ROTATION = """
import json, threading
from spiffe import WorkloadApiClient
client = WorkloadApiClient()
serials, bundles, changed = {}, [], threading.Condition()
def take_svids(context):
    own = context.default_svid
    with changed:
        serials[own.cert_chain[0].serial_number] = (own.cert_chain[0].not_valid_after_utc.timestamp(), str(own.spiffe_id))
        changed.notify()
def take_keys(found):
    with changed:
        bundles.append({str(one.trust_domain): len(one.jwt_authorities) for one in found.bundles})
        changed.notify()
streams = [client.stream_x509_contexts(take_svids, print), client.stream_jwt_bundles(take_keys, print)]
with changed:
    assert changed.wait_for(lambda: len(serials) >= 3 and bundles, 20), (serials, bundles)
for stream in streams:
    stream.cancel()
ends = [end for end, _ in serials.values()]
print(json.dumps({"ids": sorted({one for _, one in serials.values()}), "later": ends == sorted(ends), "keys": bundles}))
"""


def test_an_independent_client_follows_two_rotations_of_an_svid(lab):
    """Signed by a control that was started anew, for SVIDs of four seconds."""
    start_up = lab.state / "control" / "control.yaml"
    given = start_up.read_text()
    token = lab.ztdpu("job", "token", "--tenant", "blue", "--job", "turn", "--world-size", "1").stdout.strip()
    try:
        start_up.write_text(given.replace("  attestation:\n", "  attestation:\n    workloadSvidS: 4\n"))
        lab.ztdpu("lab", "restart", "control", "--state", str(lab.state))
        lab.wait_ready("dpu-0", "dpu-1")
        rank = lab.exec("blue-0", "python", "-c", JOIN, token, "0").stdout.strip()
        said = json.loads(lab.exec("blue-0", "python", "-c", ROTATION).stdout)
        assert said == {"ids": [rank], "later": True, "keys": [{"ztdpu.lab": 1}]}
    finally:
        start_up.write_text(given)
        lab.ztdpu("job", "end", "turn", "--tenant", "blue")
        lab.ztdpu("lab", "restart", "control", "--state", str(lab.state))
        lab.wait_ready("dpu-0", "dpu-1")


def test_a_tenant_cannot_touch_the_socket_of_its_own_sidecar(lab):
    program = (
        "import os\n"
        "for act in (lambda: os.unlink('api.sock'), lambda: os.symlink('/etc/passwd', 'x'), "
        "lambda: os.rename('api.sock', 'y'), lambda: os.chmod('api.sock', 0)):\n"
        "    try: act(); print('done')\n"
        "    except OSError as error: print(error.errno)"
    )
    said = lab.exec("red-0", "sh", "-c", f'cd {SIDECAR_TARGET}; python -c "{program}"').stdout.split()
    assert len(said) == 4
    assert "done" not in said


def test_the_end_of_a_job_and_a_quarantine_reach_open_streams_within_a_second(lab):
    with Crew(lab.state) as crew:
        watching = crew.start("blue-0", "python", "-c", WATCH)
        ids = watching.read_line()["ids"]
        assert ids[0].endswith("/job/e2e/rank/0")
        asked = time.time()
        lab.ztdpu("job", "end", "e2e", "--tenant", "blue")
        told = watching.read_line()
        assert (told["ids"], told["at"] - asked < 2.0) == (ids[1:], True)
        elsewhere = crew.start("blue-1", "python", "-c", WATCH)
        assert elsewhere.read_line()["ids"]
        lab.ztdpu("device", "quarantine", "dpu-0", "--reason", "test", "--yes")
        committed = time.time()
        ended = watching.read_line()
        assert ended["code"] == "PERMISSION_DENIED"
        assert ended["at"] - committed < 1.0
        assert not elsewhere.has_ended
        code = lab.exec("blue-1", "python", "-c", CLIENT).stdout
        assert json.loads(code)["svids"] == ["spiffe://ztdpu.lab/tenant/blue/endpoint/blue-1"]
