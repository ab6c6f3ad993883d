"""How every failure is told: `error:` with what and where, `next:` with what to do, both on stderr.

Called by `cli.app` for what ends a command, and by commands that go on after a fault. Never decides exit statuses.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import Any, Final

from ztdpu.cli.output import plain
from ztdpu.errors import PolicyRefusedError, ZtdpuError

_REMEDIES: Final = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: "check the rights, or run it as root",
    errno.EPERM: "check the rights, or run it as root",
    errno.EROFS: "name a place that can be written to",
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EDQUOT: "make room, or write elsewhere",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise `ulimit -n`",
}
_OF_OUTPUT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF})
_NO_COMMAND: Final = re.compile(r"No such command (\S+?)\.?(?: Did you mean (?:one of: )?'([^']+)'.*)?")


def say(message: str, *remedies: str) -> None:
    """Print one failure; it may name what a stranger said."""
    for text in (f"error: {message}", *(f"  next: {remedy}" for remedy in remedies if remedy)):
        print("\n".join(map(plain, text.split("\n"))), file=sys.stderr)


def report(error: ZtdpuError) -> None:
    """Print an error of ours; of a refused policy every fault, each with its own remedy, none of them twice."""
    faults = error.faults if isinstance(error, PolicyRefusedError) and error.faults else (error,)
    told: set[str] = set()
    for fault in faults:
        say(
            f"{fault.where}: {fault.message}" if fault.where else fault.message,
            "" if fault.remedy in told else fault.remedy,
        )
        told.add(fault.remedy)


def is_of_the_machine(error: OSError) -> bool:
    """Whether it is about a file or the output, which a person can mend; any other is a defect of ours."""
    return error.filename is not None or error.errno in _OF_OUTPUT


def report_os_error(error: OSError) -> None:
    """Print an error of the operating system about a file, or about where the output goes."""
    what = str(error.filename) if error.filename is not None else "cannot write the output"
    say(f"{what}: {error.strerror or error}", _REMEDIES.get(error.errno or 0, "look at the file and its file system"))


def report_usage(error: Any) -> None:
    """Print a usage error of the option parser in our style."""
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).rstrip(".").replace("\n", " ")
    remedy = f"`{context.command_path} --help`" if context is not None else ""
    unknown = _NO_COMMAND.fullmatch(message)
    if unknown and context is not None:
        message = f"no command {unknown[1]}"
        remedy = f"did you mean `{context.command_path} {unknown[2]}`?" if unknown[2] else remedy
    say(message[:1].lower() + message[1:], remedy)
