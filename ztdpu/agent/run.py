"""`ztdpu agent run`: from a start-up file to a running daemon, in the order that keeps children light and safe.

1. Read and check everything that can be wrong. 2. Start root of trust and worker, while this process is small and
has one thread. 3. Only then import gRPC and run the daemon. Called by the command line.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from ztdpu.agent.configuration import AgentConfiguration, AgentSpec
from ztdpu.agent.supervisor import programs, start_processes
from ztdpu.policy.load import read_strict

STOP_LIMIT_S: Final = 1.8
"""A clean end takes a few hundredths of a second; after this the process ends as it is."""


def read_configuration(file: Path) -> AgentSpec:
    """Read the start-up file. Raises ConfigurationError with place and remedy."""
    return read_strict(file, AgentConfiguration).spec


def run_agent(file: Path) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises ConfigurationError for whatever is wrong with the start-up file or the files it names, StateError when
    another agent runs on the same state directory.
    """
    from ztdpu.agent.start_files import lock_state_dir, make_state_dir, read_start_files

    spec = read_configuration(file)
    files = read_start_files(spec)
    make_state_dir(spec)
    lock_state_dir(spec)  # held until this process ends
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    root = spec.root_of_trust
    wanted = programs(
        state_dir=spec.state_dir,
        secrets_file=root.secrets_file,
        profile=root.profile,
        fault=root.fault,
        fault_socket=root.fault_socket,
    )
    children = start_processes(wanted)
    # gRPC's lines for its own developers do not belong between ours, which are JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from ztdpu.agent.daemon import Daemon
    from ztdpu.agent.journal import log

    async def run() -> None:
        daemon = Daemon(spec, files, wanted)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.call_later(STOP_LIMIT_S, os._exit, 1)
            daemon.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: log("signal-ignored", signal="SIGHUP"))
        await daemon.run(*children)

    asyncio.run(run())
    sys.stdout.flush()
    sys.stderr.flush()
    # gRPC's own threads may take their time at interpreter exit; nothing is left to save.
    os._exit(0)
