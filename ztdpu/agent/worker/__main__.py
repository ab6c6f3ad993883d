"""`python -m ztdpu.agent.worker --mailbox-fd N`: started by the agent daemon, ends with its mailbox."""

from __future__ import annotations

import argparse
import gc
import signal
import sys

from ztdpu.agent.worker.channel import Channel
from ztdpu.agent.worker.loop import Worker
from ztdpu.agent.worker.process import harden
from ztdpu.errors import ZtdpuError


def main(arguments: list[str] | None = None) -> int:
    """Run until the daemon goes away; 0 then, 1 for a mailbox that is not understood."""
    parser = argparse.ArgumentParser(prog="ztdpu.agent.worker")
    parser.add_argument("--mailbox-fd", type=int, required=True, help="descriptor of a SOCK_SEQPACKET socket")
    options = parser.parse_args(arguments)
    # Ctrl-C and a hang-up reach the whole terminal group; the daemon decides when its worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    harden()
    # Nothing in the packet path makes cycles; what lives from here on need not be walked again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        Worker(Channel(options.mailbox_fd)).run()
    except ZtdpuError as error:
        print(f"worker: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
