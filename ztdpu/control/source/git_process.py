"""How git is run: with nothing of this user's or machine's configuration, no prompt, bounds and a deadline.

Called by `git_mirror` only. Nothing is ever checked out. Hooks, filters, attributes, submodules, lazy fetches and
credentials play no part: the mirror is bare, and only `ls-remote`, `fetch`, `update-ref` and `cat-file` run in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Final

from ztdpu.control.configuration import GitPolicy
from ztdpu.errors import MachineError, UnreachableError

FETCH_LIMIT_OCTETS: Final = 256 * 1024 * 1024
"""Longest file that git may write: one pack."""
OUTPUT_LIMIT_OCTETS: Final = 64 * 1024
_SSH_ENDED: Final = "fatal: Could not read from remote repository"
_SETTINGS: Final = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.commitGraph": "false",
    "core.attributesFile": "/dev/null",
    "core.symlinks": "false",
    "credential.helper": "",
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
    "transfer.bundleURI": "false",
    "fetch.recurseSubmodules": "no",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.followRedirects": "false",
    "http.sslVerify": "true",
    "safe.bareRepository": "explicit",
    "protocol.allow": "never",
}


def git_command(policy: GitPolicy, words: Sequence[str]) -> list[str]:
    """The command line; the shell in front bounds what the program may write, then becomes git."""
    settings = _SETTINGS | {f"protocol.{scheme(policy)}.allow": "always"}
    if policy.ca_file is not None:
        settings["http.sslCAInfo"] = str(policy.ca_file.absolute())
        settings["http.sslCAPath"] = "/nonexistent"  # else the machine's authorities count beside it
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    blocks = FETCH_LIMIT_OCTETS // 512
    return ["/bin/sh", "-c", f'ulimit -f {blocks} && ulimit -c 0 && exec git "$@"', "git", *options, *words]


def scheme(policy: GitPolicy) -> str:
    """The one protocol that is allowed."""
    return policy.repository.partition("://")[0] if "://" in policy.repository else "file"


def git_environment(policy: GitPolicy) -> dict[str, str]:
    """The whole environment of git: what this process has in its own is not passed on."""
    ssh = ["ssh", "-F", "/dev/null", "-a", "-x"]
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(policy.known_hosts_file.absolute() if policy.known_hosts_file else "/dev/null"),
        "GlobalKnownHostsFile": "/dev/null",
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PermitLocalCommand": "no",
        "ConnectTimeout": str(max(1, round(policy.deadline_s / 2))),
    }
    ssh += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    if policy.deploy_key_file is not None:
        ssh += ["-i", str(policy.deploy_key_file.absolute())]
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "SSH_ASKPASS": "/bin/false",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_GRAFT_FILE": "/dev/null",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_ALLOW_PROTOCOL": scheme(policy),
        "GIT_SSH_COMMAND": shlex.join(ssh),
        "GIT_SSH_VARIANT": "ssh",
    }


class Git:
    """Starts git for one repository, and can end whatever runs when control goes down."""

    def __init__(self, policy: GitPolicy) -> None:
        self.policy = policy
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start git in a session of its own: ssh finds no terminal to ask on, and all of it can be ended at once.

        Raises:
            MachineError: there is no git.
            UnreachableError: control goes down.

        """
        if self._is_closed:
            raise UnreachableError("control goes down")
        try:
            process = subprocess.Popen(
                git_command(self.policy, words),
                env=git_environment(self.policy),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"cannot run git: {error.strerror}", remedy="install git") from error
        self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and everything that it started, and take its status."""
        self._running.discard(process)
        _kill(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()

    def close(self) -> None:
        """End what runs, from another thread; whoever waits for it gets UnreachableError."""
        self._is_closed = True
        for process in tuple(self._running):
            _kill(process)

    def run(self, words: Sequence[str], *, deadline: float) -> bytes:
        """Run git to its end and give what it printed. `deadline` is on CLOCK_MONOTONIC.

        Raises:
            UnreachableError: it failed, or was not ready in time; says what git said last.
            MachineError: there is no git.

        """
        process = self.start(words)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.close()
            output, errors = _read_both(process.stdout, process.stderr, deadline)
            try:
                status = process.wait(timeout=max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _late(words) from None
        finally:
            self.end(process)
        if status:
            remedy = "try the same with git, as control's user" if status > 0 else "is the repository too large?"
            raise UnreachableError(f"git {_verb(words)}: {_last_line(errors) or f'status {status}'}", remedy=remedy)
        return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Only as long as nobody has taken its status: the number could be somebody else's then."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _read_both(stdout: IO[bytes], stderr: IO[bytes], deadline: float) -> tuple[bytes, bytes]:
    kept = {stdout.fileno(): bytearray(), stderr.fileno(): bytearray()}
    waiting = set(kept)
    while waiting:
        left_s = deadline - time.monotonic()
        ready = select.select(list(waiting), [], [], left_s)[0] if left_s > 0 else []
        if not ready:
            raise UnreachableError("git did not end before the deadline", remedy="raise deadlineS, or mend the network")
        for descriptor in ready:
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                waiting.discard(descriptor)
            elif descriptor == stdout.fileno() and len(kept[descriptor]) + len(chunk) > OUTPUT_LIMIT_OCTETS:
                raise UnreachableError(f"git printed more than {OUTPUT_LIMIT_OCTETS} octets")
            else:
                kept[descriptor] = (kept[descriptor] + chunk)[-OUTPUT_LIMIT_OCTETS:]
    return bytes(kept[stdout.fileno()]), bytes(kept[stderr.fileno()])


def _verb(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _late(words: Sequence[str]) -> UnreachableError:
    return UnreachableError(f"git {_verb(words)} did not end before the deadline", remedy="raise deadlineS")


def _last_line(octets: bytes) -> str:
    """The last thing that git complained about; the far side writes some of it, so only plain characters stay."""
    lines = [line.strip() for line in octets.decode("utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:", " !"))] or lines
    if telling and telling[0].startswith(_SSH_ENDED) and lines[0] != telling[0]:
        telling = [lines[lines.index(telling[0]) - 1]]  # ssh said why just before
    return "".join(character for character in (telling or [""])[0] if character.isprintable())[:300]
