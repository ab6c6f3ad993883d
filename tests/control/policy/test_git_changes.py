"""Policy from git in a running control: the last good one stays, whatever is pushed; hold, resume, restart, silence."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.run import ControlProcess
from ztdpu.control.source import git_mirror, git_process
from ztdpu.errors import NotFoundError, StateError, UnreachableError
from ztdpu.lab.policy_repository import PolicyRepository, git, make_policy_repository
from ztdpu.model.policy_source import PolicyStanding
from ztdpu.rpc.client import ControlClient

TEST = """\
apiVersion: ztdpu.dev/v1
kind: PolicyTest
metadata: {name: blue-stays-up}
spec:
  flows:
    - {from: blue-0, to: blue-1, port: icmp, expect: allow}
    - {from: blue-0, to: red-0, port: any, expect: drop}
"""


@dataclass
class Garden:
    """A control and the repository that it reads."""

    plant: Any
    repository: PolicyRepository
    processes: list[ControlProcess] = field(default_factory=list)

    def configuration(self, **changes: Any) -> ControlConfiguration:
        words = self.plant.configuration().model_dump(by_alias=True, exclude_none=True, mode="json")
        del words["spec"]["policyDir"]
        words["spec"]["policyGit"] = {
            "repository": str(self.repository.bare),
            "anchor": self.repository.anchor,
            "pollS": 3600,
            "deadlineS": 20,
        } | changes
        return ControlConfiguration.model_validate(words)

    async def start(self, **changes: Any) -> ControlProcess:
        process = ControlProcess(self.configuration(**changes))
        await process.start()
        self.processes.append(process)
        return process

    def write(self, path: str, text: str | None) -> None:
        file = self.repository.work / path
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)

    def push(self, *words: str, force: bool = False) -> str:
        """Commit what was written and push it; the id."""
        work = self.repository.work
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--allow-empty", "-m", "change", *words)
        git(work, "push", "--quiet", *(["--force"] if force else []), "origin", "HEAD:refs/heads/main")
        return git(work, "rev-parse", "HEAD").strip()

    def without_icmp(self) -> None:
        text = (self.repository.work / "network" / "blue.yaml").read_text()
        self.write("network/blue.yaml", text.replace("        - {protocol: ICMP}\n", ""))


@pytest.fixture
async def garden(plant: Any, tmp_path: Path) -> AsyncIterator[Garden]:
    (plant.policy_dir / "tests.yaml").write_text(TEST)
    garden = Garden(plant, make_policy_repository(tmp_path / "repository", plant.policy_dir))
    yield garden
    for process in garden.processes:
        await process.stop()


def calling(process: ControlProcess) -> Callable[..., Any]:
    """Call the client of a process's admin socket by name."""

    async def call(method: str, *arguments: Any, **keywords: Any) -> Any:
        def do() -> Any:
            with ControlClient.connect(str(process.spec.admin_socket)) as client:
                return getattr(client, method)(*arguments, **keywords)

        return await asyncio.to_thread(do)

    return call


async def until(condition: Callable[[], Any], *, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.05)


async def leaves(call: Any, action: str) -> list[dict[str, Any]]:
    found = [json.loads(entry.leaf) for entry in await call("list_audit", limit=100)]
    return [leaf for leaf in found if leaf["action"] == action]


def revisions(status: Any) -> list[str]:
    return [device.revision_wanted for device in status.devices]


