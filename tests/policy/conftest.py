"""A small policy repository that tests bend."""

from __future__ import annotations

from pathlib import Path

import pytest

CLUSTER = """\
apiVersion: ztdpu.dev/v1
kind: Device
metadata: {name: dpu-0}
spec: {profile: bluefield-3, underlay: {address: 10.90.0.10}}
---
apiVersion: ztdpu.dev/v1
kind: Device
metadata: {name: dpu-1}
spec: {profile: bluefield-3, underlay: {address: 10.90.0.11}}
---
apiVersion: ztdpu.dev/v1
kind: Tenant
metadata: {name: blue}
---
apiVersion: ztdpu.dev/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: blue-0, labels: {role: worker}}
spec: {tenant: blue, device: dpu-0, addresses: [10.1.0.10, "fd00:1::10"]}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: blue-1, labels: {role: worker}}
spec: {tenant: blue, device: dpu-1, addresses: [10.1.0.11, "fd00:1::11"]}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: red-0, labels: {role: worker}}
spec: {tenant: red, device: dpu-0, addresses: [10.1.0.10]}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: red-1, labels: {role: worker}}
spec: {tenant: red, device: dpu-1, addresses: [10.1.0.12]}
---
apiVersion: ztdpu.dev/v1
kind: NetworkPolicy
metadata: {name: blue-training}
spec:
  tenant: blue
  endpointSelector: {matchLabels: {role: worker}}
  ingress:
    - from: [{endpointSelector: {}}]
      ports: [{protocol: TCP, port: 5000, endPort: 5009}]
  egress:
    - to: [{endpointSelector: {}}]
      ports: [{protocol: TCP, port: 5000, endPort: 6000}, {protocol: ICMP}]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return tmp_path
