"""Whose a named network namespace is: told by the namespace itself, when no record and no process can.

`cluster` marks the namespaces nobody lives in; `takedown` reads the marks. The mark is the alias of `lo`, and it
counts only where the host's root owns the namespace: a tenant is root of its own and could write what it likes.
A namespace under a marked prefix that a user namespace owns is an inhabitant of that lab.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from ztdpu.lab.layout import PLACES
from ztdpu.lab.namespaces import netns
from ztdpu.lab.namespaces.syscalls import Clone, setns

_WORDS: Final = "ztdpu lab in "
_NS_GET_USERNS: Final = 0xB701
_RTM_SETLINK, _RTM_GETLINK = 19, 18
_NLM_REQUEST, _NLM_ACKNOWLEDGE = 0x1, 0x4
_NLMSG_ERROR: Final = 2
_IFLA_IFALIAS: Final = 20
_LOOPBACK: Final = 1
"""Index of `lo` in every network namespace."""
_HEADER: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ANSWER_OCTETS: Final = 65_536
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One lab's claim to a prefix."""

    prefix: str
    state: str


def write_mark(state: str) -> None:
    """Mark the present network namespace as one of the lab in `state`. Raises OSError."""
    text = f"{_WORDS}{state}".encode() + b"\0"
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(text), _IFLA_IFALIAS) + text
    kind, body = _ask_kernel(_RTM_SETLINK, attribute + bytes(-len(attribute) % 4))
    if kind == _NLMSG_ERROR and (number := -struct.unpack_from("=i", body)[0]):
        raise OSError(number, f"mark of the lab: {os.strerror(number)}")


def read_mark() -> str:
    """State directory of the lab that marked the present network namespace; empty without a mark."""
    kind, body = _ask_kernel(_RTM_GETLINK, b"")
    if kind == _NLMSG_ERROR:
        return ""
    offset = _LINK.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, attribute = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            break
        if attribute == _IFLA_IFALIAS:
            text = body[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0").decode(errors="replace")
            return text.removeprefix(_WORDS) if text.startswith(_WORDS) else ""
        offset += -(-length // 4) * 4
    return ""


def _ask_kernel(kind: int, attributes: bytes) -> tuple[int, bytes]:
    """Send one rtnetlink request about `lo`; returns the kind and the body of the answer."""
    link = _LINK.pack(socket.AF_UNSPEC, 0, _LOOPBACK, 0, 0) + attributes
    flags = _NLM_REQUEST | (_NLM_ACKNOWLEDGE if kind == _RTM_SETLINK else 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(link), kind, flags, 1, 0) + link)
        answer = kernel.recv(_ANSWER_OCTETS)
    length, answered, *_ = _HEADER.unpack_from(answer)
    return answered, answer[_HEADER.size : length]


def read_marks() -> frozenset[Mark]:
    """Every prefix in /run/netns that a lab holds, and which lab. The caller has no threads."""
    found = set()
    for name in _names():
        prefix, _, place = name.rpartition("-")
        if place in PLACES and (state := _mark_of(name)):
            found.add(Mark(prefix, state))
    return frozenset(found)


def inhabited_names(inodes: Collection[int]) -> frozenset[str]:
    """Names of those of the network namespaces that a device or an endpoint lives in."""
    return frozenset(name for name in _names() if (netns.NAMES / name).stat().st_ino in inodes and _is_inhabited(name))


def owners(marks: frozenset[Mark]) -> Mapping[str, str]:
    """Name in /run/netns -> state directory of the lab that holds it; names of nobody are not in it."""
    found = {}
    for name in _names():
        claims = [mark for mark in marks if name.startswith(f"{mark.prefix}-")]
        if not claims:
            continue
        nearest = max(claims, key=lambda mark: len(mark.prefix))
        place = name.removeprefix(f"{nearest.prefix}-")
        state = _mark_of(name) if place in PLACES else nearest.state if _is_inhabited(name) else ""
        if state:
            found[name] = state
    return found


def _names() -> Iterator[str]:
    with suppress(FileNotFoundError):
        yield from sorted(path.name for path in netns.NAMES.iterdir())


def _mark_of(name: str) -> str:
    """The mark in a namespace that the host owns; empty otherwise."""
    with suppress(OSError), _opened(name) as there:
        if _is_owned_by_host(there):
            with netns.kept_network():
                setns(there, Clone.NEWNET)
                return read_mark()
    return ""


def _is_inhabited(name: str) -> bool:
    """Tell whether a user namespace of its own owns the network namespace, as each device and endpoint has."""
    with suppress(OSError), _opened(name) as there:
        return not _is_owned_by_host(there)
    return False


def _is_owned_by_host(namespace: int) -> bool:
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    try:
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - a namespace, not a path
    finally:
        os.close(owner)


@contextmanager
def _opened(name: str) -> Iterator[int]:
    descriptor = os.open(netns.NAMES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
