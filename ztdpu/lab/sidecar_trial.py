"""The attack on sidecars and its twin, in figures: run in two endpoints, counted by control's audit log.

A tenant's root gets the other tenant's job token (one that is good and one that is over), guesses others, claims the
other's identity and looks for its socket; the victim joins with the same token. Called by `lab.campaign`.

What can be tried depends on the fabric. In `netns` and `userns` an endpoint has a mount and a pid namespace of its own,
so ways to the other socket are tried. In `userspace` there is one user and one view of the files: whoever runs programs
there can open every socket, so that half is not tried and nothing is claimed about it.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any, Final

from ztdpu.lab.crew import Crew
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.layout import TRUST_DOMAIN, EndpointPlan, LabPlan
from ztdpu.lab.record import require_record
from ztdpu.rpc.client import ControlClient

NAME: Final = "sidecar-of-another-endpoint"
EXPECTED: Final = "permission-denied"
ATTEMPTS: Final = 12
OWN_SOCKET: Final = "/run/ztdpu/sidecar/api.sock"
UNTRIED: Final = {
    f"{NAME} by path, /proc and abstract name": (
        "this fabric has one user, who can open every socket; only tokens and claims were tried"
    )
}
"""What `check connectivity` says beside the row where the fabric has no namespaces."""
_MODULE: Final = "ztdpu.lab.attacks.sidecar_of_another_endpoint"
_AUDIT_S: Final = 2.0
_RUN_S: Final = 30.0


def try_sidecar(
    crew: Crew, control: ControlClient, plan: LabPlan, *, attacker: EndpointPlan, victim: EndpointPlan
) -> dict[str, Any]:
    """Run attack and twin; returns the fields of a `Trial`. The job that it opens is ended."""
    is_shared = bool(untried(plan))
    job = f"attack-{secrets.token_hex(3)}"
    over = control.create_job_token(victim.tenant, job, world_size=1, ttl_s=600, reason="an attack is tried")
    good = control.create_job_token(
        victim.tenant, job, world_size=1, ttl_s=600, reason="an attack is tried", replace=True
    )
    before = control.status().audit_size
    try:
        tokens = f"{good.token}\n{over.token}\n"
        reach = () if is_shared else ("--reach", _socket(plan, victim))
        identity = f"spiffe://{TRUST_DOMAIN}/tenant/{victim.tenant}/endpoint/{victim.name}"
        loot = _run(crew, plan, attacker, tokens, *reach, "--claim", identity, is_shared=is_shared)
        refused = _wait_refusals(control, attacker.name, before)
        twin = _run(crew, plan, victim, tokens, "--twin", is_shared=is_shared)
        strangers = [one for one in control.get_job(victim.tenant, job).ranks if one.endpoint != victim.name]
    finally:
        control.end_job(victim.tenant, job, reason="the attack was tried")
    return {
        "name": NAME,
        "expected": EXPECTED,
        "reason": ", ".join(sorted(set(refused))),
        "attempts": loot["attempts"],
        "seen": len(refused),
        "delivered": loot["joined"] + len(loot["reached"]) + len(loot["foreign"]) + len(strangers),
        "twin_delivered": twin["joined"],
    }


def untried(plan: LabPlan) -> dict[str, str]:
    """Name what is left out on the lab's fabric, and why; empty when nothing is."""
    return UNTRIED if require_record(Path(plan.state)).fabric is Fabric.USERSPACE else {}


def _run(
    crew: Crew, plan: LabPlan, endpoint: EndpointPlan, tokens: str, *options: str, is_shared: bool
) -> dict[str, Any]:
    own = _socket(plan, endpoint) if is_shared else OWN_SOCKET
    more = ("--socket", own, "--attempts", str(ATTEMPTS))
    hand = crew.start_python(endpoint.name, _MODULE, *more, *options)
    for token in tokens.splitlines():
        hand.tell(token)
    return hand.finish(timeout_s=_RUN_S)


def _socket(plan: LabPlan, endpoint: EndpointPlan) -> str:
    return str(plan.paths.sidecar(endpoint.device, endpoint.name) / "api.sock")


def _wait_refusals(control: ControlClient, endpoint: str, first: int) -> list[str]:
    """Code words of the joins of `endpoint` that control refused and wrote down since audit leaf `first`."""
    deadline = time.monotonic() + _AUDIT_S
    while True:
        leaves = [json.loads(entry.leaf) for entry in control.list_audit(first=first)]
        found = [
            str(leaf["reason"])
            for leaf in leaves
            if (leaf["action"], leaf["actor"], leaf["outcome"]) == ("join-job", f"endpoint:{endpoint}", "refused")
        ]
        if len(found) >= ATTEMPTS or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
