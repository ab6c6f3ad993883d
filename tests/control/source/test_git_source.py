"""Bad signatures and histories, made with real git: none is accepted, and the good twin of each is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ztdpu.errors import (
    CommitContentError,
    CommitError,
    CommitHistoryError,
    CommitOwnerError,
    CommitSignatureError,
    ConfigurationError,
    PolicyRefusedError,
    UnreachableError,
)
from ztdpu.policy.git import history
from ztdpu.policy.git.history import Moment, judge_history
from ztdpu.policy.git.objects import read_commit

BLUE = "network/blue.yaml"
RED = "network/red.yaml"
MODE_FILE, MODE_LINK, MODE_SUBMODULE = "100644", "120000", "160000"


def policy(tenant: str, *, name: str = "", labels: str = "{}") -> str:
    return (
        f"apiVersion: ztdpu.dev/v1\nkind: NetworkPolicy\nmetadata: {{name: {name or tenant}}}\n"
        f"spec: {{tenant: {tenant}, policyTypes: [Ingress], endpointSelector: {{matchLabels: {labels}}}}}\n"
    )


CHANGED = {BLUE: policy("blue", labels="{a: b}")}
NOW = int(time.time())


# --- each makes a commit and says which; the good twin is `CHANGED` by ops unless it makes its own ---


def unsigned(site: Any) -> None:
    site.commit(CHANGED, by="")


def unknown_key(site: Any) -> None:
    site.commit(CHANGED, by="mallory")


def expired_key(site: Any) -> None:
    site.commit(CHANGED, by="old")


def expired_key_under_an_old_date(site: Any) -> None:
    site.commit(CHANGED, by="old", date_unix_s=1_700_000_000)


def key_that_is_not_valid_yet(site: Any) -> None:
    site.commit(CHANGED, by="early")


def key_for_another_namespace(site: Any) -> None:
    site.commit(CHANGED, by="filer")


def signature_in_another_namespace(site: Any) -> None:
    """A real signature by the right key, over the right octets, made for files."""
    site.commit(CHANGED, by="")
    resign(site, "file")


def revoked_key(site: Any) -> None:
    site.commit(CHANGED, by="stolen")


def revoked_by_the_start_up_file(site: Any) -> None:
    file = site.folder / "revoked"
    file.write_text((site.keys / "ops.pub").read_text())
    site.commit(CHANGED, by="ops")


def signature_copied(site: Any) -> None:
    """The signature of the commit before, on another commit."""
    site.commit(CHANGED, by="")
    copied = signature_of(site.read_object("commit", "HEAD~1"))
    head, body = site.read_object("commit", "HEAD").split(b"\n\n", 1)
    move_to(site, site.put_object("commit", head + b"\n" + copied + b"\n\n" + body))


def content_changed_below_a_signature(site: Any) -> None:
    site.commit(CHANGED)
    signed = site.read_object("commit", "HEAD")
    site.write({BLUE: policy("blue", labels="{c: d}")})
    site.git("add", "--all")
    tree = site.git("write-tree").strip().encode()
    move_to(site, site.put_object("commit", b"tree " + tree + signed[signed.index(b"\n") :]))


def two_signatures(site: Any) -> None:
    site.commit(CHANGED)
    signed = site.read_object("commit", "HEAD")
    other = signature_of(site.read_object("commit", "HEAD~1"))
    move_to(site, site.put_object("commit", signed.replace(b"\n\n", b"\n" + other + b"\n\n", 1)))


def unsigned_below_a_signed_tip(site: Any) -> None:
    site.commit(CHANGED, by="")
    site.commit({BLUE: policy("blue", labels="{c: d}")})


def unsigned_merge_parent(site: Any) -> None:
    merge(site, side_by="", merge_by="ops")


def unsigned_below_a_merge_parent(site: Any) -> None:
    site.git("checkout", "--quiet", "-b", "side")
    site.commit({BLUE: policy("blue", labels="{a: b}")}, by="")
    site.commit({BLUE: policy("blue", labels="{a: c}")})
    side = site.head
    site.git("checkout", "--quiet", "main")
    tree = site.git("rev-parse", f"{side}^{{tree}}").strip()
    site.commit_tree(tree, parents=("HEAD", side))


def unsigned_merge(site: Any) -> None:
    merge(site, side_by="ops", merge_by="")


def merge_by_who_does_not_own_what_it_brings(site: Any) -> None:
    merge(site, side_by="ops", merge_by="rita")


def older_signed_commit(site: Any) -> None:
    """A rewind: what was accepted once, pushed again."""
    site.commit(CHANGED)
    site.push()
    site.look()
    site.git("reset", "--quiet", "--hard", "HEAD~1")


def forced_push_to_another_branch(site: Any) -> None:
    site.commit(CHANGED)
    site.push()
    site.look()
    site.git("reset", "--quiet", "--hard", "HEAD~1")
    site.commit({BLUE: policy("blue", labels="{c: d}")})


def another_root(site: Any) -> None:
    site.git("checkout", "--quiet", "--orphan", "fresh")
    site.commit(CHANGED)


def accepted_commit_as_second_parent(site: Any) -> None:
    """Descends from it, though not by first parents."""
    root = site.head
    site.commit(CHANGED)
    site.push()
    site.look()
    accepted = site.head
    site.commit_tree(site.git("rev-parse", f"{root}^{{tree}}").strip(), parents=(root, accepted))


def date_before_the_last(site: Any) -> None:
    site.commit(CHANGED, date_unix_s=NOW - 3600)


def date_in_the_future(site: Any) -> None:
    site.commit(CHANGED, date_unix_s=NOW + 86_400)


def owner_of_another_path(site: Any) -> None:
    site.commit(CHANGED, by="rita")


def owner_of_one_of_two_paths(site: Any) -> None:
    site.commit({RED: policy("red", labels="{a: b}")} | CHANGED, by="rita")


def deletion_by_who_does_not_own(site: Any) -> None:
    site.commit({BLUE: None}, by="rita")


def lets_himself_in(site: Any) -> None:
    """allowed_signers changed in the very commit that needs it."""
    line = f"ops@example.org {(site.keys / 'mallory.pub').read_text()}"
    site.commit({"allowed_signers": (site.work / "allowed_signers").read_text() + line} | CHANGED, by="mallory")


def signers_changed_by_who_does_not_own_them(site: Any) -> None:
    line = f"ops@example.org {(site.keys / 'rita.pub').read_text()}"
    site.commit({"allowed_signers": (site.work / "allowed_signers").read_text() + line}, by="rita")


def owners_changed_by_who_does_not_own_them(site: Any) -> None:
    text = (site.work / "owners.yaml").read_text().replace("[ops@example.org]}", "[rita@example.org]}")
    site.commit({"owners.yaml": text}, by="rita")


def everybody_locked_out(site: Any) -> None:
    line = f"ops@example.org {(site.keys / 'stolen.pub').read_text()}"
    site.commit({"allowed_signers": line})


def symbolic_link(site: Any) -> None:
    (site.work / "network" / "link.yaml").symlink_to("/etc/passwd")
    site.commit()


def symbolic_link_that_is_gone_again(site: Any) -> None:
    (site.work / "network" / "link.yaml").symlink_to("/etc/passwd")
    site.commit()
    (site.work / "network" / "link.yaml").unlink()
    site.commit()


def submodule(site: Any) -> None:
    site.git("update-index", "--add", "--cacheinfo", f"{MODE_SUBMODULE},{site.head},extra")
    site.commit_index()


def attributes(site: Any) -> None:
    site.commit({"network/.gitattributes": "*.yaml filter=run\n"})


def module_file(site: Any) -> None:
    site.commit({".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = -x\n'})


def huge_blob(site: Any) -> None:
    site.commit({"network/huge.yaml": "# " + "x" * (1024 * 1024) + "\n"})


def path_upwards(site: Any) -> None:
    blob = site.put_object("blob", b"kind: Nonsense\n")
    site.commit_tree(with_entry(site, b"100644 ..\0", blob))


def path_with_a_slash(site: Any) -> None:
    blob = site.put_object("blob", b"kind: Nonsense\n")
    site.commit_tree(with_entry(site, b"100644 ../../x.yaml\0", blob))


def git_folder(site: Any) -> None:
    blob = site.put_object("blob", b"[core]\n")
    inner = site.put_object("tree", b"100644 config\0" + bytes.fromhex(blob))
    site.commit_tree(with_entry(site, b"40000 .GIT\0", inner))


def tree_without_end(site: Any) -> None:
    """Forty folders in one another, each with the next one twice: small to store, endless to walk."""
    tree = site.put_object("tree", b"")
    for _ in range(40):
        tree = site.put_object("tree", b"40000 a\0" + bytes.fromhex(tree) + b"40000 b\0" + bytes.fromhex(tree))
    site.commit_tree(with_entry(site, b"40000 zz\0", tree))


def file_of_another_tenant(site: Any) -> None:
    """In a file of hers, a policy of blue."""
    site.commit({"network/more-red.yaml": policy("blue", name="opened")}, by="rita")


def tag_in_place_of_a_commit(site: Any) -> None:
    """What the branch points at is an annotated tag of a good commit; git itself would not write that."""
    site.commit(CHANGED)
    site.git("tag", "-a", "-m", "x", "v1")
    site.push()
    site.git("push", "--quiet", "origin", "v1")
    (site.bare / "refs/heads/main").write_text(f"{site.git('rev-parse', 'v1').strip()}\n")


def replaced_object(site: Any) -> None:
    """An unsigned commit that refs/replace of the repository swaps for the good one."""
    good = site.commit(CHANGED)
    site.git("reset", "--quiet", "--hard", "HEAD~1")
    bad = site.commit({BLUE: policy("blue", labels="{c: d}")}, by="")
    site.git("push", "--quiet", "origin", f"{good}:refs/replace/{bad}")


def grafted_history(site: Any) -> None:
    """Another history that the repository's grafts file joins to the accepted one."""
    accepted = site.head
    another_root(site)
    site.push()
    (site.bare / "info").mkdir(exist_ok=True)
    (site.bare / "info" / "grafts").write_text(f"{site.head} {accepted}\n")


