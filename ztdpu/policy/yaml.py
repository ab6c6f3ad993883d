"""Strict YAML: text in, plain values and the place of every one of them out.

Owns what the format allows here: one document or several, mappings with unique string keys, sequences,
strings, integers, floats, booleans, null. Anchors, aliases, merge keys, tags and directives are refused
(an alias bomb cannot be written without them). Sizes and depth are bounded while events are read, before there is a
value. Called by `policy.load` and whoever reads `owners.yaml`. YAML 1.2 core schema: `no` and `on` are strings; what
YAML 1.1 and 1.2 read differently, but for these words, is refused.

libyaml parses (40,000 lines a second and more); what the events mean is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml as libyaml

from ztdpu.errors import Location, PolicyError

SIZE_LIMIT_OCTETS: Final = 1024 * 1024
DEPTH_LIMIT: Final = 24
NODE_LIMIT: Final = 65_536
"""Keys and values in one file."""
DOCUMENT_LIMIT: Final = 5_000

Path = tuple[str | int, ...]

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+")
_DOUBTFUL: Final = re.compile(
    r"""[-+]?[0-9][0-9_]*                      # leading zeros, underscores, more digits than fit
    | [-+]?0[xob][0-9a-fA-F_]+                 # hexadecimal, octal, binary
    | [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?   # sexagesimal
    | [-+]?([0-9][0-9_]*)?\.[0-9_]+([eE][-+]?[0-9]+)?
    | [-+]?[0-9][0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?
    | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN)
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)? # dates
    | =""",
    re.VERBOSE,
)
_HIDING: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
    "|\\r(?!\\n)|(?<!^)\\ufeff"
)
"""What ends a line for the parser and not for a reader (or a review), turns text around, or shows as nothing: a comment
must not hide what is in force behind it."""
_PLAIN: Final = (None, "")
"""Style of a scalar without quotes."""
_MERGE_REMEDY: Final = "write the value out where it is used"
_READER: Final = getattr(libyaml, "CSafeLoader", libyaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One YAML document with the place of every key and value."""

    value: Any
    file: str
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Path -> (line, column) from 1, where its key (in a mapping) or its value (in a sequence) starts."""

    def locate(self, path: Path) -> Location:
        """Return the place of `path`, or of the nearest enclosing value."""
        for end in range(len(path), -1, -1):
            place = self.places.get(path[:end])
            if place is not None:
                return Location(file=self.file, line=place[0], column=place[1])
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
    hiding = _HIDING.search(text)
    if hiding is not None:
        raise PolicyError(
            f"character U+{ord(hiding[0]):04X} is not allowed",
            remedy="remove it; lines end with LF or CRLF",
            where=_place_of(text, hiding.start(), file),
        )
    try:
        return tuple(_Builder(text, file, faults).documents())
    except libyaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(file=file, line=1) if mark is None else _within(text, mark.line, mark.column, file)
        raise PolicyError(f"not YAML: {error.problem or error.context}", where=where) from None
    except (libyaml.YAMLError, ValueError) as error:
        raise PolicyError(f"not YAML: {_first_line(error)}", where=Location(file=file, line=1)) from None


def _place_of(text: str, index: int, file: str) -> Location:
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return Location(file=file, line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))


def _within(text: str, line: int, column: int, file: str) -> Location:
    """The place of a mark (from 0); one behind the last line is the end of it."""
    lines = text.splitlines() or [""]
    if line >= len(lines):
        return Location(file=file, line=len(lines), column=len(lines[-1]) + 1)
    return Location(file=file, line=line + 1, column=column + 1)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class _Builder:
    """Turns the flat stream of events into values, counting as it goes."""

    def __init__(self, text: str, file: str, faults: list[PolicyError]) -> None:
        # As `yaml.parse`, without a generator between each two events.
        self._events: Iterator[Any] = iter(_READER(text).get_event, None)
        self._file = file
        self._faults = faults
        self._nodes = 0
        self._places: dict[Path, tuple[int, int]] = {}

    def documents(self) -> Iterator[Placed]:
        count = 0
        for event in self._events:
            if not isinstance(event, libyaml.DocumentStartEvent):
                continue
            if event.version or event.tags:
                raise PolicyError("directives are not allowed", remedy="remove the % line", where=self._where(event))
            count += 1
            if count > DOCUMENT_LIMIT:
                raise PolicyError(
                    f"more than {DOCUMENT_LIMIT} documents", remedy="split the file", where=self._where(event)
                )
            root = next(self._events)
            self._places = {(): _from_one(root)}
            value = self._value(root, (), 1)
            yield Placed(value=value, file=self._file, places=self._places)

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        self._admit(event, depth)
        kind = type(event)
        if kind is libyaml.ScalarEvent:
            return self._scalar(event)
        if kind is libyaml.MappingStartEvent:
            return self._mapping(path, depth)
        items: list[Any] = []
        for item in self._events:
            if type(item) is libyaml.SequenceEndEvent:
                break
            key = (*path, len(items))
            self._places[key] = _from_one(item)
            items.append(self._value(item, key, depth + 1))
        return items

    def _admit(self, event: Any, depth: int) -> None:
        """Refuse what makes YAML dangerous, before anything is built of it."""
        if type(event) is libyaml.AliasEvent:
            raise PolicyError("aliases are not allowed", remedy=_MERGE_REMEDY, where=self._where(event))
        if event.anchor is not None:
            raise PolicyError("anchors are not allowed", remedy=_MERGE_REMEDY, where=self._where(event))
        if event.tag is not None:
            raise PolicyError("tags are not allowed", remedy="remove the ! part", where=self._where(event))
        self._nodes += 1
        if self._nodes > NODE_LIMIT:
            raise PolicyError(f"more than {NODE_LIMIT} values", remedy="split the file", where=self._where(event))
        if depth > DEPTH_LIMIT and type(event) is not libyaml.ScalarEvent:
            raise PolicyError(f"nested deeper than {DEPTH_LIMIT}", where=self._where(event))

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for event in self._events:
            if type(event) is libyaml.MappingEndEvent:
                break
            key = self._key(event, lines, depth)
            value_event = next(self._events)
            if key is None:
                # Looked at for its faults, and kept nowhere.
                places, self._places = self._places, {}
                self._value(value_event, (), depth + 1)
                self._places = places
                continue
            inner = (*path, key)
            self._places[inner] = _from_one(event)
            found[key] = self._value(value_event, inner, depth + 1)
        return found

    def _key(self, event: Any, lines: dict[str, int], depth: int) -> str | None:
        """Return a key that counts; None, with the fault noted, for any other."""
        self._admit(event, depth + 1)
        if type(event) is not libyaml.ScalarEvent:
            self._value(event, (), depth + 1)
            self._note("keys must be plain words", event)
            return None
        key = str(event.value)
        if key == "<<" and event.style in _PLAIN:
            self._note("merge keys are not allowed", event, _MERGE_REMEDY)
            return None
        if key in lines:
            self._note(f"key {key!r} is there twice; first in line {lines[key]}", event)
            return None
        lines[key] = _from_one(event)[0]
        return key

    def _scalar(self, event: Any) -> Any:
        text = event.value
        if event.style not in _PLAIN:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if text[0] not in "+-.0123456789=":
            return text
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _DOUBTFUL.fullmatch(text):
            self._note(
                f"{text!r} can be read in more than one way",
                event,
                "quote it if it is a word, or write a plain decimal number",
            )
        return text

    def _note(self, message: str, event: Any, remedy: str = "") -> None:
        self._faults.append(PolicyError(message, remedy=remedy, where=self._where(event)))

    def _where(self, event: Any) -> Location:
        line, column = _from_one(event)
        return Location(file=self._file, line=line, column=column)


def _from_one(event: Any) -> tuple[int, int]:
    """(line, column) of an event, counted as people do."""
    mark = event.start_mark
    return mark.line + 1, mark.column + 1
