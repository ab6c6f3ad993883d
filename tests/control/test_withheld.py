"""One device in warning beside one that is not: whom control tells what, and what it gives to whom."""

from __future__ import annotations

from typing import Any

from ztdpu.control.run import ControlProcess
from ztdpu.keys.epoch import epoch_context, open_epoch_keys
from ztdpu.keys.kem import kem_public_octets
from ztdpu.model.device import DeviceState


def tolerate(plant: Any, *tenants: str) -> None:
    text = (plant.policy_dir / "attestation" / "standard.yaml").read_text()
    tolerant = text.replace("name: standard", "name: tolerant").replace("[affirming]", "[affirming, warning]")
    (plant.policy_dir / "attestation" / "tolerant.yaml").write_text(tolerant)
    for tenant in tenants:
        file = plant.policy_dir / "tenants" / f"{tenant}.yaml"
        file.write_text(file.read_text().replace("appraisalPolicy: standard", "appraisalPolicy: tolerant"))


def open_keys(agent: Any, sealed: bytes) -> dict[bytes, int]:
    """Network id -> epoch."""
    context = epoch_context(agent.name, kem_public_octets(agent.kem))
    return {key.network_id: key.epoch for key in open_epoch_keys(sealed, kem_private_key=agent.kem, context=context)}


async def test_peers_are_told_at_once_and_keys_go_to_the_others(
    plant: Any, admin: Any, make_agent: Any, open_stream: Any, process: ControlProcess
) -> None:
    tolerate(plant, "red")
    assert not (await admin.sync_policy()).faults
    fleet = process.fleet
    agents, streams = [await make_agent(name) for name in ("dpu-0", "dpu-1")], []
    for agent in agents:
        await agent.attest()
        streams.append(await open_stream(agent))
        await streams[-1].receive("config")
    ids = {name: one.network_id for name, one in fleet.desired.networks.items()}
    before = {name: fleet.epochs.get(one).key.epoch for name, one in ids.items()}

    assert fleet.lower_tier("dpu-1", "warning", "a vulnerability") == {"blue", "blue-green"}
    assert (fleet.record("dpu-1").state, fleet.is_leased("dpu-1")) == (DeviceState.WARNING, True)
    generation = fleet.generation
    assert generation in fleet.revocations, "who has not carried it out soon gets no further lease"
    lost = {ids["blue"], ids["blue-green"]}
    keys = []
    for agent, stream in zip(agents, streams, strict=True):
        told = (await stream.receive("withholding")).withholding
        assert (told.generation, told.device, set(told.networks)) == (generation, "dpu-1", lost)
        keys.append(open_keys(agent, told.sealed_epoch_keys))
    assert keys[0] == {
        ids["red"]: before["red"], ids["green"]: before["green"],
        ids["blue"]: before["blue"] + 1, ids["blue-green"]: before["blue-green"] + 1,
    }  # fmt: skip
    assert keys[1] == {ids["red"]: before["red"]}
    for stream in streams:
        peers = (await stream.receive("peers")).peers
        while peers.generation < generation:
            peers = (await stream.receive("peers")).peers
        assert [set(peer.withheld_networks) for peer in peers.peers] == [lost]
    shown = {name: (await admin.get_tenant(name)).withheld for name in ("blue", "red", "green")}
    assert [bool(shown[name]) for name in ("blue", "red", "green")] == [True, False, False]

    for stream in streams:
        await stream.send(revocation_applied={"generation": generation})
    result = await agents[1].attest()
    assert (result.state, list(result.lease.withheld_networks)) == (DeviceState.AFFIRMING, [])
    assert set(open_keys(agents[1], result.lease.sealed_epoch_keys)) == {ids["blue"], ids["red"], ids["blue-green"]}
    for stream in streams:
        peers = (await stream.receive("peers")).peers
        while peers.generation <= generation:
            peers = (await stream.receive("peers")).peers
        assert [set(peer.withheld_networks) for peer in peers.peers] == [set()]
