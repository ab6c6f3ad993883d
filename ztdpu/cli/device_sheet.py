"""One device on a page: its conditions as a tree, findings below what they lower, then ids and traffic.

Called by `ztdpu device show`. One line a fact. A terminal breaks long ones between words alone: an id that is cut in
two can be neither copied nor found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ztdpu.cli.attestation import findings_lines
from ztdpu.cli.connection import as_age, as_time

if TYPE_CHECKING:
    from ztdpu.model.attestation import Finding
    from ztdpu.model.device import Condition, DeviceStatus

_NAME_WIDTH: Final = 11


def device_sheet(one: DeviceStatus, findings: Sequence[Finding]) -> list[str]:
    """The page, line by line."""
    return [
        f"{one.name}: {one.state} since {as_time(one.since_unix_ms)} ({as_age(one.since_unix_ms)})",
        f"  reason       {one.reason or '-'}",
        f"  next         {one.next or '-'}{in_time(one.deadline_unix_ms)}",
        "conditions",
        *_tree(one.conditions, findings),
        "trust",
        f"  tier         {one.tier}",
        f"  profile      {one.profile}, boot {one.boot_counter}",
        f"  DeviceID     {one.device_id_sha256 or 'not pinned yet'}",
        f"  key binding  {one.binding_sha256 or 'none'}",
        f"  version      {one.version}",
        "policy",
        f"  tenants      {', '.join(one.tenants) or 'none'}",
        f"  wanted       {one.revision_wanted}",
        f"  applied      {one.revision_applied or 'none'}",
        f"  generation   {_generation(one)}",
        f"  key epochs   {', '.join(f'{t} {e}' for t, e in sorted(one.key_epochs.items())) or 'none'}",
        "traffic",
        f"  underlay     {one.underlay_address}",
        f"  sealed       {one.sealed_packets} packets",
        f"  opened       {one.opened_packets} packets",
        *(
            f"  {reason:<12} {count} packets"
            for reason, count in sorted(one.packets_by_reason.items(), key=lambda pair: -pair[1])
        ),
    ]


def _generation(one: DeviceStatus) -> str:
    """Of the tables; peers, keys and leases count on, so that what is applied may be newer than what is wanted."""
    if one.revision_applied == one.revision_wanted and one.generation_applied >= one.generation_wanted:
        return f"{one.generation_applied} applied"
    return f"{one.generation_wanted} wanted, {one.generation_applied or 'none'} applied"


def in_time(deadline_unix_ms: int) -> str:
    """` in 12 s`; empty without a deadline."""
    if not deadline_unix_ms:
        return ""
    seconds = max(0.0, deadline_unix_ms / 1000 - time.time())
    return f" in {seconds:.0f} s" if seconds < 600 else f" in {seconds / 60:.0f} min"


def _tree(conditions: Sequence[Condition], findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for number, one in enumerate(conditions):
        is_last = number == len(conditions) - 1
        lines.append(f"  {'└─' if is_last else '├─'} {_condition(one)}")
        if one.name == "attested":
            lines += findings_lines(findings, "  │      ")
    return lines


def _condition(one: Condition) -> str:
    since = f" for {as_age(one.since_unix_ms)}" if one.since_unix_ms else ""
    following = f"; {one.next}{in_time(one.deadline_unix_ms)}" if one.next else ""
    return f"{'yes' if one.met else 'NO '} {one.name:<{_NAME_WIDTH}}{one.reason or '-'}{since}{following}"
