"""The file system as one device or tenant sees it: the host's, read only, with everything private covered.

Called by `isolate` in the child that becomes pid 1, as host root inside a fresh mount namespace, before the
user namespace is entered: mounts made here are locked for whoever lives inside.

1. remember (O_PATH) what must stay visible: interpreter, checkout, own directories
2. everything read only
3. cover /run, /tmp, /var/tmp, /root, the lab's state, and any directory that other uids cannot enter
   on the way to what must stay visible
4. put what was remembered back, at the same paths
5. own /dev (no /dev/net/tun), own /proc, own /etc/hosts
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ztdpu.lab.layout import UID_RANGE
from ztdpu.lab.namespaces.syscalls import Mount, mount, set_read_only, umount

CHECKOUT_CHILDREN: Final = (".venv", "ztdpu", "examples", "policies")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
_COVERED: Final = {"/run": 0o755, "/tmp": 0o1777, "/var/tmp": 0o1777, "/root": 0o700}  # noqa: S108 - covered, not used
_EXECUTABLE_BY_OTHERS: Final = 0o001
_TTY_GROUP: Final = 5
_SYSTEM: Final = frozenset({"bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"})
"""Where users that are no people have their home directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """One directory that stays (or becomes) visible."""

    source: Path
    target: Path
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one inhabitant sees beyond the operating system."""

    uid_base: int
    uid_count: int = UID_RANGE
    """How many uids it has; one where the kernel gave us but one."""
    hidden: tuple[Path, ...]
    """Directories to cover whole, for example the lab's state."""
    binds: tuple[Bind, ...]
    hosts: str = ""
    """Content of /etc/hosts."""
    covered: dict[str, int] = field(default_factory=lambda: dict(_COVERED))


def program_paths() -> tuple[Path, ...]:
    """Directories without which our programs do not run: interpreter, environment, package, examples."""
    package = Path(__file__).resolve().parents[1]
    candidates = [Path(sys.prefix), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), package]
    candidates += [Path(sys.executable).resolve().parents[1]]
    candidates += [
        package.parent / child for child in CHECKOUT_CHILDREN if (package.parent / "pyproject.toml").exists()
    ]
    system = Path("/usr")
    return tuple(dict.fromkeys(path for path in candidates if path != system and path.exists()))


def homes() -> dict[str, int]:
    """Where people keep their files: to be covered where the uid of those inside is that of the person."""
    own = Path.home().resolve()
    is_systems = own == Path("/") or own.parts[1] in _SYSTEM
    return dict.fromkeys(["/home", *([] if is_systems else [str(own)])], 0o755)


def first_closed_ancestor(path: Path) -> Path | None:
    """The topmost directory on the way to `path` that others cannot pass, None when the way is open."""
    for ancestor in reversed(path.parents):
        if not ancestor.stat().st_mode & _EXECUTABLE_BY_OTHERS:
            return ancestor
    return None


def enter_view(view: View) -> None:
    """Build the view. Raises OSError; the caller ends then, so a half-built view is never inhabited."""
    mount("", "/", flags=Mount.REC | Mount.PRIVATE)
    _forget_other_namespaces()
    binds = [*(Bind(source=path, target=path) for path in program_paths()), *view.binds]
    held = [(os.open(bind.source, os.O_PATH | os.O_CLOEXEC), bind) for bind in binds]
    devices = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES}
    covers = _covers(view, [bind.source for bind in binds])
    set_read_only("/", read_only=True, recursive=True)
    for path, mode in covers.items():
        owner = view.uid_base if mode == 0o700 else 0
        mount("tmpfs", path, "tmpfs", Mount.NOSUID | Mount.NODEV, f"mode={mode:o},uid={owner},gid={owner},size=256m")
    for descriptor, bind in held:
        _bind(descriptor, bind, covers)
        os.close(descriptor)
    _make_devices(view, devices)
    mount("proc", "/proc", "proc", Mount.NOSUID | Mount.NODEV | Mount.NOEXEC)
    if view.hosts:
        _replace_file("/etc/hosts", view.hosts)
        # The host's name server is out of reach; without this every unknown name costs ten seconds.
        _replace_file("/etc/resolv.conf", "# No name server: the names that exist stand in /etc/hosts.\n")