def shallow_repository(site: Any) -> None:
    for label in ("{c: d}", "{a: b}"):
        site.commit({BLUE: policy("blue", labels=label)})
    site.push()
    os.rename(site.bare, site.folder / "whole.git")  # noqa: PTH104 - said as the shell does
    site.git("clone", "--quiet", "--bare", "--depth=1", f"file://{site.folder}/whole.git", str(site.bare))


KINDS: list[tuple[Callable[[Any], None], type[Exception], str]] = [
    (unsigned, CommitSignatureError, "is not signed"),
    (unknown_key, CommitSignatureError, "not in allowed_signers"),
    (expired_key, CommitSignatureError, "outside its validity"),
    (expired_key_under_an_old_date, CommitHistoryError, "before that of"),
    (key_that_is_not_valid_yet, CommitSignatureError, "outside its validity"),
    (key_for_another_namespace, CommitSignatureError, "not in allowed_signers"),
    (signature_in_another_namespace, CommitSignatureError, "another namespace"),
    (revoked_key, CommitSignatureError, "revoked"),
    (revoked_by_the_start_up_file, CommitSignatureError, "revoked"),
    (signature_copied, CommitSignatureError, "does not match"),
    (content_changed_below_a_signature, CommitSignatureError, "does not match"),
    (two_signatures, CommitContentError, "more than one signature"),
    (unsigned_below_a_signed_tip, CommitSignatureError, "is not signed"),
    (unsigned_merge_parent, CommitSignatureError, "merged by"),
    (unsigned_below_a_merge_parent, CommitSignatureError, "merged by"),
    (unsigned_merge, CommitSignatureError, "is not signed"),
    (merge_by_who_does_not_own_what_it_brings, CommitOwnerError, "does not own"),
    (older_signed_commit, CommitHistoryError, "moved back"),
    (forced_push_to_another_branch, CommitHistoryError, "does not descend"),
    (another_root, CommitHistoryError, "does not descend"),
    (accepted_commit_as_second_parent, CommitHistoryError, "does not descend"),
    (date_before_the_last, CommitHistoryError, "before that of"),
    (date_in_the_future, CommitHistoryError, "in the future"),
    (owner_of_another_path, CommitOwnerError, "network/blue.yaml"),
    (owner_of_one_of_two_paths, CommitOwnerError, "network/blue.yaml"),
    (deletion_by_who_does_not_own, CommitOwnerError, "network/blue.yaml"),
    (lets_himself_in, CommitSignatureError, "not in allowed_signers"),
    (signers_changed_by_who_does_not_own_them, CommitOwnerError, "allowed_signers"),
    (owners_changed_by_who_does_not_own_them, CommitOwnerError, "owners.yaml"),
    (everybody_locked_out, CommitContentError, "rita@example.org"),
    (symbolic_link, CommitContentError, "network/link.yaml"),
    (symbolic_link_that_is_gone_again, CommitContentError, "symbolic link"),
    (submodule, CommitContentError, "submodule"),
    (attributes, CommitContentError, ".gitattributes"),
    (module_file, CommitContentError, "itmodules"),
    (huge_blob, CommitContentError, "network/huge.yaml"),
    (path_upwards, CommitContentError, ""),
    (path_with_a_slash, CommitContentError, ""),
    (git_folder, CommitContentError, ""),
    (tree_without_end, CommitContentError, ""),
    (file_of_another_tenant, PolicyRefusedError, "network/more-red.yaml:3"),
    (tag_in_place_of_a_commit, CommitError, "is a tag"),
    (replaced_object, CommitSignatureError, "is not signed"),
    (grafted_history, CommitHistoryError, "does not descend"),
    (shallow_repository, CommitHistoryError, "cannot be fetched"),
]


