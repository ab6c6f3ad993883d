"""Pid 1 of a device or an endpoint: starts what it is told, reaps, ends on SIGTERM. Standard library only.

Run by `isolate` with the interpreter's -I -S, so that it costs little. Orders arrive on descriptor 0, a
SOCK_SEQPACKET socket: `{"argv": [...], "environment": {...}, "log": path}`; the answer is
`{"pid": n}` (in this pid namespace) or `{"error": text}`. When the other end closes, it goes on holding.
The kernel ends every process of the namespace when it ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket

_ORDER_OCTETS = 65_536


def _start(order: dict[str, object]) -> dict[str, object]:
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    log = str(order["log"])
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            dict(order["environment"]),  # type: ignore[call-overload]
            file_actions=actions,
            setsid=True,
            setsigdef=(signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT),
        )
    except OSError as error:
        return {"error": f"{argv[0]}: {error.strerror}"}
    return {"pid": pid}


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def main() -> None:
    """Hold the namespaces until told to end."""
    os.chdir("/")
    orders = socket.socket(fileno=0)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders.send(b'{"ready": true}')
    poller = select.poll()
    poller.register(woken, select.POLLIN)
    poller.register(orders, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == woken:
                os.read(woken, 4096)
                _reap()
                continue
            order = orders.recv(_ORDER_OCTETS)
            if not order:
                poller.unregister(orders)
                orders.close()
                continue
            orders.send(json.dumps(_start(json.loads(order))).encode())


if __name__ == "__main__":
    main()