def _forget_other_namespaces() -> None:
    """Drop copies of named namespaces: a copy would keep other labs' namespaces alive."""
    try:
        umount("/run/netns")
    except OSError:  # nothing mounted there
        return


def _covers(view: View, visible: Iterable[Path]) -> dict[str, int]:
    """Directories to cover and their modes, parents before children, existing ones only."""
    covers = {path: mode for path, mode in view.covered.items() if Path(path).is_dir()}
    covers |= {str(path): 0o755 for path in view.hidden if path.is_dir() and not _below(path, covers)}
    for path in visible:
        closed = first_closed_ancestor(path)
        if closed is not None and not _below(closed, covers):
            covers[str(closed)] = 0o755
        elif closed is not None and str(closed) in covers:
            covers[str(closed)] |= _EXECUTABLE_BY_OTHERS | 0o010
    return dict(sorted(covers.items()))


def _below(path: Path, covers: Iterable[str]) -> bool:
    return any(path == Path(cover) or Path(cover) in path.parents for cover in covers)


def _bind(descriptor: int, bind: Bind, covers: Iterable[str]) -> None:
    """Put a remembered directory at its target; nothing to do where the original is still in sight."""
    if bind.source == bind.target and not bind.writable and not _below(bind.target, covers):
        return
    if bind.target.is_mount():
        return
    is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    parent = bind.target if is_directory else bind.target.parent
    parent.mkdir(parents=True, exist_ok=True)
    if not is_directory:
        bind.target.touch()
    mount(f"/proc/self/fd/{descriptor}", str(bind.target), flags=Mount.BIND | Mount.REC)
    set_read_only(str(bind.target), read_only=not bind.writable, recursive=True)


def _make_devices(view: View, held: Mapping[str, int]) -> None:
    """A /dev of its own: what every program needs, no /dev/net/tun, no disk, no memory of the host."""
    mount("tmpfs", "/dev", "tmpfs", Mount.NOSUID | Mount.NOEXEC, "mode=755,size=1m")
    for name, descriptor in held.items():  # bound, not made: only root of the host may make device nodes
        Path("/dev", name).touch()
        mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", flags=Mount.BIND)
        os.close(descriptor)
    for name, goal in _LINKS.items():
        Path("/dev", name).symlink_to(goal)
    for directory in ("pts", "shm"):
        Path("/dev", directory).mkdir()
    group = f",gid={view.uid_base + _TTY_GROUP}" if view.uid_count > _TTY_GROUP else ""
    options = f"newinstance,ptmxmode=0666,mode=0620{group}"
    mount("devpts", "/dev/pts", "devpts", Mount.NOSUID | Mount.NOEXEC, options)
    mount("tmpfs", "/dev/shm", "tmpfs", Mount.NOSUID | Mount.NODEV, "mode=1777")  # noqa: S108 - made, not used


def _replace_file(path: str, content: str) -> None:
    """Cover one file by another of our own; skipped where the host has no such file to cover."""
    if not Path(path).exists():
        return
    ours = Path("/run") / path.strip("/").replace("/", "-")
    ours.write_text(content)
    ours.chmod(0o644)
    mount(str(ours), path, flags=Mount.BIND)


def hosts_file(names: Sequence[tuple[str, Sequence[str]]], *, own: str) -> str:
    """Return /etc/hosts for one endpoint: everybody it can reach by name, both families."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"127.0.1.1 {own}.local-host"]
    lines += [f"{address} {name}" for name, addresses in names for address in addresses]
    return "\n".join(lines) + "\n"