@pytest.mark.parametrize(("make", "error", "words"), KINDS, ids=[kind.__name__ for kind, _, _ in KINDS])
def test_nothing_bad_is_accepted_and_its_good_twin_is(
    site: Any, make: Callable[[Any], None], error: type[Exception], words: str
) -> None:
    make(site)
    if make not in (tag_in_place_of_a_commit, grafted_history, shallow_repository):
        site.push()
    before = site.accepted
    with pytest.raises(error) as refused:
        site.look()
    assert words in str(refused.value)
    assert site.accepted == before
    heal(site, before)
    site.commit(CHANGED | {"notes/good.txt": "the twin\n"})
    site.push()
    look = site.look()
    assert [step.signer for step in look.steps] == ["ops@example.org"]
    assert site.accepted == site.head


def heal(site: Any, accepted: str) -> None:
    """Back to the accepted commit, in the same repository and the same control."""
    (site.folder / "revoked").write_text("# nobody\n")
    if (site.folder / "whole.git").exists():
        os.rename(site.bare, site.folder / "shallow.git")  # noqa: PTH104
        os.rename(site.folder / "whole.git", site.bare)  # noqa: PTH104
    (site.bare / "info" / "grafts").unlink(missing_ok=True)
    site.git("checkout", "--quiet", "--force", "-B", "main", accepted)
    site.git("clean", "--quiet", "-ffdx")


