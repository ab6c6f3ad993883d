"""What devices say of audit mode, as control tells it: with the policy's line, and never more than it is."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from structlog.testing import capture_logs

from ztdpu.v1 import agent_pb2

POLICY = """\
apiVersion: ztdpu.dev/v1
kind: ClusterNetworkPolicy
metadata: {name: no-debuggers}
spec:
  tier: Admin
  priority: 10
  mode: audit
  subject: {tenants: {}}
  ingress:
    - {name: debuggers stay local, action: Deny, from: [{tenants: {}}], ports: [{port: 5678}]}
"""


@pytest.fixture
def audited(plant):
    """Before control starts."""
    (plant.policy_dir / "network" / "no-debuggers.yaml").write_text(POLICY)


def rows_of(process, **changes):
    tables = process.fleet.desired.tables["dpu-0"]
    rule_id = next(number for number, origin in tables.origins.items() if origin.policy == "no-debuggers")
    row = {
        "endpoint": "red-0", "direction": "ingress", "peer": bytes((10, 1, 0, 11)), "protocol": 6, "port": 5678,
        "reason": "audit_would_drop", "rule_id": rule_id, "packets": 3,
    } | changes  # fmt: skip
    return agent_pb2.AuditModeRows(revision=tables.revision, rows=[agent_pb2.AuditModeRow(**row)])


async def said(stream, logs, message):
    """Log lines about audit mode once control has taken `message`."""
    await stream.send(audit_mode=message)
    deadline = time.monotonic() + 10
    while not (found := [one for one in logs if one["event"].startswith("audit-mode")]):
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)
    return found


async def test_the_line_of_the_policy_is_told_and_counted(audited, process, make_agent, open_stream):
    agent = await make_agent("dpu-0")
    await agent.attest()
    stream = await open_stream(agent)
    with capture_logs() as logs:
        (line,) = await said(stream, logs, rows_of(process))
    assert line["where"].endswith("no-debuggers.yaml:10:7")
    told = {name: line[name] for name in ("would", "tenant", "endpoint", "peer", "peer_endpoint", "port", "packets")}
    assert told == {
        "would": "drop", "tenant": "red", "endpoint": "red-0", "peer": "10.1.0.11", "peer_endpoint": "red-1",
        "port": 5678, "packets": 3,
    }  # fmt: skip
    assert (line["policy"], line["rule"]) == ("ClusterNetworkPolicy no-debuggers", "debuggers stay local")
    labels = {"device": "dpu-0", "policy": line["policy"], "would": "drop"}
    assert process.meters.registry.get_sample_value("ztdpu_policy_audited_total", labels) == 3


async def test_rows_of_other_tables_are_not_given_a_line(audited, process, make_agent, open_stream):
    agent = await make_agent("dpu-0")
    await agent.attest()
    stream = await open_stream(agent)
    message = rows_of(process)
    message.revision = bytes(32)
    message.rows.add().CopyFrom(message.rows[0])
    message.rows[1].endpoint = "red-1"  # on the other device
    with capture_logs() as logs:
        (line,) = await said(stream, logs, message)
    assert (line["endpoint"], line["where"], line["policy"]) == ("red-0", "", "")


async def test_a_device_that_floods_is_told_of_once_a_second(audited, process, make_agent, open_stream):
    agent = await make_agent("dpu-0")
    await agent.attest()
    stream = await open_stream(agent)
    with capture_logs() as logs:
        for _ in range(50):
            await stream.send(audit_mode=rows_of(process))
        await said(stream, logs, rows_of(process))
        lines = [one for one in logs if one["event"] == "audit-mode"]
    assert len(lines) <= 2


@pytest.mark.parametrize("changes", [{"reason": "no_rule"}, {"peer": b"x"}, {"direction": "up"}, {"protocol": 255}])
async def test_what_is_no_row_ends_the_stream(audited, process, make_agent, open_stream, changes):
    agent = await make_agent("dpu-0")
    await agent.attest()
    stream = await open_stream(agent)
    await stream.send(audit_mode=rows_of(process, **changes))
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
