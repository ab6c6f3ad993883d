"""JSON Schema of all kinds, for editors: completion, meanings on hover, unknown fields underlined.

One file per kind and one for whole documents, `policy.json`, which picks by `kind`. Made from the pydantic models, so
what an editor accepts and what `policy lint` accepts differ only in what a schema cannot say (names that must exist,
ranges that must fit). Called by `ztdpu policy schema`. Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ztdpu.policy.documents import API_VERSION, KINDS

ALL_KINDS: Final = "policy.json"
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""What editors' YAML servers know best."""


def schemas() -> dict[str, str]:
    """File name -> content."""
    made = {f"{kind}.json": _of_kind(kind) for kind in KINDS}
    made[ALL_KINDS] = _of_all()
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in sorted(made.items())}


def _of_kind(kind: str) -> dict[str, Any]:
    schema = KINDS[kind].model_json_schema(by_alias=True)
    schema["properties"]["kind"] = {"const": kind}
    schema["properties"]["apiVersion"] = {"const": API_VERSION}
    plain: dict[str, Any] = _without_titles(schema)
    return {"$schema": _DIALECT} | plain


def _of_all() -> dict[str, Any]:
    choices = [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": {"$ref": f"{kind}.json"}} for kind in sorted(KINDS)
    ]
    return {
        "$schema": _DIALECT,
        "description": "A policy document of ztdpu.",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"apiVersion": {"const": API_VERSION}, "kind": {"enum": sorted(KINDS)}},
        "allOf": choices,
    }


def _without_titles(value: Any) -> Any:
    """Drop the titles that pydantic makes of field names: editors show them instead of meanings."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "title" or not isinstance(item, str)}
        return {key: _without_titles(item) for key, item in kept.items()}
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    return value