async def test_a_signed_push_is_put_in_force_and_an_unsigned_one_is_refused_with_its_reason(garden: Garden) -> None:
    process = await garden.start()
    call = calling(process)
    first = await call("policy_status")
    assert (first.source.commit_id, first.source.standing) == (garden.repository.anchor, PolicyStanding.ACCEPTED)
    garden.write("network/red.yaml", None)
    good = garden.push()
    answer = await call("sync_policy")
    assert not answer.faults
    assert set(answer.changed_devices) == {"dpu-0", "dpu-1"}
    assert (answer.status.source.commit_id, answer.status.source.signer) == (good, "operator@lab.example")
    [leaf] = await leaves(call, "accept-policy")
    assert (leaf["subject"], leaf["outcome"]) == (good, "done")

    garden.without_icmp()
    bad = garden.push("--no-gpg-sign")
    answer = await call("sync_policy")
    assert [fault.message.startswith("is not signed") for fault in answer.faults] == [True]
    status = await call("policy_status")
    assert revisions(status) == revisions(answer.status) != revisions(first)
    assert (status.source.standing, status.source.tip, status.source.commit_id) == (PolicyStanding.REFUSED, bad, good)
    assert f"commit {bad[:12]} is not signed" in status.source.why
    assert process.meters.registry.get_sample_value(
        "ztdpu_policy_refusals_total", {"code": "commit-signature"}
    ) == pytest.approx(1)
    await process._listeners.policy_changes.poll()
    assert len(await leaves(call, "accept-policy")) == 1
    assert [leaf["outcome"] for leaf in await leaves(call, "sync-policy")] == ["done", "refused"]

    git(garden.repository.work, "commit", "--quiet", "--amend", "--no-edit", "-S")
    garden.write("tests.yaml", TEST.replace("icmp, expect: allow", "icmp, expect: drop"))
    garden.push(force=True)
    assert (await call("sync_policy")).faults, "signed now, and the test of the policy in force does not hold"


async def test_polls_tell_a_refusal_once_and_bring_what_mends_it(garden: Garden) -> None:
    process = await garden.start(pollS=0.2)
    call = calling(process)
    anchor = garden.repository.anchor
    garden.write("network/red.yaml", None)
    garden.push("--no-gpg-sign")
    source = process._listeners.policy_changes
    await until(lambda: source.source.standing is PolicyStanding.REFUSED)
    await asyncio.sleep(1)
    [refusal] = await leaves(call, "accept-policy")
    assert (refusal["outcome"], refusal["reason"]) == ("refused", "commit-signature")
    assert source.source.commit_id == anchor
    git(garden.repository.work, "reset", "--quiet", "--soft", anchor)
    good = garden.push(force=True)
    await until(lambda: source.source.commit_id == good)
    assert source.source.standing is PolicyStanding.ACCEPTED
    assert not (await call("policy_status")).faults


async def test_nobody_deletes_a_test_to_pass_it(garden: Garden) -> None:
    call = calling(await garden.start())
    garden.without_icmp()
    garden.write("tests.yaml", None)
    garden.push()
    answer = await call("sync_policy")
    assert answer.faults
    assert "blue-stays-up" in answer.faults[0].message
    assert answer.faults[0].where.file == "tests.yaml"
    assert answer.status.source.commit_id == garden.repository.anchor
    # The twin: the test goes first, on its own, and the policy after it.
    git(garden.repository.work, "reset", "--quiet", "--hard", garden.repository.anchor)
    garden.write("tests.yaml", None)
    garden.push(force=True)
    assert not (await call("sync_policy")).faults
    garden.without_icmp()
    garden.push()
    assert not (await call("sync_policy")).faults


async def test_a_broken_document_is_refused_at_its_line(garden: Garden) -> None:
    call = calling(await garden.start())
    text = (garden.repository.work / "tenants" / "blue.yaml").read_text()
    garden.write("tenants/blue.yaml", text.replace("suite:", "suit:"))
    garden.push()
    [fault] = (await call("sync_policy")).faults
    assert fault.where.file == "tenants/blue.yaml"
    assert fault.where.line


def end_early(_: Any) -> str:
    raise StateError("git ended while objects were read")


