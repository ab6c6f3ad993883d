from __future__ import annotations

from pathlib import Path

import pytest

from ztdpu.agent.configuration import AgentConfiguration
from ztdpu.errors import ConfigurationError
from ztdpu.policy.load import read_strict

GOOD = """\
apiVersion: ztdpu.dev/v1
kind: AgentConfiguration
spec:
  device: dpu-0
  trustDomain: ztdpu.lab
  stateDir: /run/ztdpu
  control:
    enrolment: 10.91.0.1:7401
    main: "[fd00::1]:7402"
    bundleFile: /etc/ztdpu/control.pem
  manufacturerRootsFile: /etc/ztdpu/manufacturers.pem
  rosterKeysFile: /etc/ztdpu/operators.pub
  underlay:
    address: 10.90.0.10
  rootOfTrust:
    secretsFile: /etc/ztdpu/secrets.json
    profile: bluefield-3
  virtualFunctions:
    factorySocket: /run/factory.sock
"""


def read(tmp_path: Path, text: str) -> AgentConfiguration:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return read_strict(path, AgentConfiguration)


def test_good_file_and_its_defaults(tmp_path):
    spec = read(tmp_path, GOOD).spec
    assert spec.device == "dpu-0"
    assert (spec.underlay.mtu_octets, spec.max_lease_s, spec.join_token_file) == (9000, 3600, None)
    assert spec.underlay.port == 1000, "PSP's own"
    assert spec.control.main == "[fd00::1]:7402"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("device: dpu-0", "device: Dpu_0", 4),
        ("device: dpu-0", "device: ../dpu", 4),
        ("trustDomain: ztdpu.lab", "trustDomain: ZTDPU", 5),
        ("enrolment: 10.91.0.1:7401", "enrolment: control.example:7401", 8),
        ("enrolment: 10.91.0.1:7401", "enrolment: 10.91.0.1", 8),
        ("enrolment: 10.91.0.1:7401", "enrolment: 10.91.0.1:70000", 8),
        ("enrolment: 10.91.0.1:7401", "enrolment: 10.91.0.1:0", 8),
        ('main: "[fd00::1]:7402"', 'main: "fd00::1:7402"', 9),
        ("address: 10.90.0.10", "address: 10.90.0.300", 14),
        ("    address: 10.90.0.10", "    address: 10.90.0.10\n    mtuOctets: 100", 15),
        ("    address: 10.90.0.10", "    address: 10.90.0.10\n    port: 0", 15),
        ("  stateDir:", "  statDir: /run\n  stateDir:", 6),
        ("kind: AgentConfiguration", "kind: ControlConfiguration", 2),
        ("  device: dpu-0", "  device: dpu-0\n  maxLeaseS: 7200", 5),
    ],
)
def test_each_fault_is_refused_at_its_place(tmp_path, old, new, line):
    assert old in GOOD
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    where = caught.value.where
    assert where is not None
    assert where.file.endswith("agent.yaml")
    assert where.line == line
