"""Strict YAML: what is read, and what is refused with its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import PolicyError
from ztdpu.policy.yaml import DEPTH_LIMIT, SIZE_LIMIT_OCTETS, parse


def test_reads_plain_documents_with_their_places() -> None:
    first, second = parse("a: 1\nb:\n  - x\n  - {c: true}\n---\nd: null\n", file="f.yaml")
    assert first.value == {"a": 1, "b": ["x", {"c": True}]}
    assert str(first.locate(("b", 1, "c"))) == "f.yaml:4:6"
    assert str(first.locate(("b", 1, "missing"))) == "f.yaml:4:5"
    assert second.value == {"d": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("'1'", "1"),
        ("true", True),
        ("~", None),
        ("-7", -7),
        ("1.5", 1.5),
        ("v1.2.3", "v1.2.3"),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    (document,) = parse(f"a: {text}", file="f")
    assert document.value == {"a": value}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\na: 2", "f:2:1", "twice"),
        ("a: &x 1", "f:1:4", "anchors"),
        ("a: *x", "f:1:4", "aliases"),
        ("a: !!python/object:os.system 1", "f:1:4", "tags"),
        ("a: !t 1", "f:1:4", "tags"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "f:1:1", "directives"),
        ("a: {<<: {b: 1}}", "f:1:5", "merge"),
        ("? [a]\n: 1", "f:1:3", "plain words"),
        ("a: 0o17", "f:1:4", "more than one way"),
        ("a: 0x1f", "f:1:4", "more than one way"),
        ("a: 1_000", "f:1:4", "more than one way"),
        ("a:\n\t- b", "f:2:1", "not YAML"),
        ("a: [1, 2", "f:1:9", "not YAML"),
        ("a: 'x", "f:1:6", "not YAML"),
        ("[" * (DEPTH_LIMIT + 1), f"f:1:{DEPTH_LIMIT + 1}", "nested"),
        ("x" * (SIZE_LIMIT_OCTETS + 1), "f:1", "longer"),
        ("a: \x00", "f:1:4", "is not allowed"),
    ],
)
def test_refuses_with_place(text: str, place: str, words: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        parse(text, file="f")
    assert words in refusal.value.message
    assert str(refusal.value.where) == place


def test_an_alias_bomb_costs_nothing() -> None:
    rows = ["a: &a [x, x]"] + [
        f"{c}: &{c} [*{p}, *{p}]" for p, c in zip("abcdefghijklmnopq", "bcdefghijklmnopqr", strict=True)
    ]
    with pytest.raises(PolicyError, match="anchors"):
        parse("\n".join(rows), file="bomb")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_never_a_crash(text: str) -> None:
    try:
        documents = parse(text, file="f")
    except PolicyError as refusal:
        assert refusal.where is not None
    else:
        for document in documents:
            assert document.locate(()).line >= 1


HIDING = {
    "NEL ends a line": ("# harmless\x85spec: {}\n", (1, 11)),
    "LS ends a line": ("# a\n# harmless\u2028spec: {}\n", (2, 11)),
    "PS ends a line": ("a: b  # harmless\u2029spec: {}\n", (1, 17)),
    "CR alone ends a line": ("# a\r\n# harmless\rspec: {}\n", (2, 11)),
    "right-to-left override": ("# \u202egnihtyna\n", (1, 3)),
    "isolate": ("a: b # \u2066x\n", (1, 8)),
    "NUL": ("a: b\n# c\n# d\x00\n", (3, 4)),
    "escape": ("# \x1b[2J\n", (1, 3)),
    "DEL": ("# \x7f\n", (1, 3)),
    "byte order mark inside": ("a: b\n\ufeffc: d\n", (2, 1)),
}


@pytest.mark.parametrize(("text", "place"), HIDING.values(), ids=HIDING.keys())
def test_nothing_stands_behind_a_comment_unseen(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(PolicyError, match="is not allowed") as caught:
        parse(text, file="f.yaml")
    assert (caught.value.where.line, caught.value.where.column) == place
    harmless = re.sub("[\x00-\x08\x1b\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]|\r(?!\n)", "", text)
    parse("\ufeff" + harmless, file="f.yaml")
