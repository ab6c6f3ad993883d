"""Peers: what an honest control hands over is believed, and a lying control gains nothing but what the docs say."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from ztdpu.errors import BindingError, CertificateError, EarError, RefusedError, RosterError
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.trust import binding as bindings
from ztdpu.trust import peer
from ztdpu.trust.binding import binding_sha256
from ztdpu.trust.chain import verify_device_chain
from ztdpu.trust.ear import issue_ear
from ztdpu.trust.peer import PeerStatement, verify_peer
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork


class Fleet:
    """Two devices, a roster, and a control that signs whatever it likes."""

    def __init__(self, world):
        self.world = world
        self.roots = {name: world.boot(name) for name in ("dpu-0", "dpu-1")}
        self.appraisals = {name: world.appraise(world.collect(root)) for name, root in self.roots.items()}
        self.roster = Roster(
            serial=1,
            trust_domain=world.domain,
            devices=tuple(
                RosterDevice(name=name, device_id_sha256=one.device_id_sha256, tenants=("blue",))
                for name, one in self.appraisals.items()
            ),
            networks=(
                RosterNetwork(tenant="blue", network_id=b"b" * 16, generation=1),
                RosterNetwork(tenant="red", network_id=b"r" * 16, generation=1),
            ),
            fwids={"bluefield-3": tuple(self.appraisals["dpu-0"].fwids.values())},
        )

    def ear(self, envelope, *, device="dpu-0", appraisal=None, key=None, now=None, ttl_s=60):
        return issue_ear(
            appraisal or self.appraisals[device],
            device=device,
            key=key or self.world.ear_key,
            issuer="spiffe://ztdpu.lab/control",
            now=now or self.world.now,
            binding_sha256=binding_sha256(envelope),
            ttl_s=ttl_s,
        )

    def statement(self, device="dpu-0", *, root=None, envelope=None, **changes):
        root = root or self.roots[device]
        envelope = envelope or self.world.bind(root)
        statement = PeerStatement(
            device=device, profile="bluefield-3", chain=root.certificates, key_binding=envelope, ear=""
        )
        if "ear" not in changes:
            changes["ear"] = self.ear(envelope, device=device)
        return dataclasses.replace(statement, **changes)

    def verify(self, statement=None, **changes):
        arguments = {
            "roster": self.roster,
            "trust_domain": self.world.domain,
            "manufacturer_roots": self.world.roots,
            "ear_key": self.world.ear_key.public_key(),
            "now": self.world.now,
            "floor": None,
        } | changes
        return verify_peer(statement or self.statement(), **arguments)


@pytest.fixture(scope="module")
def fleet(world):
    return Fleet(world)


def test_an_honest_peer(world, fleet):
    statement = fleet.statement()
    verified = fleet.verify(statement)
    assert verified.ueid == fleet.roots["dpu-0"].ueid
    assert verified.binding_sha256 == binding_sha256(statement.key_binding)
    assert verified.offer_public_key == world.keys.offer.public_key()
    assert verified.tls_spki_sha256 == world.spki_sha256(world.keys.tls)
    assert (verified.boot_counter, verified.sequence) == (7, verified.floor.sequence)
    assert [network.tenant for network in verified.networks] == ["blue"]
    assert verified.ear.status is Tier.AFFIRMING
    assert fleet.verify(fleet.statement("dpu-1")).ueid == fleet.roots["dpu-1"].ueid


def test_a_device_that_is_not_in_the_roster(fleet):
    alone = dataclasses.replace(fleet.roster, devices=fleet.roster.devices[:1])
    assert fleet.verify(fleet.statement("dpu-0"), roster=alone)
    with pytest.raises(RosterError, match="not in the roster"):
        fleet.verify(fleet.statement("dpu-1"), roster=alone)


def test_another_device_under_a_listed_name(fleet):
    """Control names its own genuine device dpu-0."""
    envelope = fleet.world.bind(fleet.roots["dpu-1"])
    ear = fleet.ear(envelope, device="dpu-0", appraisal=fleet.appraisals["dpu-1"])
    statement = fleet.statement("dpu-0", root=fleet.roots["dpu-1"], envelope=envelope, ear=ear)
    with pytest.raises(RosterError, match="not the device"):
        fleet.verify(statement)


def test_a_device_of_another_manufacturer(fleet):
    with pytest.raises(CertificateError, match="pinned"):
        fleet.verify(manufacturer_roots=())


def test_rosters_of_other_domains_and_unknown_profiles(fleet):
    with pytest.raises(RosterError, match="trust domain"):
        fleet.verify(roster=dataclasses.replace(fleet.roster, trust_domain="other.lab"))
    for profile in ("no-such-product", "../bluefield-3", ""):
        with pytest.raises(RosterError, match="profile"):
            fleet.verify(fleet.statement(profile=profile))


def test_firmware_that_no_operator_signed_for(fleet):
    """Control calls altered firmware affirming: peers ask the roster."""
    altered = fleet.world.boot("dpu-0", counter=9, nic_firmware="altered")
    appraisal = dataclasses.replace(
        fleet.world.appraise(fleet.world.collect(altered)),
        tier=Tier.AFFIRMING,
        vector={Dimension.EXECUTABLES: 3},
    )
    envelope = fleet.world.bind(altered)
    statement = fleet.statement(root=altered, envelope=envelope, ear=fleet.ear(envelope, appraisal=appraisal))
    with pytest.raises(RosterError, match="firmware"):
        fleet.verify(statement)
    allowed = {"bluefield-3": (*fleet.roster.fwids["bluefield-3"], *appraisal.fwids.values())}
    assert fleet.verify(statement, roster=dataclasses.replace(fleet.roster, fwids=allowed))
    for fwids in ({}, {"bluefield-3": ()}, {"generic": fleet.roster.fwids["bluefield-3"]}):
        with pytest.raises(RosterError, match="firmware"):
            fleet.verify(roster=dataclasses.replace(fleet.roster, fwids=fwids))


def test_control_cannot_bind_keys_of_its_own(world, fleet):
    """Without the Alias key there is no binding: one by control's key, one for keys that control altered."""
    envelope = world.bind(fleet.roots["dpu-0"])
    binding = bindings.open_envelope(envelope, fleet.roots["dpu-0"].alias_public_key)
    own = dataclasses.replace(binding, offer_spki=world.spki(world.p256(80)))
    forged = bindings.sign(bindings.encode_body(own), world.p384(81))
    spliced = bindings.canonical.encode(
        ["key-binding", bindings.encode_body(own), bindings.canonical.decode(envelope, refusal=BindingError)[2]]
    )
    for wrong in (forged, spliced, world.bind(fleet.roots["dpu-1"])):
        with pytest.raises(BindingError, match="Alias"):
            fleet.verify(fleet.statement(envelope=wrong, ear=fleet.ear(wrong)))


