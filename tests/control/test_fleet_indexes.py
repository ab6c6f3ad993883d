"""What is indexed or looked at shortly says the same as the rule that it stands for."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ztdpu.control.devices import leases
from ztdpu.model.device import DeviceState


def test_networks_peers_and_pins_are_those_of_cluster_and_roster(plant: Any, process: Any) -> None:
    desired = process.fleet.desired
    cluster = desired.cluster
    assert desired.names == tuple(sorted(cluster.devices))
    pins = {one.name: one.device_id_sha256 for one in desired.roster.devices}
    for device in cluster.devices:
        networks = cluster.networks_on(device)
        shared = frozenset().union(*map(cluster.devices_in, networks)) - {device}
        assert desired.networks_on(device) == networks
        assert desired.peers_of(device) == tuple(sorted(shared)) == desired.peers_of(device)
        assert desired.pins_of(device)[1] == pins.get(device)
    assert any(desired.peers_of(device) for device in cluster.devices)
    assert desired.networks_on("nobody") == desired.peers_of("nobody") == ()
    assert (
        dataclasses.replace(desired, roster=dataclasses.replace(desired.roster, devices=())).pins_of("dpu-0")[1] is None
    )


def test_leases_end_when_the_rule_says(process: Any) -> None:
    fleet, now = process.fleet, process.fleet.now()
    offsets_ns = (-(10**9), -1, 0, 1, 999_999, 1_000_000, 1_000_001, 2_000_000, 10**12)
    seen = set()
    for state, offset_ns, boot_id in itertools.product(DeviceState, offsets_ns, (now.boot_id, "another", "")):
        record = dataclasses.replace(
            fleet.record("dpu-0"), state=state, lease_deadline_ns=now.boottime_ns + offset_ns, lease_boot_id=boot_id
        )
        fleet._records["dpu-0"] = record
        has_ended = leases.has_ended(record, now)
        assert fleet._ended(now) == (["dpu-0"] if has_ended else []), (state, offset_ns, boot_id)
        seen.add(has_ended)
    assert seen == {True, False}
    del fleet._records["dpu-0"]
    assert fleet._ended(now) == []
