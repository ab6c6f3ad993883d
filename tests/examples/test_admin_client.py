"""The admin example against a real control process: it lists, and it sees a device change."""

import asyncio
import importlib.util
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "admin_client.py"


def load_control_fixtures():
    path = Path(__file__).parents[1] / "control" / "conftest.py"
    specification = importlib.util.spec_from_file_location("control_fixtures", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


fixtures = load_control_fixtures()
plant, process, admin = fixtures.plant, fixtures.process, fixtures.admin


async def start(*words):
    return await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def test_lists_every_device(process):
    client = await start("--socket", str(process.spec.admin_socket))
    said, trouble = await asyncio.wait_for(client.communicate(), 20)
    assert client.returncode == 0, trouble.decode()
    assert [line.split()[:4] for line in said.decode().splitlines()] == [
        ["dpu-0", "pending", "not", "ready"],
        ["dpu-1", "pending", "not", "ready"],
    ]


async def test_sees_a_revocation(process, admin):
    client = await start("--socket", str(process.spec.admin_socket), "--watch", "30")
    first = [await asyncio.wait_for(client.stdout.readline(), 20) for _ in fixtures.DEVICES]
    assert [line.split()[1] for line in first] == [b"pending", b"pending"]
    await admin.revoke_device("dpu-1", reason="test")
    assert (await asyncio.wait_for(client.stdout.readline(), 20)).split()[:2] == [b"dpu-1", b"revoked"]
    client.terminate()
    await client.wait()


async def test_says_that_nobody_answers(tmp_path):
    client = await start("--socket", str(tmp_path / "nobody.sock"))
    _, trouble = await asyncio.wait_for(client.communicate(), 20)
    assert client.returncode == 1
    assert "UNAVAILABLE" in trouble.decode()


def test_uses_the_stubs_alone():
    text = PROGRAM.read_text()
    imported = [line for line in text.splitlines() if line.startswith(("from ztdpu", "import ztdpu"))]
    assert imported == ["from ztdpu.v1 import device_pb2, device_pb2_grpc"]