async def test_hold_goes_back_and_stays_until_resume(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await garden.start()
    call = calling(process)
    before = revisions(await call("policy_status"))
    garden.write("network/red.yaml", None)
    second = garden.push()
    assert not (await call("sync_policy")).faults
    with pytest.raises(NotFoundError, match="no commit that was in force"):
        await call("hold_policy", "0123456789", reason="typo")
    answer = await call("hold_policy", garden.repository.anchor[:8], reason="red is cut off")
    assert revisions(answer.status) == before
    source = answer.status.source
    assert (source.standing, source.commit_id, source.why) == (
        PolicyStanding.HELD,
        garden.repository.anchor,
        "red is cut off",
    )
    garden.write("network/green.yaml", None)
    third = garden.push()
    with pytest.raises(StateError, match="held"):
        await call("sync_policy")
    await process._listeners.policy_changes.poll()
    held = (await call("policy_status")).source
    assert (held.commit_id, held.tip, held.standing) == (garden.repository.anchor, third, PolicyStanding.HELD)

    away = garden.repository.bare.with_name("away")
    garden.repository.bare.rename(away)
    with capture_logs() as logs:
        for _ in range(3):
            await process._listeners.policy_changes.poll()
    assert len([line for line in logs if line["event"] == "policy-unreachable"]) == 1
    assert "red is cut off" in process._listeners.policy_changes.source.why
    assert "git ls-remote" in process._listeners.policy_changes.source.why, "a hold hides no silence"
    away.rename(garden.repository.bare)
    await process._listeners.policy_changes.poll()
    assert process._listeners.policy_changes.source.why == "red is cut off"

    await process.stop()
    garden.processes.remove(process)
    process = await garden.start()
    call = calling(process)
    held = (await call("policy_status")).source
    assert (held.commit_id, held.standing, held.why) == (
        garden.repository.anchor,
        PolicyStanding.HELD,
        "red is cut off",
    ), "a hold outlives a restart"

    garden.write("network/blue.yaml", None)
    garden.push("--no-gpg-sign")
    assert (await call("resume_policy", reason="mended")).faults
    assert (await call("policy_status")).source.standing is PolicyStanding.HELD, "what does not count ends no hold"
    with monkeypatch.context() as patched:
        patched.setattr(git_mirror.GitObjects, "_line", end_early)
        [fault] = (await call("resume_policy", reason="mended")).faults
        assert "git ended" in fault.message
    git(garden.repository.work, "reset", "--quiet", "--hard", third)
    git(garden.repository.work, "push", "--quiet", "--force", "origin", "HEAD:refs/heads/main")
    answer = await call("resume_policy", reason="mended")
    assert not answer.faults
    assert (answer.status.source.commit_id, answer.status.source.standing) == (third, PolicyStanding.ACCEPTED)
    with pytest.raises(StateError, match="not held"):
        await call("resume_policy", reason="again")
    assert [leaf["outcome"] for leaf in await leaves(call, "hold-policy")] == ["refused", "done"]
    assert second


async def test_a_start_without_the_repository_keeps_the_last_good_policy(garden: Garden, tmp_path: Path) -> None:
    process = await garden.start()
    call = calling(process)
    garden.write("network/red.yaml", None)
    good = garden.push()
    await call("sync_policy")
    wanted = revisions(await call("policy_status"))
    await process.stop()
    garden.processes.remove(process)
    os.rename(garden.repository.bare, tmp_path / "away")  # noqa: PTH104
    shutil.rmtree(process.spec.state_dir / "policy.git")
    process = await garden.start()
    call = calling(process)
    changes = process._listeners.policy_changes
    await until(lambda: changes.source.standing is PolicyStanding.UNREACHABLE)
    status = await call("policy_status")
    assert (status.source.commit_id, revisions(status)) == (good, wanted)
    assert "git" in status.source.why
    [fault] = (await call("sync_policy")).faults
    assert "does not appear to be a git repository" in fault.message
    os.rename(tmp_path / "away", garden.repository.bare)  # noqa: PTH104
    assert not (await call("sync_policy")).faults
    assert (await call("policy_status")).source.standing is PolicyStanding.ACCEPTED


async def test_a_store_that_lost_the_accepted_files_does_not_begin_at_the_anchor_again(garden: Garden) -> None:
    process = await garden.start()
    garden.write("network/red.yaml", None)
    garden.push()
    assert not (await calling(process)("sync_policy")).faults
    with process.fleet.transaction() as transaction:
        transaction.keep_policy_files([])
    await process.stop()
    garden.processes.remove(process)
    with pytest.raises(StateError, match="accepted commit's files"):
        await garden.start()


async def test_a_first_start_wants_the_repository_and_its_anchor(garden: Garden, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no policy was accepted yet"):
        await ControlProcess(garden.configuration(repository=str(tmp_path / "nowhere"))).start()
    (garden.plant.folder / "state" / "control.lock").unlink()
    process = await garden.start()
    assert process.fleet.desired.cluster.policy_tests


async def test_what_is_refused_is_told_once_and_a_missing_git_is_no_refusal(
    garden: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await garden.start()
    call = calling(process)
    changes = process._listeners.policy_changes
    work = garden.repository.work
    git(work, "commit", "--quiet", "--allow-empty", "-m", "x", environment={"GIT_COMMITTER_DATE": "@4102444800 +0000"})
    git(work, "push", "--quiet", "origin", "HEAD:refs/heads/main")
    for _ in range(3):
        await changes.poll()
        await asyncio.sleep(1.1)  # a message that counts seconds would be another one
    assert changes.source.standing is PolicyStanding.REFUSED
    assert len(await leaves(call, "accept-policy")) == 1
    with monkeypatch.context() as patched:
        patched.setattr(git_process, "git_command", lambda *_: ["/nonexistent/git"])
        await changes.poll()
        assert (changes.source.standing, "cannot run git" in changes.source.why) == (PolicyStanding.UNREACHABLE, True)
        assert (await call("sync_policy")).faults
    await changes.poll()
    assert changes.source.standing is PolicyStanding.REFUSED


async def test_an_operator_moves_the_anchor_and_history_counts_from_there(garden: Garden) -> None:
    """The only way over a history that was pushed by force: the start-up file, which nobody who pushes can write."""
    process = await garden.start()
    call = calling(process)
    garden.write("network/red.yaml", None)
    garden.push()
    assert not (await call("sync_policy")).faults
    git(garden.repository.work, "checkout", "--quiet", "--orphan", "anew")
    anew = garden.push(force=True)
    shutil.rmtree(process.spec.state_dir / "policy.git")
    process._git[0]._tip_in_mirror = ""  # type: ignore[index]
    [fault] = (await call("sync_policy")).faults
    assert "is not in the repository any more" in fault.message
    await process.stop()
    garden.processes.remove(process)
    process = await garden.start()
    call = calling(process)
    assert (await call("policy_status")).source.commit_id != anew, "the same anchor: nothing has changed"
    await process.stop()
    garden.processes.remove(process)
    process = await garden.start(anchor=anew)
    call = calling(process)
    assert (await call("policy_status")).source.commit_id == anew
    assert [leaf["subject"] for leaf in await leaves(call, "anchor-policy")] == [garden.repository.anchor, anew]
    garden.write("network/green.yaml", None)
    following = garden.push()
    assert not (await call("sync_policy")).faults
    assert (await call("policy_status")).source.commit_id == following


async def test_the_end_does_not_wait_for_git(garden: Garden, tmp_path: Path) -> None:
    """A repository that says nothing at all: an ssh that sleeps."""
    process = await garden.start()
    git_ = process._git[0]._mirror._git  # type: ignore[index]
    running = asyncio.create_task(asyncio.to_thread(git_.run, ["cat-file", "--batch"], deadline=time.monotonic() + 60))
    sleeper = git_.start([f"--git-dir={process.spec.state_dir}/policy.git", "cat-file", "--batch"])
    started = time.monotonic()
    await process.stop()
    garden.processes.remove(process)
    assert time.monotonic() - started < 10
    assert sleeper.wait(timeout=5)
    git_.end(sleeper)
    await asyncio.gather(running, return_exceptions=True)


async def test_tests_run_again_when_a_device_is_shut_out_and_when_it_is_back(
    garden: Garden, make_bare_agent: Callable[..., Any]
) -> None:
    process = await garden.start()
    call = calling(process)
    for name in ("dpu-0", "dpu-1"):
        agent = make_bare_agent(name, process)
        agent.token = (await call("create_join_token", name)).token
        await agent.attest()
    watch = process._listeners.policy_watch
    await until(lambda: watch.report.tests == 2 and not watch.report.failed)
    await call("quarantine_device", "dpu-1", reason="looks odd")
    await until(lambda: watch.report.failed)
    report = (await call("policy_status")).tests
    assert len(report.failed) == 1
    assert "blue-1 is on dpu-1, which is quarantined" in report.failed[0]
    assert report.cause == "dpu-1 is quarantined"
    assert process.meters.registry.get_sample_value("ztdpu_policy_tests_failed") == pytest.approx(1)
    assert (await leaves(call, "test-policy"))[-1]["detail"]["first"]