def test_every_kind_of_key_and_a_chain_of_commits(site: Any) -> None:
    site.commit({RED: policy("red", labels="{a: b}")}, by="rita")
    site.commit(CHANGED, by="peter")
    site.commit({BLUE: policy("blue")}, by="ops")
    site.push()
    look = site.look()
    assert [step.signer for step in look.steps] == ["rita@example.org", "peter@example.org", "ops@example.org"]
    assert [step.paths for step in look.steps] == [(RED,), (BLUE,), (BLUE,)]
    assert look.snapshot is not None
    assert look.snapshot.files[RED].decode() == policy("red", labels="{a: b}")
    assert site.look().snapshot is None, "nothing is new"


def test_a_signer_counts_from_the_commit_after_the_one_that_lets_him_in(site: Any) -> None:
    line = f"ops@example.org {(site.keys / 'mallory.pub').read_text()}"
    site.commit({"allowed_signers": (site.work / "allowed_signers").read_text() + line}, by="ops")
    site.commit(CHANGED, by="mallory")
    site.push()
    assert len(site.look().steps) == 2


def test_a_key_that_is_taken_away_counts_no_more(site: Any) -> None:
    lines = (site.work / "allowed_signers").read_text().splitlines(keepends=True)
    site.commit({"revoked_signers": (site.keys / "peter.pub").read_text()}, by="ops")
    site.commit(CHANGED, by="peter")
    site.push()
    with pytest.raises(CommitSignatureError, match="revoked"):
        site.look()
    assert lines


