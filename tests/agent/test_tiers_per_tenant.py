"""Two agents with real workers, in warning beside a tenant that allows it and tenants that do not.

Control, policy and roster are those of `test_with_control.py`: blue and green are strict, red allows warnings.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sys
import time
from pathlib import Path

import pytest

from ztdpu.agent import mailbox
from ztdpu.model.device import DeviceState
from ztdpu.rpc.client import ControlClient

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="UDP port 1000 needs root")

_spec = importlib.util.spec_from_file_location("control_site", Path(__file__).with_name("test_with_control.py"))
control_site = importlib.util.module_from_spec(_spec)
sys.modules["control_site"] = control_site
_spec.loader.exec_module(control_site)

INTERVAL_S = 1.0
TOLERANT = """---
apiVersion: ztdpu.dev/v1
kind: AppraisalPolicy
metadata:
  name: tolerant
spec:
  allowedTiers: [affirming, warning]
"""


@pytest.fixture
async def site(tmp_path: Path):
    site = control_site.Site(tmp_path)
    try:
        yield site
    finally:
        await site.stop()


def tolerate(site, *tenants: str) -> None:
    policies = site.root / "policies"
    file = policies / "attestation" / "standard.yaml"
    if "name: tolerant" not in file.read_text():
        file.write_text(file.read_text().rstrip() + "\n" + TOLERANT)
    for tenant in tenants:
        path = policies / "tenants" / f"{tenant}.yaml"
        path.write_text(path.read_text().replace("appraisalPolicy: standard", "appraisalPolicy: tolerant"))


def make_vulnerable(site) -> str:
    """The firmware that all devices run has a vulnerability since today; returns what the file said before."""
    file = site.root / "policies" / "attestation" / "bluefield-3.yaml"
    good = file.read_text()
    vulnerable = rf"\1        - {'ab' * 64}\n      vulnerableDigests:\n        - \2"
    file.write_text(re.sub(r"(component: nic-firmware\n +digests:\n) +- ([0-9a-f]{128})", vulnerable, good))
    return good


async def networks_of(site, device: str) -> tuple[set[str], set[str]]:
    """Networks in which the device's worker can seal to its peer, and those in which it opens what comes."""
    daemon = site.daemons[device]
    channel = daemon._channel()
    if channel is None:
        return set(), set()
    token = channel.next_token()
    answer = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
    names = {one.network_id: name for name, one in site.control.fleet.desired.networks.items()}
    return {names[row[1]] for row in answer.send_sas}, {names[row[1]] for row in answer.receive_sas}


async def until_networks(site, wanted: set[str], limit_s: float) -> float:
    """Wait until both workers have SAs of both directions in these networks alone; returns seconds."""
    begun_s, found = time.monotonic(), {}
    while time.monotonic() - begun_s < limit_s:
        found = {device: await networks_of(site, device) for device in control_site.DEVICES}
        if all(networks == (wanted, wanted) for networks in found.values()):
            return time.monotonic() - begun_s
        await asyncio.sleep(0.02)
    return pytest.fail(f"not {wanted} within {limit_s} s: {found}")


async def send_spis(site, device: str, network: str) -> set[int]:
    channel = site.daemons[device]._channel()
    token = channel.next_token()
    answer = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
    network_id = site.control.fleet.desired.networks[network].network_id
    return {row[4] for row in answer.send_sas if row[1] == network_id}


async def test_a_warning_stops_strict_tenants_and_no_other_until_it_is_affirming_again(site):
    await site.start(interval_s=INTERVAL_S)
    tolerate(site, "red")
    for device in control_site.DEVICES:
        site.run(device, worker=control_site.REAL_WORKER)
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.sync_policy)
        await until_networks(site, {"blue", "red", "blue-green"}, 15)
        kept = {device: await send_spis(site, device, "red") for device in control_site.DEVICES}
        instances = {device: site.daemons[device]._instance for device in control_site.DEVICES}
        fleet = site.control.fleet
        blue = fleet.desired.networks["blue"].network_id
        epoch = fleet.epochs.get(blue).key.epoch

        good = make_vulnerable(site)
        await asyncio.to_thread(client.sync_policy)
        await until_networks(site, {"red"}, INTERVAL_S + 1)
        assert all(site.state(device) is DeviceState.WARNING for device in control_site.DEVICES)
        assert all(fleet.is_leased(device) for device in control_site.DEVICES)
        assert {device: await send_spis(site, device, "red") for device in control_site.DEVICES} == kept
        assert fleet.epochs.get(blue).key.epoch > epoch, "whoever lost the network does not know its next key"
        for daemon in site.daemons.values():
            assert (daemon._conversation.missing(), daemon._exchange.missing()) == ("", []), "it waits for nothing more"
            assert {one.tenant for one in daemon._sidecar.book._memberships} == {"red"}, "no identities of the others"
            assert set(daemon._exchange.epochs) == {fleet.desired.networks["red"].network_id.hex()}
        shown = await asyncio.to_thread(client.get_device, "dpu-0")
        leased = next(one for one in shown.conditions if one.name == "leased")
        assert leased.met
        assert "no keys of blue, blue-green, green: tenants blue, green refuse the tier" in leased.reason
        assert len((await asyncio.to_thread(client.get_tenant, "blue")).withheld) == 2
        assert (await asyncio.to_thread(client.get_tenant, "red")).withheld == ()

        # Neither fresh evidence nor a rotation in the tolerant network gives anything of the strict ones back.
        await asyncio.to_thread(client.rotate_keys, tenant="red")
        seen = {device: fleet.record(device).appraised_unix_ms for device in control_site.DEVICES}
        await site.until(lambda: all(fleet.record(one).appraised_unix_ms > when for one, when in seen.items()))
        await until_networks(site, {"red"}, 1)

        (site.root / "policies" / "attestation" / "bluefield-3.yaml").write_text(good)
        await asyncio.to_thread(client.sync_policy)
        await until_networks(site, {"blue", "red", "blue-green"}, INTERVAL_S + 8)
    assert {device: site.daemons[device]._instance for device in control_site.DEVICES} == instances, "no restart"


async def test_a_tenant_that_becomes_strict_loses_its_keys_on_a_device_in_warning(site):
    await site.start(interval_s=INTERVAL_S)
    tolerate(site, "red", "blue", "green")
    make_vulnerable(site)
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.sync_policy)
        for device in control_site.DEVICES:
            site.run(device, worker=control_site.REAL_WORKER)
        await until_networks(site, {"blue", "red", "blue-green"}, 15)
        assert site.state("dpu-0") is DeviceState.WARNING
        path = site.root / "policies" / "tenants" / "green.yaml"
        path.write_text(path.read_text().replace("tolerant", "standard"))
        await asyncio.to_thread(client.sync_policy)
        # A Peering needs both of its members.
        await until_networks(site, {"blue", "red"}, INTERVAL_S + 1)
        path.write_text(path.read_text().replace("standard", "tolerant"))
        await asyncio.to_thread(client.sync_policy)
        await until_networks(site, {"blue", "red", "blue-green"}, INTERVAL_S + 8)
