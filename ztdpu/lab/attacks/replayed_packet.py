"""Attack: send sealed packets a second time.

Runs as root of the fabric:

    python -m ztdpu.lab.attacks.replayed_packet --port dpu-0 --octets 701 --attempts 20

The twin comes first: the packets as they were, which were held back until then. At a line on standard input they are
sent again.
"""

from __future__ import annotations

from ztdpu.lab.attacks.interception import run, unchanged

if __name__ == "__main__":
    run("Send sealed packets twice.", unchanged, unchanged)
