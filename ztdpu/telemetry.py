"""Names of metrics and logs, and how a process sets logging up. One vocabulary, in one file.

Called once by each process that logs. Holds no state of its own; never logs a key, a token or a payload.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Any

import structlog


class Metric(StrEnum):
    """Names of control's metrics; the unit is the last word."""

    DEVICES = "ztdpu_devices"
    """Gauge by state."""
    CONNECTED_AGENTS = "ztdpu_connected_agents"
    ATTESTATIONS = "ztdpu_attestations_total"
    """Counter by result: the state that followed, or the code word of a refusal."""
    ATTESTATION_SECONDS = "ztdpu_attestation_seconds"
    RPC = "ztdpu_rpc_total"
    """Counter by method and code word (`ok`, or that of the error)."""
    REFUSALS_SUMMARISED = "ztdpu_refusals_summarised_total"
    """Counter: refused callers beyond the rate at which each gets an audit leaf."""
    RELAYED_ENVELOPES = "ztdpu_relayed_envelopes_total"
    """Counter by result: `relayed`, `rate`, `size`, `no_peer`, `not_connected`."""
    WORKLOADS = "ztdpu_workload_requests_total"
    """Counter by action (`sign-x509`, `sign-jwt`, `join-job`, `leave-job`) and result: `ok`, or the code word."""
    REVOCATION_SECONDS = "ztdpu_revocation_seconds"
    """From commit to the answer of a peer."""
    GENERATION = "ztdpu_generation"
    IDENTITY_SECONDS = "ztdpu_identity_seconds"
    """Gauge by kind (`authority`, `control`, `device`) and name: seconds that a certificate has left."""
    IDENTITY_ALARMS = "ztdpu_identity_alarms_total"
    """Counter: identities shown by somebody who does not hold the rest of what their owner holds."""
    POLICY_FAULTS = "ztdpu_policy_faults"
    """Gauge: faults that the last sync found; 0 when it was applied."""
    POLICY_STANDING = "ztdpu_policy_standing"
    """Gauge by standing: 1 for how the newest of the policy source stands, 0 for the other words."""
    POLICY_REFUSALS = "ztdpu_policy_refusals_total"
    """Counter by code word: commits of the policy repository that were refused, once per commit and cause."""
    POLICY_TESTS_FAILED = "ztdpu_policy_tests_failed"
    """Gauge: policy tests that fail in the cluster as it is now."""
    POLICY_AUDITED = "ztdpu_policy_audited_total"
    """Counter by device, policy and outcome (`drop`, `allow`): first packets that audit mode would decide otherwise."""
    PACKETS = "ztdpu_packets"
    """Gauge by device and reason: what a connected agent last said; a new worker counts from 0."""


def configure_logging(component: str, *, level: int = logging.INFO) -> None:
    """Write one JSON object a line to stderr, with time, level, component and event."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(component=component)


def get_logger() -> Any:
    """The logger of this process."""
    return structlog.get_logger()
