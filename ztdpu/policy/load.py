"""Files to values: strict reading of policy directories and of start-up files, every fault with its place.

Called by `control.source`, the command line and whoever reads a start-up file. Reads files, nothing else:
the one place in the cores that touches a disk.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ztdpu.errors import ConfigurationError, Location, PolicyError, PolicyPathError, PolicyRefusedError
from ztdpu.policy.cluster import Cluster, build_cluster
from ztdpu.policy.documents import API_VERSION, KINDS, Document
from ztdpu.policy.entry import Entry
from ztdpu.policy.yaml import SIZE_LIMIT_OCTETS, Path, Placed, parse, parse_noting

FILE_LIMIT = 2_000
"""Most YAML files in one policy directory."""
OWNERS_FILE = "owners.yaml"
"""At the root; says who may change what, and is no policy document (`policy.git.owners`)."""

Model = TypeVar("Model", bound=BaseModel)
_WANTED = {
    "int_type": ("a whole number", "write plain decimal digits, without quotes"),
    "string_type": ("text", "put it in quotes"),
    "bool_type": ("true or false", "write it without quotes"),
    "list_type": ("a list", "begin each item with '- '"),
    "dict_type": ("a mapping", "write `name: value`"),
    "model_type": ("a mapping", "write `name: value`"),
}
"""Kind of pydantic's finding -> what is wanted, and what to do."""
Known = dict[str, tuple[Entry, ...]]
"""Text of a faultless file -> its documents. Two policies to compare are mostly the same files."""


def load_directory(directory: str | os.PathLike[str], *, known: Known | None = None) -> Cluster:
    """Return the cluster that the YAML files under `directory` describe.

    Files end in .yaml or .yml; hidden files and folders, and `owners.yaml` at the root, are passed over; symbolic links
    are refused. `known` is read and added to.
    Raises PolicyRefusedError with every fault found, each at its `file:line:column`; PolicyPathError when there is no
    such directory, or no document in it: an empty directory is a wrong path far more often than an empty cluster.
    """
    root = FilePath(directory)
    _require_directory(root)
    faults: list[PolicyError] = []
    entries: list[Entry] = []
    paths = list(_policy_files(root, faults))
    empty = [str(path) for path in paths if not _read_file(path, entries, faults, {} if known is None else known)]
    return _finish(str(root), entries, empty, faults)


def load_files(files: Mapping[str, bytes], *, origin: str, known: Known | None = None) -> Cluster:
    """The same from files that are in memory: path below the root -> content. `origin` names them all, for messages."""
    known = {} if known is None else known
    faults: list[PolicyError] = []
    entries: list[Entry] = []
    empty = []
    for path, content in sorted(files.items()):
        if not is_policy_path(path):
            continue
        try:
            text = _decode(content, path)
        except PolicyError as error:
            faults.append(error)
            continue
        if not _read_documents(text, path, entries, faults, known):
            empty.append(path)
    return _finish(origin, entries, empty, faults)


def is_policy_path(path: str) -> bool:
    """Whether a file at this path below the root holds policy: .yaml or .yml, not hidden, not `owners.yaml`."""
    if path == OWNERS_FILE or any(part.startswith(".") for part in path.split("/")):
        return False
    return path.endswith((".yaml", ".yml"))


def _finish(origin: str, entries: list[Entry], empty: list[str], faults: list[PolicyError]) -> Cluster:
    if not entries and not faults:
        raise PolicyPathError(
            f"no policy documents in {origin}", remedy="policy files end in .yaml or .yml; `policies/` has examples"
        )
    # Names are resolved only once every file reads well: a broken Device would make each of its endpoints a fault too.
    cluster = Cluster() if faults else build_cluster(entries, faults)
    if faults:
        raise PolicyRefusedError(tuple(sorted(faults, key=_place_of)))
    return replace(cluster, empty_files=tuple(empty))


def read_strict(path: str | os.PathLike[str], model: type[Model]) -> Model:
    """Return a start-up file as `model`.

    Raises ConfigurationError that names every fault as `file:line:column path message`.
    """
    name = str(path)
    try:
        documents = parse(_read_text(FilePath(path)), file=name)
    except PolicyError as error:
        raise ConfigurationError(error.message, remedy=error.remedy, where=error.where) from None
    if len(documents) != 1:
        raise ConfigurationError(
            f"one document is wanted, {len(documents)} are there", where=Location(file=name, line=1)
        )
    try:
        return model.model_validate(documents[0].value)
    except ValidationError as error:
        faults = [describe(detail, documents[0], model) for detail in error.errors()]
        raise ConfigurationError(
            "\n".join([faults[0].message, *(str(fault) for fault in faults[1:])]),
            remedy=faults[0].remedy or "mend the start-up file",
            where=faults[0].where,
        ) from None


def _require_directory(root: FilePath) -> None:
    if root.is_dir():
        return
    if root.exists():
        raise PolicyPathError(
            f"{root} is a file, and a directory of policy files is wanted", remedy=f"name its directory: {root.parent}"
        )
    raise PolicyPathError(f"no such directory: {root}", remedy="name a directory of policy files")


def _place_of(fault: PolicyError) -> tuple[str, int, int]:
    return (fault.where.file, fault.where.line, fault.where.column) if fault.where else ("", 0, 0)


