"""`python -m ztdpu.lab.bench [SECTION...]`, which is what `make bench ARGS=...` runs.

Results go to standard output and to a JSON file, progress to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ztdpu.errors import ZtdpuError
from ztdpu.lab.bench.ground import BENCH_PREFIX, BENCH_STATE
from ztdpu.lab.bench.report import print_report
from ztdpu.lab.bench.run import ALIASES, FULL, QUICK, SECTIONS, Bench, choose_sections, write_document


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make bench ARGS='...'", description=f"Measure. Sections: {', '.join((*SECTIONS, *ALIASES))}."
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="all when none is named")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds: a first impression")
    parser.add_argument("--rounds", type=_positive, help="alternating rounds of what sends packets")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the JSON goes")
    parser.add_argument("--state", type=Path, default=BENCH_STATE, help="directory of the bench's own lab")
    parser.add_argument("--prefix", default=BENCH_PREFIX, help="first part of its namespaces' names")
    return parser.parse_args(words)


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 100:
        raise argparse.ArgumentTypeError("1 to 100 rounds")
    return number


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the bench; the exit status is 1 when something did not work, 2 for wrong usage."""
    given = read_arguments()
    signal.signal(signal.SIGTERM, _interrupt)
    start = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {words}", file=sys.stderr, flush=True)

    effort = QUICK if given.quick else FULL
    effort = dataclasses.replace(effort, rounds=given.rounds or effort.rounds)
    bench = Bench(effort=effort, say=say, state=given.state, prefix=given.prefix, insist=bool(given.sections))
    try:
        document = bench.run(choose_sections(given.sections))
        print_report(document)
        write_document(document, given.out)
    except ZtdpuError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"  next: {error.remedy}", file=sys.stderr)
        if bench.document.get("sections"):
            with contextlib.suppress(ZtdpuError):
                write_document(bench.document, given.out)
                print(f"what was measured before that: {given.out}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("interrupted; the lab is down", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"all figures: {os.path.relpath(given.out)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
