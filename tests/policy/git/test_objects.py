"""Commits and trees, read strictly: whatever octets come, they are read or refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import CommitContentError, CommitError
from ztdpu.policy.git.objects import DEPTH_LIMIT, diff_trees, list_files, read_commit, read_tree

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
PERSON = "A <a@example.org> 1700000000 +0100"
COMMIT = f"tree {TREE}\nparent {'1' * 40}\nauthor {PERSON}\ncommitter {PERSON}\n\nmessage\n"


class Memory:
    """Objects in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, bytes]] = {}

    def put(self, kind: str, content: bytes) -> str:
        name = hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
        self.objects[name] = (kind, content)
        return name

    def tree(self, entries: Mapping[str, tuple[str, str]]) -> str:
        raw = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(one) for name, (mode, one) in entries.items())
        return self.put("tree", raw)

    def read(self, object_id: str, kind: str, *, limit_octets: int) -> bytes:
        if object_id not in self.objects:
            raise CommitError("missing")
        found, content = self.objects[object_id]
        if found != kind or len(content) > limit_octets:
            raise CommitError("of another kind, or too large")
        return content


def read(text: str | bytes) -> object:
    memory = Memory()
    return read_commit(memory, memory.put("commit", text if isinstance(text, bytes) else text.encode()))


def test_a_commit_apart_from_its_signature() -> None:
    signed = COMMIT.replace("\n\n", "\ngpgsig -----BEGIN X-----\n abc\n -----END X-----\n\n", 1)
    memory = Memory()
    commit = read_commit(memory, memory.put("commit", signed.encode()))
    assert commit.payload == COMMIT.encode()
    assert commit.signature == "-----BEGIN X-----\nabc\n-----END X-----"
    assert (commit.tree, commit.parents, commit.committer_unix_s) == (TREE, ("1" * 40,), 1_700_000_000)


def test_other_headers_are_part_of_what_is_signed() -> None:
    text = COMMIT.replace("\n\n", "\nencoding latin1\nmergetag object 1\n type commit\n\n", 1)
    memory = Memory()
    assert read_commit(memory, memory.put("commit", text.encode())).payload == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        COMMIT.replace("tree ", "root "),
        COMMIT.replace(TREE, TREE[:-1]),
        COMMIT.replace(TREE, TREE.upper()),
        COMMIT.replace("committer ", "Committer "),
        COMMIT.replace("1700000000 +0100\n\n", "-1 +0100\n\n"),
        COMMIT.replace("1700000000 +0100\n\n", "99999999999999999999 +0100\n\n"),
        COMMIT.replace("message", "mess\0age"),
        COMMIT.partition("\n\n")[0],
        COMMIT.replace("\n\n", f"\ntree {TREE}\n\n", 1),
        COMMIT.replace("\n\n", f"\nparent {'2' * 40}\n\n", 1),
        COMMIT.replace("\n\n", f"\ncommitter {PERSON}\n\n", 1),
        COMMIT.replace("author", f"parent {'1' * 40}\nauthor", 1),
        COMMIT.replace("\n\n", "\ngpgsig a\ngpgsig b\n\n", 1),
        COMMIT.replace("\n\n", "\ngpgsig a\ngpgsig-sha256 b\n\n", 1),
        COMMIT.replace("\n\n", "\ngpgsig \u00e4\n\n", 1),
    ],
)
def test_malformed_commits_are_refused(text: str) -> None:
    with pytest.raises(CommitContentError):
        read(text)


def test_an_object_under_another_name_is_refused() -> None:
    memory = Memory()
    name = memory.put("commit", COMMIT.encode())
    memory.objects[name] = ("commit", COMMIT.replace("message", "other").encode())
    with pytest.raises(CommitContentError, match="not what its id says"):
        read_commit(memory, name)


