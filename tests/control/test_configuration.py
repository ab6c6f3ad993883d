"""Control's start-up file: what contradicts itself is refused, and the MTU reaches the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.source import load_desired
from ztdpu.errors import ConfigurationError
from ztdpu.packet.tables import decode_tables
from ztdpu.policy.load import read_strict

GOOD = """\
apiVersion: ztdpu.dev/v1
kind: ControlConfiguration
spec:
  trustDomain: ztdpu.lab
  stateDir: /var/lib/ztdpu
  policyDir: /etc/ztdpu/policy
  rosterFile: /etc/ztdpu/roster.cbor
  rosterSignatureFile: /etc/ztdpu/roster.sig
  rosterKeysFile: /etc/ztdpu/operators.pub
  manufacturerRootsFile: /etc/ztdpu/manufacturers.pem
  adminSocket: /run/ztdpu/admin.sock
  listen:
    enrolment: 10.91.0.1:7401
    main: "[fd00::1]:0"
"""


def read(tmp_path: Path, text: str) -> ControlConfiguration:
    path = tmp_path / "control.yaml"
    path.write_text(text)
    return read_strict(path, ControlConfiguration)


def test_a_good_file_and_its_defaults(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD).spec
    assert (spec.attestation.interval_s, spec.attestation.lease_s, spec.attestation.svid_s) == (10, 60, 600)
    assert spec.underlay_mtu_octets == 9000


@pytest.mark.parametrize("times", ["intervalS: 1, leaseS: 2, svidS: 5", "intervalS: 30", "leaseS: 20, svidS: 20"])
def test_two_attestations_fit_into_what_they_give(tmp_path: Path, times: str) -> None:
    assert read(tmp_path, f"{GOOD}  attestation: {{{times}}}\n").spec.attestation


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("attestation: {intervalS: 31}", "lower intervalS to 30 or raise leaseS to 62"),
        ("attestation: {leaseS: 19}", "lower intervalS to 9.5 or raise leaseS to 20"),
        ("attestation: {svidS: 19}", "lower intervalS to 9.5 or raise svidS to 20"),
        ("underlayMtuOctets: 1279", "underlayMtuOctets"),
        ("underlayMtuOctets: 65536", "underlayMtuOctets"),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_line(tmp_path: Path, added: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        read(tmp_path, f"{GOOD}  {added}\n")
    assert caught.value.where is not None
    assert caught.value.where.line == GOOD.count("\n") + 1


@pytest.mark.parametrize(("underlay", "overlay"), [(9000, 8940), (1500, 1440)])
def test_endpoints_get_what_the_underlay_leaves(plant, underlay: int, overlay: int) -> None:
    spec = plant.configuration().spec.model_copy(update={"underlay_mtu_octets": underlay})
    desired = load_desired(spec, lowest_roster_serial=0)
    for compiled in desired.tables.values():
        assert {endpoint.mtu_octets for endpoint in decode_tables(compiled.blob).endpoints} == {overlay}
