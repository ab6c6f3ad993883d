"""Reference pages that cannot go stale: made from the command line and the pydantic models when the docs are built.

`conf.py` calls `write_all`; the tests call the three functions and look for gaps. A field's meaning is the docstring
below it in the code, or stands in `meanings.toml` beside this file.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
import tomllib
import types
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.core import TyperOption

from ztdpu.agent.configuration import AgentConfiguration
from ztdpu.cli.app import NOUNS
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.policy import documents

HERE: Final = Path(__file__).parent
GENERATED: Final = HERE.parent / "build" / "generated"
MEANINGS: Final[dict[str, dict[str, str]]] = tomllib.loads((HERE / "meanings.toml").read_text())
UNTOLD: Final = "?"
"""Stands where a meaning is missing; a test refuses it."""


def write_all() -> None:
    """Write every generated part below build/generated."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("command-line.md", command_line()),
        ("policy-documents.md", policy_documents()),
        ("start-up-files.md", start_up_files()),
    ):
        (GENERATED / name).write_text(text)


# --- the command line -------------------------------------------------------------------------


def nouns() -> dict[str, Any]:
    """Noun -> its click command, with everything behind it loaded."""
    return {noun: typer.main.get_command(importlib.import_module(f"ztdpu.cli.{noun}").app) for noun in NOUNS}


def verbs(command: Any) -> dict[str, Any]:
    """Verb -> command; empty for a noun that stands alone."""
    return {name: verb for name, verb in getattr(command, "commands", {}).items() if not verb.hidden}


def command_line() -> str:
    """Every noun, verb, argument and option."""
    parts = []
    for noun, command in nouns().items():
        parts.append(f"## ztdpu {noun}\n\n{NOUNS[noun]}\n")
        if not verbs(command):
            parts.append(_parameters(command))
        for name, verb in verbs(command).items():
            parts.append(f"### ztdpu {noun} {name}\n\n{_plain(verb.help)}\n\n{_parameters(verb)}")
    return "\n".join(parts)


def _parameters(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name in ("help", "install_completion", "show_completion"):
            continue
        is_option = isinstance(parameter, TyperOption)
        written = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
        notes = [_plain(getattr(parameter, "help", None) or "")]
        kind = parameter.type_descriptor.annotation
        if isinstance(kind, type) and issubclass(kind, Enum) and not notes[0]:
            notes.append("One of " + ", ".join(f"`{choice.value}`" for choice in kind) + ".")
        if parameter.default not in (None, False, ()) and not callable(parameter.default) and not parameter.required:
            notes.append(f"Default `{getattr(parameter.default, 'value', parameter.default)}`.")
        if parameter.envvar:
            notes.append(f"Environment: `{parameter.envvar}`.")
        if parameter.required and is_option:
            notes.append("Required.")
        rows.append((written, " ".join(note for note in notes if note)))
    return _table(("option or argument", "meaning"), rows) if rows else ""


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


# --- documents --------------------------------------------------------------------------------


def policy_documents() -> str:
    """Every kind of policy document with every field."""
    parts = []
    for kind, model in documents.KINDS.items():
        parts.append(f"## {kind}\n\n{_plain(inspect.getdoc(model))}\n\n{_fields_below(model, ())}")
    return "\n".join(parts)


def start_up_files() -> str:
    """Both start-up files with every field."""
    parts = []
    for name, model in (("control", ControlConfiguration), ("agent", AgentConfiguration)):
        parts.append(f"## {model.__name__}\n\nFor `ztdpu {name} run --config FILE`.\n\n{_fields_below(model, ())}")
    return "\n".join(parts)


def _fields_below(model: type[BaseModel], path: tuple[str, ...]) -> str:
    rows = [(f"`{'.'.join(key)}`", kind, default, meaning) for key, kind, default, meaning in walk_fields(model, path)]
    return _table(("field", "value", "default", "meaning"), rows)


def walk_fields(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    """(path, type, default, meaning) of every field that a file may have; `metadata` and the like included."""
    hints = get_type_hints(model, include_extras=True)
    told = _docstrings(model)
    for name, field in model.model_fields.items():
        key = (*path, field.alias or name)
        inner, is_list = _model_in(hints[name])
        meaning = MEANINGS.get(model.__name__, {}).get(name) or told.get(name) or UNTOLD
        if meaning is UNTOLD and inner is not None:
            meaning = _plain(inspect.getdoc(inner))
        yield key, _type_words(hints[name], field.metadata), _default_words(field), _plain(meaning)
        if inner is not None:
            yield from walk_fields(inner, (*path, f"{field.alias or name}{'[]' if is_list else ''}"))


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Attribute docstrings of a model and its bases."""
    told: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not (isinstance(owner, type) and issubclass(owner, BaseModel)) or owner is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        for before, after in pairwise(body):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                told[before.target.id] = ast.literal_eval(after.value)  # type: ignore[union-attr]
    return told


def _model_in(hint: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model inside `X`, `X | None`, `list[X]` or Annotated of these, and whether it is a list."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint, False
    origin = get_origin(hint)
    if origin is Annotated:
        return _model_in(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        found = [_model_in(one) for one in get_args(hint)]
        return next((one for one in found if one[0] is not None), (None, False))
    if origin is list:
        return _model_in(get_args(hint)[0])[0], True
    return None, False


_WORDS: Final = (
    (documents.Name, "name"),
    (documents.Sha256Hex, "64 hex digits"),
    (documents.DigestHex, "hex digest of 32, 48 or 64 octets"),
    (documents.VersionText, "version, quoted"),
    (documents.Labels, "labels"),
    (documents.Address, "IPv4 or IPv6 address"),
    (documents.AddressBlock, "address block"),
    (documents.Port, "1 to 65535"),
)


def _type_words(hint: Any, metadata: Any = ()) -> str:
    for known, words in _WORDS:
        if hint == known:
            return words
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(_type_words(arguments[0]), [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        kept = [_type_words(one) for one in arguments if one is not types.NoneType]
        return _bounded(" or ".join(dict.fromkeys(kept)), metadata)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is list:
        return f"list of {_type_words(arguments[0])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "mapping"
    plain = {"str": "text", "int": "integer", "float": "number", "bool": "`true` or `false`", "Path": "path"}
    plain |= {"IPv4Address": "IPv4 address", "IPv6Address": "IPv6 address"}
    return _bounded(plain.get(getattr(hint, "__name__", ""), str(hint)), metadata)


def _bounded(words: str, metadata: Any) -> str:
    bounds: dict[str, Any] = {}
    for one in metadata:
        for item in (one, *getattr(one, "metadata", ())):
            bounds |= {key: getattr(item, key) for key in ("ge", "le", "min_length") if getattr(item, key, None)}
        if type(one).__name__ == "AfterValidator" and one.func.__name__.startswith(("_check_listener", "_check_addr")):
            words = "ADDRESS:PORT"
    if "ge" in bounds and "le" in bounds:
        return f"{words}, {bounds['ge']:g} to {bounds['le']:g}" if bounds["le"] < 1e6 else f"{words}, {bounds['ge']} up"
    return f"{words}, at least {bounds['min_length']}" if "min_length" in bounds else words


def _default_words(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined or field.default is None or isinstance(field.default, BaseModel):
        return "—"
    default = field.default
    if isinstance(default, list):
        return ", ".join(f"`{one}`" for one in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
