"""Verdicts and the closed list of reasons.

The same word stands in the metric label, the flow log, the audit log and `policy explain`. A packet
ends in exactly one `Outcome`; adding a reason here is the only way to invent one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What happens to a packet or a flow."""

    ALLOW = "ALLOW"
    DROP = "DROP"
    AUDIT = "AUDIT"
    """Passes and is logged: it would be dropped if the policies in audit mode were enforced."""


class Reason(StrEnum):
    """Why. Grouped by the station that decides."""

    # firewall, allowing
    RULE_ALLOWED = "rule_allowed"
    FLOW_ESTABLISHED = "flow_established"
    FLOW_RELATED = "flow_related"
    """An ICMP error that quotes a packet of a live flow."""
    AUDIT_WOULD_DROP = "audit_would_drop"
    """The first packet of a flow that is allowed, and would not be if policies in audit mode were enforced."""

    # doubt: nothing moves
    NO_TABLES = "no_tables"
    NO_LEASE = "no_lease"
    CLOCK_DOUBT = "clock_doubt"
    FORKED = "forked"

    # virtual function: what a tenant may hand over
    MALFORMED = "malformed"
    BAD_OFFLOAD_HEADER = "bad_offload_header"
    BAD_CHECKSUM = "bad_checksum"
    TOO_BIG = "too_big"
    FRAGMENT = "fragment"
    IP_OPTIONS = "ip_options"
    EXTENSION_HEADER = "extension_header"
    MULTICAST = "multicast"
    MARTIAN = "martian"
    TTL_EXPIRED = "ttl_expired"
    SPOOFED_SOURCE = "spoofed_source"
    UNKNOWN_PROTOCOL = "unknown_protocol"

    # firewall, refusing
    NO_RULE = "no_rule"
    """Default deny: no rule of the endpoint allows it."""
    RULE_DENIED = "rule_denied"
    AUDIT_WOULD_ALLOW = "audit_would_allow"
    """Dropped, and would be allowed if policies in audit mode were enforced."""
    TCP_STATE = "tcp_state"
    """A TCP segment that opens nothing and belongs to no live flow, or does not fit its flow's state."""
    ICMP_STATE = "icmp_state"
    FLOW_QUOTA = "flow_quota"
    FLOW_CUT = "flow_cut"
    """A live flow that new tables or a revocation no longer allow."""

    # routing and sealing
    NO_ROUTE = "no_route"
    NO_SA = "no_sa"
    SA_EXHAUSTED = "sa_exhausted"
    SEND_FAILED = "send_failed"

    # underlay: what arrives
    PSP_MALFORMED = "psp_malformed"
    UNKNOWN_SPI = "unknown_spi"
    SA_MISMATCH = "sa_mismatch"
    """Version, next header, offset or cookie differ from what the SA fixes."""
    WRONG_OUTER_SOURCE = "wrong_outer_source"
    REPLAY_DUPLICATE = "replay_duplicate"
    REPLAY_TOO_OLD = "replay_too_old"
    BAD_TAG = "bad_tag"
    FOREIGN_SOURCE = "foreign_source"
    """The inner source address is not one that this peer hosts in this network."""
    FOREIGN_DESTINATION = "foreign_destination"
    """The inner destination is no endpoint of this device in this network."""
    ENDPOINT_DOWN = "endpoint_down"
    ENDPOINT_FULL = "endpoint_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one (super-)packet ended."""

    verdict: Verdict
    reason: Reason
    rule_id: int | None = None
    """Row of the tables that decided; None when no rule was asked or none matched."""
