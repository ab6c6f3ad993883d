"""Commits and trees as git stores them, read strictly; each must have the hash that it was asked for by.

A tree may hold plain files and folders. Symbolic links, submodules and what changes a checkout (`.gitattributes`,
`.gitmodules`, `.lfsconfig`) are refused: what is enforced must be what a reviewer saw.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ztdpu.errors import CommitContentError, CommitError, Location

COMMIT_LIMIT_OCTETS: Final = 64 * 1024
TREE_LIMIT_OCTETS: Final = 1024 * 1024
PATH_LIMIT_CHARACTERS: Final = 512
DEPTH_LIMIT: Final = 16
ENTRY_LIMIT: Final = 20_000
"""Most entries of the trees of one commit, and most that one commit may change."""
_FILE_MODES: Final = frozenset({"100644", "100755"})
_FOLDER_MODE: Final = "40000"
_REFUSED_MODES: Final = {"120000": "a symbolic link", "160000": "a submodule"}
_REFUSED_NAMES: Final = frozenset({".git", ".gitattributes", ".gitmodules", ".lfsconfig"})
_COMMITTER: Final = re.compile(rb"committer [^\n\0]*> ([0-9]{1,11}) [+-][0-9]{4}")
_PLACED_HEADERS: Final = (b"tree ", b"parent ", b"author ", b"committer ")
_ID: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_HASHES: Final[Mapping[int, Callable[[bytes], str]]] = {
    40: lambda octets: hashlib.sha1(octets, usedforsecurity=False).hexdigest(),
    64: lambda octets: hashlib.sha256(octets).hexdigest(),
}
_SIGNATURE_HEADERS: Final = {40: b"gpgsig", 64: b"gpgsig-sha256"}


class Objects(Protocol):
    """A store of objects."""

    def read(self, object_id: str, kind: str, *, limit_octets: int) -> bytes:
        """The content of an object. CommitError when it is missing, of another kind, or larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit, apart from its message."""

    commit_id: str
    tree: str
    parents: tuple[str, ...]
    committer_unix_s: int
    """As the signer wrote it."""
    payload: bytes
    """What is signed: the object without the header that holds the signature."""
    signature: str
    """Armoured; empty when there is none."""

    @property
    def short(self) -> str:
        """Id for people."""
        return self.commit_id[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a tree."""

    mode: str
    object_id: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a tree again."""
        return self.mode == _FOLDER_MODE


def read_commit(objects: Objects, commit_id: str) -> Commit:
    """Read one commit.

    Raises:
        CommitError: missing, no commit, or too large.
        CommitContentError: malformed, or not what its id says.

    """
    content = objects.read(commit_id, "commit", limit_octets=COMMIT_LIMIT_OCTETS)
    _check_hash(commit_id, "commit", content)
    head, separator, _ = content.partition(b"\n\n")
    if not separator or b"\0" in content:
        raise _malformed(commit_id, "commit")
    lines = head.split(b"\n")
    parents: list[str] = []
    tree = _after(lines, 0, b"tree ", commit_id)
    while len(lines) > 1 + len(parents) and lines[1 + len(parents)].startswith(b"parent "):
        parents.append(_after(lines, 1 + len(parents), b"parent ", commit_id))
    rest = lines[1 + len(parents) :]
    committer = _COMMITTER.fullmatch(rest[1]) if len(rest) > 1 and rest[0].startswith(b"author ") else None
    # Git takes the first of each and passes over what stands elsewhere; another reader may not.
    is_odd = any(line.startswith(_PLACED_HEADERS) for line in rest[2:]) or len(set(parents)) != len(parents)
    if committer is None or is_odd:
        raise _malformed(commit_id, "commit")
    signature, payload_lines = _split_signature(lines, _SIGNATURE_HEADERS[len(commit_id)], commit_id)
    return Commit(
        commit_id=commit_id,
        tree=tree,
        parents=tuple(parents),
        committer_unix_s=int(committer[1]),
        payload=b"\n".join(payload_lines) + content[len(head) :],
        signature=signature,
    )


def _split_signature(lines: list[bytes], name: bytes, commit_id: str) -> tuple[str, list[bytes]]:
    """(armour or nothing, the other lines). A second signature is refused: which one counts would be a guess."""
    armour: list[bytes] = []
    others: list[bytes] = []
    is_inside = is_found = False
    for line in lines:
        header = line.partition(b" ")[0]
        if line.startswith(b" "):
            (armour if is_inside else others).append(line[1:] if is_inside else line)
            continue
        is_inside = header == name
        if is_inside and not is_found:
            is_found = True
            armour.append(line[len(name) + 1 :])
        elif header in _SIGNATURE_HEADERS.values():
            raise CommitContentError("has more than one signature", where=place(commit_id))
        else:
            others.append(line)
    try:
        return b"\n".join(armour).decode("ascii"), others
    except UnicodeDecodeError:
        raise _malformed(commit_id, "commit") from None


def _after(lines: list[bytes], index: int, word: bytes, commit_id: str) -> str:
    line = lines[index]
    value = line[len(word) :]
    if not line.startswith(word) or not _ID.fullmatch(value) or len(value) != len(commit_id):
        raise _malformed(commit_id, "commit")
    return value.decode()


def read_tree(objects: Objects, tree: str, folder: str) -> dict[str, Entry]:
    """Name -> entry of one tree. `folder` is where it stands, for messages.

    Raises:
        CommitContentError: an entry that is refused, or a malformed tree.

    """
    content = objects.read(tree, "tree", limit_octets=TREE_LIMIT_OCTETS)
    _check_hash(tree, "tree", content)
    width, offset = len(tree) // 2, 0
    entries: dict[str, Entry] = {}
    spellings: set[str] = set()
    while offset < len(content):
        end = content.find(b"\0", offset)
        mode, _, raw_name = content[offset:end].partition(b" ")
        if end < 0 or end + 1 + width > len(content):
            raise _malformed(tree, "tree")
        name = _check_name(raw_name, folder)
        spelling = unicodedata.normalize("NFC", name.casefold())
        if spelling in spellings:
            raise CommitContentError(
                "is there twice",
                remedy="a name that differs in capitals only is the same file on some machines: rename one",
                where=Location(file=_join(folder, name), line=0),
            )
        spellings.add(spelling)
        entry = Entry(mode=mode.decode("ascii", errors="replace"), object_id=content[end + 1 : end + 1 + width].hex())
        _check_mode(entry, _join(folder, name))
        entries[name] = entry
        offset = end + 1 + width
    return entries


def list_root(objects: Objects, tree: str) -> dict[str, Entry]:
    """Name -> entry of the files at the root of a tree."""
    return {name: entry for name, entry in read_tree(objects, tree, "").items() if not entry.is_folder}


def list_files(objects: Objects, tree: str) -> dict[str, Entry]:
    """Path -> entry of every file below a tree; CommitContentError as for `read_tree`, or for more than ENTRY_LIMIT."""
    files: dict[str, Entry] = {}
    for path, _, entry in diff_trees(objects, None, tree):
        assert entry is not None
        files[path] = entry
    return files


def diff_trees(objects: Objects, old: str | None, new: str | None) -> Iterator[tuple[str, Entry | None, Entry | None]]:
    """Yield (path, entry before, entry after) of every file that differs between two trees.

    Folders that are equal are not opened. Raises CommitContentError as `read_tree` does, or beyond ENTRY_LIMIT.
    """
    return _Walk(objects).diff(old, new, "", 0)


class _Walk:
    """One walk through two trees. Folders count as well as files: a tree of empty trees can be endless."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._seen = 0

    def diff(
        self, old: str | None, new: str | None, folder: str, depth: int
    ) -> Iterator[tuple[str, Entry | None, Entry | None]]:
        if old == new:
            return
        if depth > DEPTH_LIMIT:
            raise CommitContentError(f"folders nested deeper than {DEPTH_LIMIT}", where=Location(file=folder, line=0))
        before = read_tree(self._objects, old, folder) if old else {}
        after = read_tree(self._objects, new, folder) if new else {}
        for name in sorted(before.keys() | after.keys()):
            was, now = before.get(name), after.get(name)
            if was == now:
                continue
            path = _join(folder, name)
            self._seen += 1
            if self._seen > ENTRY_LIMIT:
                raise CommitContentError(f"more than {ENTRY_LIMIT} files", where=Location(file=path, line=0))
            was_folder, now_folder = (one.object_id if one and one.is_folder else None for one in (was, now))
            if was_folder or now_folder:
                yield from self.diff(was_folder, now_folder, path, depth + 1)
            was_file, now_file = (None if one is None or one.is_folder else one for one in (was, now))
            if was_file or now_file:
                yield path, was_file, now_file