def resigned(world, root, **changes):
    binding = bindings.open_envelope(world.bind(root), root.alias_public_key)
    return bindings.sign(bindings.encode_body(dataclasses.replace(binding, **changes)), root._device.alias_key)


@pytest.mark.parametrize(
    "changes",
    [
        {"trust_domain": "other.lab"},
        {"role": "reducer"},
        {"ueid": b"\x01" + bytes(32)},
        {"boot_counter": 8},
        {"boot_nonce": bytes(16)},
    ],
)
def test_bindings_that_say_something_else(world, fleet, changes):
    assert fleet.verify(fleet.statement(envelope=resigned(world, fleet.roots["dpu-0"])))
    with pytest.raises(BindingError):
        fleet.verify(fleet.statement(envelope=resigned(world, fleet.roots["dpu-0"], **changes)))


def test_nothing_goes_back(world, fleet):
    old = fleet.statement()
    new = fleet.statement()
    floor = fleet.verify(new).floor
    assert fleet.verify(new, floor=floor).floor == floor
    with pytest.raises(BindingError, match="older"):
        fleet.verify(old, floor=floor)
    assert fleet.verify(new, floor=fleet.verify(old).floor)


def test_retired_boots_do_not_come_back(world, fleet):
    rebooted = world.boot("dpu-0", counter=8)
    envelope = world.bind(rebooted)
    appraisal = world.appraise(world.collect(rebooted))
    before = fleet.verify().floor
    newer = fleet.statement(root=rebooted, envelope=envelope, ear=fleet.ear(envelope, appraisal=appraisal))
    after = fleet.verify(newer, floor=before).floor
    assert after.boot_counter == 8
    with pytest.raises(BindingError, match="older"):
        fleet.verify(fleet.statement(), floor=after)


