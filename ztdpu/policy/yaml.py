"""Strict YAML: text in, plain values and the place of every one of them out.

Owns what the format allows here: one document or several, mappings with unique string keys, sequences,
strings, integers, floats, booleans, null. Anchors, aliases, merge keys, tags and directives are refused
(an alias bomb cannot be written without them). Sizes and depth are bounded before anything is built.
Called by `policy.load` only. YAML 1.2 core schema: `no` and `on` are strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ztdpu.errors import Location, PolicyError

SIZE_LIMIT_OCTETS: Final = 1024 * 1024
DEPTH_LIMIT: Final = 24
NODE_LIMIT: Final = 100_000

Path = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_MERGE_REMEDY: Final = "write the value out where it is used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One YAML document with the place of every key and value."""

    value: Any
    file: str
    places: dict[Path, Location] = field(default_factory=dict)
    """Path -> where its key (in a mapping) or its value (in a sequence) starts."""

    def locate(self, path: Path) -> Location:
        """Return the place of `path`, or of the nearest enclosing value."""
        for end in range(len(path), -1, -1):
            place = self.places.get(path[:end])
            if place is not None:
                return place
        return Location(file=self.file, line=1, column=1)


def parse(text: str, *, file: str) -> tuple[Placed, ...]:
    """Return the documents of one file.

    Raises PolicyError with `file:line:column` for the first thing that is not strict YAML as described above.
    """
    faults: list[PolicyError] = []
    documents = parse_noting(text, file=file, faults=faults)
    if faults:
        raise faults[0]
    return documents


def parse_noting(text: str, *, file: str, faults: list[PolicyError]) -> tuple[Placed, ...]:
    """Return the documents of one file, and add to `faults` what is wrong with a single key or value.

    Of a key that is there twice the first counts, so that the rest of the document can be looked at as well. The
    documents are for looking only when there are faults. Raises PolicyError when the file cannot be read on.
    """
    if len(text) > SIZE_LIMIT_OCTETS:
        raise PolicyError(
            f"file is longer than {SIZE_LIMIT_OCTETS} characters", remedy="split it", where=Location(file=file, line=1)
        )
    try:
        _refuse_indirection(text, file)
        reader = YAML(typ="safe", pure=True)
        return tuple(_place(node, file, faults) for node in reader.compose_all(text) if node is not None)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(file=file, line=mark.line + 1 if mark else 1, column=mark.column + 1 if mark else 1)
        raise PolicyError(f"not YAML: {error.problem or error.context}", where=where) from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise PolicyError(f"not YAML: {_first_line(error)}", where=Location(file=file, line=1)) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _refuse_indirection(text: str, file: str) -> None:
    """Look at the flat stream of events, which costs nothing to build, before any node exists."""
    depth = nodes = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        where = Location(file=file, line=event.start_mark.line + 1, column=event.start_mark.column + 1)
        if isinstance(event, AliasEvent):
            raise PolicyError("aliases are not allowed", remedy=_MERGE_REMEDY, where=where)
        if isinstance(event, DocumentStartEvent) and (event.version or event.tags):
            raise PolicyError("directives are not allowed", remedy="remove the % line", where=where)
        if isinstance(event, NodeEvent):
            nodes += 1
            if event.anchor:
                raise PolicyError("anchors are not allowed", remedy=_MERGE_REMEDY, where=where)
            if str(getattr(event, "tag", None) or "None") != "None":
                raise PolicyError("tags are not allowed", remedy="remove the ! part", where=where)
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEPTH_LIMIT:
            raise PolicyError(f"nested deeper than {DEPTH_LIMIT}", where=where)
        if nodes > NODE_LIMIT:
            raise PolicyError(f"more than {NODE_LIMIT} values", remedy="split the file", where=where)


def _place(root: Node, file: str, faults: list[PolicyError]) -> Placed:
    placed = Placed(value=None, file=file, places={(): _location(root, file)})
    return replace(placed, value=_construct(root, (), placed, faults))


def _location(node: Node, file: str) -> Location:
    return Location(file=file, line=node.start_mark.line + 1, column=node.start_mark.column + 1)


def _construct(node: Node, path: Path, placed: Placed, faults: list[PolicyError]) -> Any:
    if isinstance(node, MappingNode):
        return dict(_pairs(node, path, placed, faults))
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            placed.places[(*path, index)] = _location(item, placed.file)
            items.append(_construct(item, (*path, index), placed, faults))
        return items
    return _scalar(node, placed.file, faults)


def _pairs(node: MappingNode, path: Path, placed: Placed, faults: list[PolicyError]) -> Iterator[tuple[str, Any]]:
    seen: dict[str, Location] = {}
    for key_node, value_node in node.value:
        where = _location(key_node, placed.file)
        if not isinstance(key_node, ScalarNode):
            faults.append(PolicyError("keys must be plain words", where=where))
            continue
        key = str(key_node.value)
        if key_node.tag == f"{_TAG}merge":
            faults.append(PolicyError("merge keys are not allowed", remedy=_MERGE_REMEDY, where=where))
            continue
        if key in seen:
            faults.append(PolicyError(f"key {key!r} is there twice; first in line {seen[key].line}", where=where))
            continue
        seen[key] = placed.places[(*path, key)] = where
        yield key, _construct(value_node, (*path, key), placed, faults)


def _scalar(node: Node, file: str, faults: list[PolicyError]) -> Any:
    text, kind = str(node.value), str(node.tag).removeprefix(_TAG)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float":
        return float(text.replace("_", ""))
    # Octal, hexadecimal, sexagesimal, underscores, dates: more than one reader in the world disagrees about them.
    faults.append(
        PolicyError(
            f"{text!r} can be read in more than one way",
            remedy="quote it if it is a word, or write a plain decimal number",
            where=_location(node, file),
        )
    )
    return text