def _policy_files(root: FilePath, faults: list[PolicyError]) -> Iterator[FilePath]:
    count = 0
    for folder, folders, files in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*sorted(files), *folders]:
            path = FilePath(folder) / name
            is_policy = is_policy_path(path.relative_to(root).as_posix())
            if path.is_symlink() and (is_policy or name in folders):
                faults.append(PolicyError("symbolic links are refused", where=Location(file=str(path), line=0)))
            elif name in files and is_policy:
                count += 1
                if count > FILE_LIMIT:
                    faults.append(PolicyError(f"more than {FILE_LIMIT} files", where=Location(file=str(root), line=0)))
                    return
                yield path


def _read_text(path: FilePath) -> str:
    where = Location(file=str(path), line=0)
    try:
        with path.open("rb") as stream:
            raw = stream.read(SIZE_LIMIT_OCTETS + 1)
    except OSError as error:
        raise PolicyError(
            f"cannot be read: {error.strerror}", remedy="check path and permissions", where=where
        ) from None
    return _decode(raw, str(path))


def _decode(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PolicyError("not UTF-8 text", where=Location(file=file, line=line)) from None


def _read_file(path: FilePath, entries: list[Entry], faults: list[PolicyError], known: Known) -> bool:
    """Add the file's documents and faults. False: there is nothing in it."""
    try:
        text = _read_text(path)
    except PolicyError as error:
        faults.append(error)
        return True
    return _read_documents(text, str(path), entries, faults, known)


def _read_documents(text: str, file: str, entries: list[Entry], faults: list[PolicyError], known: Known) -> bool:
    again = known.get(text)
    if again is not None:
        entries += [replace(entry, placed=replace(entry.placed, file=file)) for entry in again]
        return bool(again)
    count, fault_count = len(entries), len(faults)
    try:
        documents = parse_noting(text, file=file, faults=faults)
    except PolicyError as error:
        faults.append(error)
        return True
    documents = tuple(placed for placed in documents if placed.value is not None)
    for placed in documents:
        try:
            model = _model_of(placed)
            entries.append(Entry(document=model.model_validate(placed.value), placed=placed))
        except PolicyError as error:
            faults.append(error)
        except ValidationError as error:
            faults.extend(describe(detail, placed, model) for detail in error.errors())
    if len(faults) == fault_count:
        known[text] = tuple(entries[count:])
    return bool(documents)


def _model_of(placed: Placed) -> type[Document]:
    value = placed.value
    if not isinstance(value, dict):
        raise PolicyError("a document with apiVersion and kind is wanted", where=placed.locate(()))
    if value.get("apiVersion") != API_VERSION:
        raise PolicyError(
            f"apiVersion {value.get('apiVersion')!r} is not known",
            remedy=f"write apiVersion: {API_VERSION}",
            where=placed.locate(("apiVersion",)),
        )
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        near = _nearest(str(kind), KINDS)
        raise PolicyError(
            f"kind {kind!r} is not one that is enforced{near}",
            remedy=f"kinds are {', '.join(sorted(KINDS))}",
            where=placed.locate(("kind",)),
        )
    return KINDS[kind]


def _nearest(word: str, words: Any) -> str:
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def describe(detail: ErrorDetails, placed: Placed, model: type[BaseModel]) -> PolicyError:
    """Turn one finding of pydantic into an error with the place in the file and the nearest right name."""
    path: Path = tuple(detail["loc"])
    shown = ".".join(str(step) for step in path) or "document"
    if detail["type"] == "extra_forbidden":
        names = _fields_at(model, path[:-1])
        message = f"{shown}: unknown field{_nearest(str(path[-1]), names)}"
        remedy = f"fields here are {', '.join(sorted(names))}" if names else "remove it"
        return PolicyError(message, remedy=remedy, where=placed.locate(path))
    if detail["type"] == "missing":
        return PolicyError(f"{shown}: is missing", where=placed.locate(path[:-1]))
    if detail["type"] == "too_short":
        least = detail["ctx"]["min_length"]
        remedy = "leave it out to mean everything" if path[-1] in ("from", "to", "ports") else ""
        message = (
            f"{shown}: at least {least} item{'s' if least > 1 else ''} wanted, {detail['ctx']['actual_length']} there"
        )
        return PolicyError(message, remedy=remedy, where=placed.locate(path))
    if detail["type"] in _WANTED:
        wanted, remedy = _WANTED[detail["type"]]
        return PolicyError(f"{shown}: {wanted} is wanted", remedy=remedy, where=placed.locate(path))
    return PolicyError(f"{shown}: {detail['msg'].removeprefix('Value error, ')}", where=placed.locate(path))


def _fields_at(model: type[BaseModel], path: Path) -> set[str]:
    """Names that the model allows at `path`, as they are written in files."""
    current: Any = model
    for step in path:
        if isinstance(step, int):
            continue
        current = _submodel(current, step)
        if current is None:
            return set()
    return {info.alias or name for name, info in current.model_fields.items()}


def _submodel(model: type[BaseModel], alias: str) -> Any:
    for name, info in model.model_fields.items():
        if (info.alias or name) == alias:
            return next((kind for kind in _types_in(info.annotation) if issubclass(kind, BaseModel)), None)
    return None


def _types_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _types_in(inner)
