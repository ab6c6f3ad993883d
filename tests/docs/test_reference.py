"""Reference pages leave nothing out: every verb, field, reason, state and metric, and nothing that is not there."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import BaseModel

from ztdpu.agent.configuration import AgentConfiguration
from ztdpu.cli.app import NOUNS
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.meters import Meters
from ztdpu.model.device import DeviceState
from ztdpu.model.verdict import Reason
from ztdpu.policy.documents import KINDS
from ztdpu.telemetry import Metric


def first_cells(text):
    """The code words in the first column of all tables."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def test_every_noun_and_verb_is_listed(generate):
    headings = re.findall(r"^#+ ztdpu (.+)$", generate.command_line(), re.MULTILINE)
    wanted = []
    for noun, command in generate.nouns().items():
        wanted += [noun, *(f"{noun} {verb}" for verb in generate.verbs(command))]
    assert headings == wanted
    assert set(NOUNS) <= set(headings)
    assert "device revoke" in headings


def test_every_option_has_a_meaning(generate):
    rows = [line for line in generate.command_line().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if not row.strip("| ").split(" | ")[-1].strip(" |")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_kind_is_listed_and_explained(generate, kind):
    text = generate.policy_documents()
    part = text[text.index(f"## {kind}\n") :].split("\n## ")[0]
    assert first_cells(part) == [".".join(path) for path, *_ in generate.walk_fields(KINDS[kind])]
    check_explained(generate, KINDS[kind])


@pytest.mark.parametrize("model", [ControlConfiguration, AgentConfiguration])
def test_every_field_of_the_start_up_files_is_listed_and_explained(generate, model):
    text = generate.start_up_files()
    assert {".".join(path) for path, *_ in generate.walk_fields(model)} <= set(first_cells(text))
    check_explained(generate, model)


def check_explained(generate, model):
    untold = [".".join(path) for path, _, _, meaning in generate.walk_fields(model) if meaning in ("", generate.UNTOLD)]
    assert untold == [], "write a docstring below the field, or a line in docs/meanings.toml"


def test_the_walk_reaches_the_deepest_field(generate):
    paths = {".".join(path) for path, *_ in generate.walk_fields(KINDS["NetworkPolicy"])}
    assert "spec.ingress[].from[].endpointSelector.matchExpressions[].operator" in paths


def test_a_field_without_meaning_is_found(generate):
    class Bare(BaseModel):
        field: int

    with pytest.raises(AssertionError, match="docstring"):
        check_explained(generate, Bare)


def test_every_reason_is_explained_once(page):
    assert sorted(first_cells(page("reference/reasons.md"))) == sorted(reason.value for reason in Reason)


def test_every_state_is_explained_once(page):
    assert first_cells(page("states.md")) == [state.value for state in DeviceState]


def test_every_metric_is_explained_once(page):
    told = first_cells(page("reference/metrics.md"))
    assert sorted(told) == sorted(metric.value for metric in Metric)
    shown = {f"{one.name}_total" if one.type == "counter" else one.name for one in Meters().registry.collect()}
    assert shown <= set(told)


def test_meanings_belong_to_fields(generate):
    models = {}
    pending = [*KINDS.values(), ControlConfiguration, AgentConfiguration]
    while pending:
        model = pending.pop()
        models[model.__name__] = model
        hints = generate.get_type_hints(model, include_extras=True)
        pending += [inner for inner in (generate._model_in(hint)[0] for hint in hints.values()) if inner]
    stray = [
        f"{name}.{field}"
        for name, fields in generate.MEANINGS.items()
        for field in fields
        if name not in models or field not in models[name].model_fields
    ]
    assert stray == []


@pytest.mark.skipif(find_spec("sphinx") is None, reason="sphinx is not installed (make setup-docs)")
def test_pages_build_without_a_warning(tmp_path):
    from sphinx.cmd.build import build_main

    docs = Path(__file__).parents[2] / "docs"
    assert build_main(["-W", "--keep-going", "-q", "-E", "-b", "html", str(docs), str(tmp_path)]) == 0
    assert "First fenced flow" in (tmp_path / "tutorial.html").read_text()
