"""Console blocks of the how-to page about policy, typed in order: what they print is what stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-a-policy.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    """(command, output) of one block; a here-document belongs to its command."""
    found: list[tuple[list[str], list[str]]] = []
    until = ""
    for line in block.splitlines():
        if until:
            found[-1][0].append(line)
            until = "" if line == until else until
        elif line.startswith("$ "):
            found.append(([line[2:]], []))
            until = "EOF" if "<<'EOF'" in line else ""
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in found]


def type_along(page: str, folder: Path) -> str:
    """The page with what its commands print now."""
    shutil.copytree(ROOT / "policies", folder / "policies")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}

    def run(match: re.Match[str]) -> str:
        typed = []
        for command, _ in steps(match.group(1)):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, text=True, timeout=60, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            typed.append(f"$ {command}\n{done.stdout}")
        return f"```console\n{''.join(typed)}```"

    return BLOCK.sub(run, page)


def test_the_page_prints_what_it_says(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert len(BLOCK.findall(page)) >= 8
    assert type_along(page, tmp_path) == page, "run tests/docs/test_how_to.py as a program to write it anew"


def test_another_output_is_seen(tmp_path: Path) -> None:
    page = "```console\n$ echo one\ntwo\n```"
    assert type_along(page, tmp_path) == "```console\n$ echo one\none\n```"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(type_along(PAGE.read_text(), Path(made)))
