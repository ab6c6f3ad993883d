"""Schemas are those of the models, and say yes and no to the same documents as `policy lint` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ztdpu.policy.documents import KINDS
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.policy.load import load_directory
from ztdpu.policy.schema import ALL_KINDS, schemas


def test_committed_schemas_are_those_of_the_models() -> None:
    folder = EXAMPLE_POLICIES / "schema"
    there = {path.name: path.read_text() for path in folder.iterdir()}
    assert there == schemas(), "run `ztdpu policy schema policies/schema`"


def test_every_kind_is_there_and_unknown_fields_are_not() -> None:
    made = {name: json.loads(text) for name, text in schemas().items()}
    assert set(made) == {f"{kind}.json" for kind in KINDS} | {ALL_KINDS}
    assert made[ALL_KINDS]["properties"]["kind"]["enum"] == sorted(KINDS)
    for kind in KINDS:
        schema = made[f"{kind}.json"]
        assert schema["additionalProperties"] is False
        assert schema["properties"]["kind"] == {"const": kind}
        assert all(part["additionalProperties"] is False for part in schema["$defs"].values() if "properties" in part)
    port = made["NetworkPolicy.json"]["$defs"]["PortRange"]["properties"]["port"]
    assert {"integer", "string"} <= {one.get("type") for one in port["anyOf"]}


@pytest.mark.parametrize("path", sorted(EXAMPLE_POLICIES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_examples_name_their_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.split("=")[1]).resolve() == EXAMPLE_POLICIES / "schema" / ALL_KINDS
    assert load_directory(EXAMPLE_POLICIES).tenants
