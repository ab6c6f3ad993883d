"""Attack: send UDP datagrams to another tenant's endpoint.

Runs in an endpoint of the attacking tenant, as its root:

    python -m ztdpu.lab.attacks.cross_tenant_udp --source 10.1.0.10 --target 10.2.0.10 --port 2049 --attempts 20

The twin is the same against an allowed target.
"""

from __future__ import annotations

from ztdpu.lab.attacks.tenant_packets import make_datagrams, run

if __name__ == "__main__":
    run("Send datagrams to somebody else's endpoint.", make_datagrams, make_datagrams)