def test_a_merge_of_signed_commits_counts_as_a_step_of_its_signer(site: Any) -> None:
    merge(site, side_by="peter", merge_by="ops")
    site.push()
    look = site.look()
    assert [step.signer for step in look.steps][-1] == "ops@example.org"
    assert BLUE in look.steps[-1].paths


def test_git_and_this_program_agree(site: Any) -> None:
    """What git itself says of the same commits, with the same list of keys."""
    signers = site.folder / "signers"
    signers.write_text((site.work / "allowed_signers").read_text())
    for by in ("ops", "rita", "peter", "old", "mallory", "filer", ""):
        site.commit({BLUE: policy("blue", labels=f"{{k: x{by}}}")}, by=by)
        try:
            site.git("-c", f"gpg.ssh.allowedSignersFile={signers}", "verify-commit", "HEAD")
            git_says = True
        except Exception:  # noqa: BLE001 - whatever is wrong
            git_says = False
        assert git_says == (by in ("ops", "rita", "peter")), by


def test_nothing_of_the_repository_is_run_or_written(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = site.folder / "ran"
    script = f"#!/bin/sh\ntouch {mark}\n"
    for hook in ("post-checkout", "reference-transaction", "post-merge", "pre-auto-gc", "fsmonitor-watchman"):
        file = site.bare / "hooks" / hook
        file.parent.mkdir(exist_ok=True)
        file.write_text(script)
        file.chmod(0o755)
    for name in ("core.fsmonitor", "core.sshCommand", "credential.helper", "filter.run.smudge", "core.pager"):
        site.git(f"--git-dir={site.bare}", "config", name, f"touch {mark}")
    home = site.folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[core]\n\thooksPath = {site.bare}/hooks\n\tfsmonitor = "touch {mark}"\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {mark}")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.hooksPath'='{site.bare}/hooks'")
    site.commit(CHANGED)
    site.push()
    mark.unlink(missing_ok=True)  # the pushing side ran its own hooks, which is its affair
    assert site.look().snapshot is not None
    assert not mark.exists()
    written = list((site.folder / "state").rglob("*.yaml"))
    assert not written, "nothing is checked out"


def test_revoked_signers_are_read_whole_or_not_at_all(site: Any) -> None:
    stolen = (site.keys / "ops.pub").read_text()
    site.commit(by="ops")
    site.push()
    (site.folder / "revoked").write_text("# padding\n" * 104_858 + stolen)
    with pytest.raises(ConfigurationError, match="longer than"):
        site.look()
    (site.folder / "revoked").write_text("# padding\n" * 104_000)
    assert len(site.look().steps) == 1


