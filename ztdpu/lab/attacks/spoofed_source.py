"""Attack: send UDP datagrams in the name of somebody else, to a target that would be allowed.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.spoofed_source --source 10.1.0.10 --forged-source 10.2.0.10 --target 10.1.0.11
        --port 5005 --attempts 20

The twin has the endpoint's own source address.
"""

from __future__ import annotations

from ztdpu.lab.attacks.tenant_packets import make_datagrams, run

if __name__ == "__main__":
    run("Send datagrams with a forged source.", make_datagrams, make_datagrams, forges_source=True)
