"""Commands that pages tell people to type exist, with the options that they are given."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").glob("*.py"),
    *(ROOT / "deploy").glob("*.*"),
]
COMMAND = re.compile(r"(?:^|[`/(]|\$ |: )ztdpu ((?:[a-z]+)(?: [^`\n#|&;>]*)?)", re.MULTILINE)


def commands_in(text):
    """Command lines without the part behind `--`, which is somebody else's."""
    for match in COMMAND.finditer(text.replace("\\\n", " ")):
        words = re.sub(r"\s{2,}.*$", "", match.group(1))
        try:
            yield shlex.split(words.split(" -- ")[0], comments=True)
        except ValueError:
            continue


def complaint(generate, words):
    """What is wrong with a command line, or None."""
    command = generate.nouns()[words[0]]
    rest = words[1:]
    known = generate.verbs(command)
    if known and rest and not rest[0].startswith("-"):
        if rest[0] not in known and rest[0].isalpha() and rest[0].islower():
            return f"no verb {rest[0]}"
        command, rest = known.get(rest[0], command), rest[1:]
    options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
    unknown = [word.split("=")[0] for word in rest if word.startswith("-") and word.split("=")[0] not in options]
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(generate, path):
    text = path.read_text()
    # Prose speaks of `ztdpu` as well; only what names a noun is a command.
    found = [words for words in commands_in(text) if words and words[0] in generate.NOUNS]
    assert [(words, wrong) for words in found if (wrong := complaint(generate, words))] == []


def test_the_tutorial_is_full_of_commands(generate, page):
    found = [words for words in commands_in(page("tutorial.md")) if words[0] in generate.NOUNS]
    assert len(found) > 15


def test_wrong_commands_are_seen(generate):
    assert complaint(generate, ["device", "restore", "dpu-1", "--yes"]) == "no option --yes"
    assert complaint(generate, ["device", "explode"]) == "no verb explode"
    assert complaint(generate, ["device", "revoke", "dpu-1", "--yes", "--reason", "x"]) is None