def test_a_mirror_that_is_gone_or_empty_is_made_again(site: Any) -> None:
    mirror = site.folder / "state" / "policy.git"
    site.commit(by="")
    site.push()
    for make_worse in (lambda: shutil.rmtree(mirror), lambda: make_empty(mirror)):
        for _ in range(2):
            with pytest.raises(CommitError, match="not signed"):
                site.look()
            make_worse()
    site.commit_index(words=("--amend",))
    site.push()
    assert len(site.look().steps) == 1


def make_empty(mirror: Path) -> None:
    shutil.rmtree(mirror)
    subprocess.run(["git", "init", "--quiet", "--bare", str(mirror)], check=True)


def test_more_commits_than_are_judged_at_once_are_named_as_such(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        site.commit()
    site.push()
    with monkeypatch.context() as patched:
        patched.setattr(history, "STEP_LIMIT", 2)
        with pytest.raises(CommitHistoryError, match="more than 2 new commits"):
            site.look()
    assert len(site.look().steps) == 3


def test_merges_do_not_read_old_history_again_and_again(site: Any) -> None:
    for _ in range(40):
        site.commit(by="ops")
    site.push()
    site.look()
    for _ in range(4):
        tree = site.git("rev-parse", "HEAD^{tree}").strip()
        sign = f"-S{site.keys / 'ops'}.pub"
        side = site.git("commit-tree", tree, "-p", "HEAD", "-m", "side", sign).strip()
        site.commit_tree(tree, parents=("HEAD", side))
    site.push()
    site.source()._bring_tip()
    with site.source()._mirror.objects() as objects:
        counted = Counting(objects)
        accepted = read_commit(objects, site.accepted)
        steps = judge_history(counted, accepted=accepted, tip=site.head, moment=Moment(now_unix_s=int(time.time())))
    assert len(steps) == 4
    assert counted.reads < 41 + 60


class Counting:
    def __init__(self, objects: Any) -> None:
        self._objects, self.reads = objects, 0

    def read(self, *words: Any, **limits: Any) -> bytes:
        self.reads += 1
        return self._objects.read(*words, **limits)


def test_a_repository_that_is_gone_or_silent_is_unreachable(site: Any, tmp_path: Path) -> None:
    site.look()
    os.rename(site.bare, tmp_path / "away")  # noqa: PTH104
    with pytest.raises(UnreachableError, match="does not appear to be a git repository"):
        site.look()
    os.rename(tmp_path / "away", site.bare)  # noqa: PTH104
    assert site.look().snapshot is None


# --- making them ---


def signature_of(commit: bytes) -> bytes:
    head = commit.split(b"\n\n", 1)[0]
    return head[head.index(b"gpgsig ") :]


def move_to(site: Any, commit: str) -> None:
    site.git("update-ref", "HEAD", commit)


def with_entry(site: Any, head: bytes, object_id: str) -> str:
    tree = site.read_object("tree", "HEAD^{tree}")
    made: str = site.put_object("tree", tree + head + bytes.fromhex(object_id))
    return made


def merge(site: Any, *, side_by: str, merge_by: str) -> None:
    site.git("checkout", "--quiet", "-b", "side")
    site.commit(CHANGED, by=side_by)
    site.git("checkout", "--quiet", "main")
    site.commit({RED: policy("red", labels="{a: b}")}, by="rita")
    sign = ["-c", f"user.signingkey={site.keys / merge_by}.pub"] if merge_by else []
    words = ["-S"] if merge_by else ["--no-gpg-sign"]
    site.git(*sign, "merge", "--quiet", "--no-ff", "-m", "merge", *words, "side")


def resign(site: Any, namespace: str) -> None:
    import subprocess

    content = site.read_object("commit", "HEAD")
    file = site.folder / "payload"
    file.write_bytes(content)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(site.keys / "ops"), str(file)]
    subprocess.run(words, check=True, capture_output=True)
    armour = (site.folder / "payload.sig").read_text().strip().replace("\n", "\n ").encode()
    move_to(site, site.put_object("commit", content.replace(b"\n\n", b"\ngpgsig " + armour + b"\n\n", 1)))
