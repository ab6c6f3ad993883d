"""Reads each file of a folder as policy, one after the other, in a process that may grow by 50 MiB and no more.

Run by `test_yaml_suite`; prints one JSON object: what was loaded, refused, slow, and everything else that happened.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from ztdpu.errors import PolicyError
from ztdpu.policy.load import load_files

LIMIT_S = 0.2
LIMIT_OCTETS = 50 * 1024 * 1024


def main(folder: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LIMIT_OCTETS,) * 2)
    report: dict[str, list[str]] = {"loaded": [], "refused": [], "slow": [], "defects": []}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        content = path.read_bytes()
        start = time.process_time()
        try:
            load_files({f"{path.name}.yaml": content}, origin="suite")
            report["loaded"].append(path.name)
        except PolicyError as error:
            faults = getattr(error, "faults", (error,))
            placed = all(fault.where is not None and fault.message for fault in faults) or "no policy documents" in str(
                error
            )
            report["refused" if placed else "defects"].append(path.name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect and is told
            report["defects"].append(f"{path.name}: {type(error).__name__}: {error}")
        taken_s = time.process_time() - start
        if taken_s > LIMIT_S:
            report["slow"].append(f"{path.name}: {taken_s:.3f} s")
    report["peak_octets"] = [str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)]
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