def read_blob(objects: Objects, entry: Entry, path: str, *, limit_octets: int) -> bytes:
    """Content of a file. CommitError when it is missing or larger, with its path."""
    try:
        content = objects.read(entry.object_id, "blob", limit_octets=limit_octets)
    except CommitError as error:
        raise CommitContentError(error.message, remedy=error.remedy, where=Location(file=path, line=0)) from None
    _check_hash(entry.object_id, "blob", content)
    return content


def place(commit_id: str) -> Location:
    """A commit as a place, for messages."""
    return Location(file=f"commit {commit_id[:12]}", line=0)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _check_name(raw: bytes, folder: str) -> str:
    where = Location(file=folder or ".", line=0)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CommitContentError(f"a file name is not UTF-8: {raw[:64]!r}", where=where) from None
    if unicodedata.normalize("NFC", name) != name:
        raise CommitContentError(
            f"the name {name[:64]!r} is not in Unicode's composed form (NFC)",
            remedy="git config core.precomposeUnicode true, and add it again",
            where=where,
        )
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise CommitContentError(f"{name[:64]!r} is no file name", where=where)
    if len(_join(folder, name)) > PATH_LIMIT_CHARACTERS:
        raise CommitContentError(f"a path is longer than {PATH_LIMIT_CHARACTERS} characters", where=where)
    if name.lower() in _REFUSED_NAMES:
        raise CommitContentError(
            "is refused: it changes what a checkout shows",
            remedy="remove it; policy needs neither attributes nor submodules",
            where=Location(file=_join(folder, name), line=0),
        )
    return name


def _check_mode(entry: Entry, path: str) -> None:
    if entry.mode in _FILE_MODES or entry.is_folder:
        return
    what = _REFUSED_MODES.get(entry.mode, f"of mode {entry.mode[:8]!r}")
    raise CommitContentError(f"is {what}", remedy="put a plain file in its place", where=Location(file=path, line=0))


def _check_hash(object_id: str, kind: str, content: bytes) -> None:
    if _HASHES[len(object_id)](f"{kind} {len(content)}\0".encode() + content) != object_id:
        raise CommitContentError(f"the {kind} {object_id[:12]} is not what its id says", remedy="delete the mirror")


def _malformed(object_id: str, kind: str) -> CommitContentError:
    return CommitContentError(f"the {kind} {object_id[:12]} is malformed")