@pytest.mark.parametrize(
    ("mode", "name", "words"),
    [
        ("120000", "a", "symbolic link"),
        ("160000", "a", "submodule"),
        ("100664", "a", "mode"),
        ("100644", "..", "no file name"),
        ("100644", "a/b", "no file name"),
        ("100644", "a\\b", "no file name"),
        ("100644", "a\nb", "no file name"),
        ("100644", ".gitattributes", "checkout"),
        ("100644", ".GitModules", "checkout"),
        ("40000", ".Git", "checkout"),
        ("100644", "x" * 600, "longer than"),
    ],
)
def test_entries_that_are_refused(mode: str, name: str, words: str) -> None:
    memory = Memory()
    with pytest.raises(CommitContentError, match=words):
        read_tree(memory, memory.tree({name: (mode, "1" * 40)}), "")


@pytest.mark.parametrize(
    ("names", "words"),
    [(("Red.yaml", "red.yaml"), "there twice"), (("e\u0301.yaml",), "NFC"), (("\u00e9.yaml", "\u00c9.yaml"), "twice")],
)
def test_names_that_are_one_file_on_another_machine_are_refused(names: tuple[str, ...], words: str) -> None:
    memory = Memory()
    assert len(read_tree(memory, memory.tree(dict.fromkeys(("é.yaml", "e.yaml"), ("100644", "1" * 40))), "")) == 2
    with pytest.raises(CommitContentError, match=words):
        read_tree(memory, memory.tree(dict.fromkeys(names, ("100644", "1" * 40))), "")


def test_a_difference_names_every_file_and_opens_only_what_differs() -> None:
    memory = Memory()
    one, two = memory.put("blob", b"1"), memory.put("blob", b"2")
    same = memory.tree({"s": ("100644", one)})
    old = memory.tree(
        {"a": ("100644", one), "b": ("40000", memory.tree({"c": ("100644", one)})), "same": ("40000", same)}
    )
    new = memory.tree({"a": ("100755", one), "b": ("100644", two), "same": ("40000", same), "z": ("40000", same)})
    del memory.objects[same]
    memory.objects[same] = ("tree", b"")  # opened, it would not be what its id says
    with pytest.raises(CommitContentError, match="not what its id says"):
        list(diff_trees(memory, old, new))
    memory.tree({"s": ("100644", one)})
    found = {path: (bool(was), bool(now)) for path, was, now in diff_trees(memory, old, new)}
    assert found == {"a": (True, True), "b": (False, True), "b/c": (True, False), "z/s": (False, True)}


def test_endless_and_deep_trees_are_refused() -> None:
    memory = Memory()
    tree = memory.put("tree", b"")
    for _ in range(DEPTH_LIMIT - 1):
        tree = memory.tree({str(number): ("40000", tree) for number in range(8)})
    with pytest.raises(CommitContentError, match="more than"):
        list_files(memory, tree)
    tree = memory.tree({"a": ("100644", "1" * 40)})
    for _ in range(DEPTH_LIMIT + 1):
        tree = memory.tree({"d": ("40000", tree)})
    with pytest.raises(CommitContentError, match="nested deeper"):
        list_files(memory, tree)


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: COMMIT.replace("message", text).encode()))
def test_any_octets_are_read_or_refused(octets: bytes) -> None:
    memory = Memory()
    for kind, reader in (("commit", read_commit), ("tree", lambda objects, name: read_tree(objects, name, ""))):
        try:
            reader(memory, memory.put(kind, octets))  # type: ignore[operator]
        except CommitError:
            continue


@given(st.data())
def test_any_change_of_a_signed_commit_changes_payload_or_signature(data: st.DataObject) -> None:
    signed = COMMIT.replace("\n\n", "\ngpgsig -----BEGIN X-----\n abc\n -----END X-----\n\n", 1).encode()
    place = data.draw(st.integers(0, len(signed) - 1))
    octet = data.draw(st.integers(0, 255).filter(lambda value: value != signed[place]))
    changed = signed[:place] + bytes([octet]) + signed[place + 1 :]
    try:
        found = read(changed)
    except CommitError:
        return
    before = read(signed)
    assert (found.payload, found.signature) != (before.payload, before.signature)  # type: ignore[attr-defined]
