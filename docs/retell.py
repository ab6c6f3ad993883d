"""Run the tutorial as it is written, on a lab of its own, and put what the commands really said into it.

    sudo .venv/bin/python docs/retell.py          # after a change of commands or of what they print

Blocks that start with `$` are commands with their output; the `sh` block with `&` is left running; the YAML block is
written with its mistake, which is mended before the second `lint`. The lab has a state directory and names of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
STATE = "/run/ztdpu/docs"
SHOWN_FOLDER = "/home/anna/ztdpu"
RULE = Path("my-policies/network/blue-web.yaml")
READY_LIMIT_S = 15


class Telling:
    """One run through the tutorial, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lints = 0
        self.is_restored = False
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"ZTDPU_STATE": STATE, "ZTDPU_SERVER": f"{STATE}/control/admin.sock", "NO_COLOR": "1", "COLUMNS": "110"}
        self.environment = os.environ | own | {"PATH": path}

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command line as a shell would."""
        return subprocess.Popen(  # noqa: S602 - the tutorial's own lines, as a shell reads them
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def say(self, command: str) -> str:
        """Run it and return what it said."""
        said = self.start(command).communicate(timeout=120)[0]
        # A reader types this in a checkout, which jobs see; ours is a folder that they do not.
        said = re.sub(r"^note: .* is not visible in .*\n", "", said, flags=re.MULTILINE)
        # Nor has a reader's lab another directory than the usual one.
        said = re.sub(r"^(other commands find it with: |  \(or, control alone: ).*\n", "", said, flags=re.MULTILINE)
        said = said.replace(f"{ROOT}/.venv", f"{SHOWN_FOLDER}/.venv")
        return said.replace(str(self.folder), SHOWN_FOLDER).replace(f" --state {STATE}", "").rstrip("\n")

    def tell(self, block: str) -> str:
        """Return the block with fresh outputs."""
        if block.startswith("```yaml"):
            (self.folder / RULE).write_text("\n".join(block.splitlines()[1:-1]) + "\n")
        if block.startswith("```sh") and block.rstrip("`\n ").endswith("&"):
            self.start(block.splitlines()[1].rstrip("& "))
            time.sleep(2)
        if not block.startswith("```\n$ "):
            return block
        told = [self.command(line.removeprefix("$ ")) for line in block.splitlines() if line.startswith("$ ")]
        return "```\n" + "\n".join(told) + "\n```"

    def command(self, line: str) -> str:
        """Run one command with what has to go on around it."""
        if line.startswith("ztdpu policy lint"):
            self.lints += 1
            if self.lints == 2:
                rule = self.folder / RULE
                rule.write_text(rule.read_text().replace("prot: 80", "port: 80"))
        if "tcpdump" in line:
            self.start("sleep 1.5; ztdpu lab exec blue-0 -- curl -sS -m 3 http://10.1.0.11/ -o /dev/null")
        if self.is_restored and line == "ztdpu device list":
            deadline = time.monotonic() + READY_LIMIT_S
            while "\ndpu-1  yes" not in self.say(line) and time.monotonic() < deadline:
                time.sleep(0.5)
        self.is_restored = self.is_restored or " restore " in line
        said = self.say(f"{line} --prefix ztdocs" if line.startswith("ztdpu lab up") else line)
        print(f"$ {line}\n{said}\n", flush=True)
        return f"$ {line}\n{said}" if said else f"$ {line}"


def main() -> None:
    """Tell it and write it."""
    with tempfile.TemporaryDirectory() as folder:
        telling = Telling(Path(folder))
        shutil.copytree(ROOT / "policies", Path(folder) / "my-policies")
        try:
            blocks = re.split(r"(```[a-z]*\n.*?\n```)", TUTORIAL.read_text(), flags=re.DOTALL)
            TUTORIAL.write_text("".join(telling.tell(block) for block in blocks))
        finally:
            telling.say("ztdpu lab down")


if __name__ == "__main__":
    main()
