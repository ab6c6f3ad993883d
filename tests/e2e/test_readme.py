"""The README's code blocks, run as a newcomer would: in a fresh clone of what is committed, with an empty HOME.

Shell blocks share one shell, line by line. A line that says `(exit status N)` in its comment must end with N, all
others with 0. The other blocks are tried for what they are: Python is executed, YAML is the example's own policy.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ztdpu.policy.load import load_directory

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"#.*\(exit status (\d+)\)")
DEADLINE_S = 420

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("make"), reason="needs root and make"),
]


def blocks(language):
    return [text for name, text in BLOCK.findall(README.read_text()) if name == language]


def shell_lines():
    text = "".join(blocks("")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    where = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(where / "ztdpu")], check=True)
    (where / "home").mkdir()
    return where / "ztdpu"


@pytest.fixture(scope="module")
def told(clone):
    """What each shell line printed, and its exit status."""
    lines = shell_lines()
    script = "".join(f"{line}\nprintf '\\n<<{number} %d>>\\n' $?\n" for number, line in enumerate(lines)) + "wait\n"
    environment = {
        "HOME": str(clone.parent / "home"),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "NO_COLOR": "1",
        # A machine may get its packages through a mirror of its own.
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")},
    }
    try:
        ended = subprocess.run(
            ["bash", "-c", script], cwd=clone, env=environment, capture_output=True, text=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
    finally:
        if (clone / ".venv/bin/ztdpu").exists():
            subprocess.run([clone / ".venv/bin/ztdpu", "lab", "down"], capture_output=True, check=False)
    parts = re.split(r"\n<<(\d+) (\d+)>>\n", ended.stdout)
    outputs = {int(number): (text, int(status)) for text, number, status in zip(*[iter(parts[:-1])] * 3, strict=True)}
    assert len(outputs) == len(lines), ended.stdout[-3000:] + ended.stderr[-3000:]
    return [(line, *outputs[number], ended.stderr) for number, line in enumerate(lines)]


def test_every_shell_line_ends_as_it_says(told):
    wrong = []
    for line, output, status, errors in told:
        said = EXPECTED.search(line)
        if status != (int(said.group(1)) if said else 0):
            wrong.append((line, status, output[-1500:], errors[-1500:]))
    assert wrong == []


def test_some_lines_are_meant_to_fail(told):
    """The twin: a shell whose statuses were lost would call everything 0."""
    assert {status for _, _, status, _ in told} > {0}


def test_what_the_lines_show(told):
    outputs = {line.split("#")[0].strip(): output for line, output, _, _ in told}
    assert "0% packet loss" in outputs["ztdpu lab exec blue-0 -- ping -c3 blue-1"]
    assert "100% packet loss" in outputs["ztdpu lab exec blue-0 -- ping -c3 -W1 10.2.0.10"]
    [seen] = [output for line, output in outputs.items() if "tcpdump" in line]
    assert ".1000: UDP" in seen
    assert not Path("/run/ztdpu/lab").exists(), "lab down leaves nothing behind"


@pytest.mark.usefixtures("told")
def test_python_blocks(clone):
    for text in blocks("python"):
        subprocess.run([clone / ".venv/bin/python", "-c", text], cwd=clone, check=True, timeout=60)


def test_yaml_blocks_are_policy(tmp_path):
    for number, text in enumerate(blocks("yaml")):
        folder = tmp_path / str(number)
        shutil.copytree(ROOT / "policies", folder)
        (folder / "network/blue.yaml").write_text(text)
        assert "blue-training" in load_directory(folder).network_policies
