"""Attack: change one bit of sealed packets on their way.

Runs as root of the fabric:

    python -m ztdpu.lab.attacks.flipped_packet --port dpu-0 --octets 701 --attempts 20

The twin, at a line on standard input: the same packets as they were.
"""

from __future__ import annotations

from ztdpu.lab.attacks.interception import flip, run, unchanged

if __name__ == "__main__":
    run("Change a bit of sealed packets.", flip, unchanged)
