"""What policies in audit mode would treat otherwise: from the worker into the journal, and to control.

Called by `agent.daemon`. The device knows rows of its tables by number; control knows the files behind them.
"""

from __future__ import annotations

import ipaddress

from ztdpu.agent import mailbox
from ztdpu.agent.journal import log
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Reason
from ztdpu.v1 import agent_pb2

_EVENTS = {Reason.AUDIT_WOULD_DROP: "audit-would-drop", Reason.AUDIT_WOULD_ALLOW: "audit-would-allow"}


def tell_audits(said: mailbox.AuditNoted) -> agent_pb2.AgentMessage:
    """Write a line for each row; return the message to control."""
    message = agent_pb2.AuditModeRows(revision=said.revision, uncounted=said.uncounted)
    for tenant, endpoint, direction, peer, protocol, port, reason, rule_id, packets in said.rows:
        log(
            _EVENTS[Reason(reason)],
            tenant=tenant,
            endpoint=endpoint,
            direction=direction,
            peer=str(ipaddress.ip_address(peer)),
            protocol=Protocol(protocol).name.lower(),
            port=port,
            packets=packets,
            rule=rule_id,
            revision=said.revision.hex()[:12],
        )
        message.rows.add(
            endpoint=endpoint, direction=direction, peer=peer, protocol=protocol, port=port, reason=reason,
            rule_id=rule_id, packets=packets,
        )  # fmt: skip
    if said.uncounted:
        log("audit-mode-more", packets=said.uncounted)
    return agent_pb2.AgentMessage(audit_mode=message)