def test_one_boot_one_alias_one_binding_per_sequence(world, fleet):
    statement = fleet.statement()
    floor = fleet.verify(statement).floor
    twin_root = world.boot("dpu-0", counter=7, nonce=b"m" * 16)
    envelope = resigned(world, twin_root, sequence=floor.sequence + 1)
    twin = fleet.statement(root=twin_root, envelope=envelope)
    assert fleet.verify(twin)
    with pytest.raises(BindingError, match="belong together"):
        fleet.verify(twin, floor=floor)
    second = resigned(world, fleet.roots["dpu-0"], sequence=floor.sequence, ttl_s=601)
    with pytest.raises(BindingError, match="another key binding"):
        fleet.verify(fleet.statement(envelope=second), floor=floor)


@pytest.mark.parametrize(("age_s", "accepted"), [(0, True), (600, True), (900, True), (901, False)])
def test_a_binding_ends_after_its_ttl_and_the_slack(world, fleet, age_s, accepted):
    """Counted from when this agent first saw it, so control cannot stretch it."""
    envelope = world.bind(fleet.roots["dpu-0"])
    floor = fleet.verify(fleet.statement(envelope=envelope)).floor
    now = world.now + timedelta(seconds=age_s)
    later = fleet.statement(envelope=envelope, ear=fleet.ear(envelope, now=now))
    if accepted:
        assert fleet.verify(later, now=now, floor=floor).floor == floor
    else:
        with pytest.raises(BindingError, match="ended"):
            fleet.verify(later, now=now, floor=floor)
        fresh = world.bind(fleet.roots["dpu-0"])
        assert fleet.verify(fleet.statement(envelope=fresh, ear=fleet.ear(fresh, now=now)), now=now, floor=floor)


def test_results_that_are_not_for_this_binding_or_not_fresh(world, fleet):
    envelope = world.bind(fleet.roots["dpu-0"])
    other = world.bind(fleet.roots["dpu-0"])
    contraindicated = dataclasses.replace(
        fleet.appraisals["dpu-0"], tier=Tier.CONTRAINDICATED, vector={Dimension.HARDWARE: 96}
    )
    foreign = dataclasses.replace(fleet.appraisals["dpu-0"], ueid=fleet.appraisals["dpu-1"].ueid)
    earlier = dataclasses.replace(fleet.appraisals["dpu-0"], boot_counter=6)
    for ear in (
        "",
        fleet.ear(other),
        fleet.ear(envelope, now=world.now - timedelta(seconds=120)),
        fleet.ear(envelope, now=world.now + timedelta(seconds=120)),
        fleet.ear(envelope, key=world.p256(82)),
        fleet.ear(envelope, appraisal=contraindicated),
        fleet.ear(envelope, appraisal=foreign),
        fleet.ear(envelope, appraisal=earlier),
        fleet.ear(envelope, device="dpu-1"),
    ):
        with pytest.raises(EarError):
            fleet.verify(fleet.statement(envelope=envelope, ear=ear))
    assert fleet.verify(fleet.statement(envelope=envelope))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_every_part_mutated(fleet):
    statement = fleet.statement()
    dice = fleet.world.random
    for _ in range(500):
        name = dice.choice(("chain", "key_binding", "ear"))
        if name == "chain":
            position = dice.randrange(1, len(statement.chain))
            der = bytearray(statement.chain[position])
            der[dice.randrange(len(der))] ^= dice.randrange(1, 256)
            value = (*statement.chain[:position], bytes(der), *statement.chain[position + 1 :])
        elif name == "key_binding":
            envelope = bytearray(statement.key_binding)
            envelope[dice.randrange(len(envelope))] ^= dice.randrange(1, 256)
            value = bytes(envelope)
        else:
            place = dice.randrange(len(statement.ear))
            value = (
                statement.ear[:place]
                + chr(ord(statement.ear[place]) ^ dice.randrange(1, 128))
                + statement.ear[place + 1 :]
            )
        with pytest.raises(RefusedError):
            fleet.verify(dataclasses.replace(statement, **{name: value}))
    assert fleet.verify(statement)


def test_flags_and_missing_identities(world, fleet):
    chain = verify_device_chain(fleet.roots["dpu-0"].certificates, world.roots, world.now, world.profile)
    peer._check_firmware("dpu-0", chain, fleet.roster)
    flagged = dataclasses.replace(chain.fwids[1], bad_flags=("debug",))
    for fwids in ((), (chain.fwids[0], flagged)):
        with pytest.raises(RosterError, match=r"no firmware|admits"):
            peer._check_firmware("dpu-0", dataclasses.replace(chain, fwids=fwids), fleet.roster)
