"""The roster: one spelling, signed by an operator, never older."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import replace

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import RosterError
from ztdpu.trust import canonical
from ztdpu.trust.roster import (
    Roster,
    RosterDevice,
    RosterNetwork,
    decode_roster,
    encode_roster,
    sign_roster,
    verify_roster,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
ROSTER = Roster(
    serial=5,
    trust_domain="ztdpu.lab",
    devices=(
        RosterDevice(name="dpu-0", device_id_sha256=b"0" * 32, tenants=("blue", "red")),
        RosterDevice(name="dpu-1", device_id_sha256=b"1" * 32, tenants=("blue",)),
    ),
    networks=(
        RosterNetwork(tenant="blue", network_id=b"b" * 16, generation=1),
        RosterNetwork(tenant="red", network_id=b"r" * 16, generation=2),
    ),
    fwids={"bluefield-3": ("aa" * 48, "bb" * 48)},
)


def test_round_trip_and_look_ups():
    assert decode_roster(encode_roster(ROSTER)) == ROSTER
    assert [one.tenant for one in ROSTER.networks_of(ROSTER.find_device("dpu-0"))] == ["blue", "red"]
    assert [one.tenant for one in ROSTER.networks_of(ROSTER.find_device("dpu-1"))] == ["blue"]
    with pytest.raises(RosterError, match="dpu-9"):
        ROSTER.find_device("dpu-9")


def test_order_does_not_count():
    shuffled = replace(
        ROSTER,
        devices=ROSTER.devices[::-1],
        networks=ROSTER.networks[::-1],
        fwids={"bluefield-3": ("bb" * 48, "aa" * 48)},
    )
    assert encode_roster(shuffled) == encode_roster(ROSTER)


def device(**changes):
    return (replace(ROSTER.devices[0], **changes), ROSTER.devices[1])


def network(**changes):
    return (replace(ROSTER.networks[0], **changes), ROSTER.networks[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"serial": -1},
        {"serial": 2**64},
        {"serial": True},
        {"trust_domain": ""},
        {"trust_domain": "ZTDPU"},
        {"devices": device(name="")},
        {"devices": device(name="DPU 0")},
        {"devices": device(name="dpu-1")},
        {"devices": device(name="a" * 254)},
        {"devices": device(device_id_sha256=b"0" * 31)},
        {"devices": device(device_id_sha256=b"1" * 32)},
        {"devices": device(tenants=("green",))},
        {"devices": device(tenants=("blue", "blue"))},
        {"networks": network(tenant="red")},
        {"networks": network(network_id=b"r" * 16)},
        {"networks": network(network_id=b"b" * 15)},
        {"networks": network(generation=-1)},
        {"fwids": {"bluefield-3": ("AA" * 48,)}},
        {"fwids": {"bluefield-3": ("aa" * 47,)}},
        {"fwids": {"bluefield-3": ("00" * 48,)}},
        {"fwids": {"bluefield-3": ("aa" * 48, "aa" * 48)}},
        {"fwids": {"": ("aa" * 48,)}},
        {"devices": tuple(RosterDevice(name=f"d{n}", device_id_sha256=b"%032d" % n, tenants=()) for n in range(2000))},
    ],
)
def test_malformed_rosters_are_not_even_encoded(changes):
    with pytest.raises(RosterError):
        encode_roster(replace(ROSTER, **changes))


def verify(blob=None, signature=None, keys=None, lowest_serial=0, **more):
    blob = encode_roster(ROSTER) if blob is None else blob
    keys = (KEY.public_key(),) if keys is None else keys
    return verify_roster(blob, sign_roster(blob, KEY) if signature is None else signature, keys, lowest_serial, **more)


def test_signed_by_an_operator():
    assert verify() == ROSTER
    assert verify(keys=(OTHER.public_key(), KEY.public_key())) == ROSTER
    for changes in ({"keys": (OTHER.public_key(),)}, {"keys": ()}, {"signature": sign_roster(b"", KEY)}):
        with pytest.raises(RosterError):
            verify(**changes)


def test_serials_never_go_back():
    assert verify(lowest_serial=4) == ROSTER
    assert verify(lowest_serial=5) == ROSTER
    with pytest.raises(RosterError, match="older"):
        verify(lowest_serial=6)


def test_one_serial_is_one_roster():
    blob = encode_roster(ROSTER)
    assert verify(lowest_serial=5, current_sha256=hashlib.sha256(blob).digest()) == ROSTER
    twin = encode_roster(replace(ROSTER, devices=ROSTER.devices[:1]))
    with pytest.raises(RosterError, match="another roster"):
        verify(blob=twin, lowest_serial=5, current_sha256=hashlib.sha256(blob).digest())


def test_other_trust_domains_are_refused():
    assert verify(trust_domain="ztdpu.lab") == ROSTER
    with pytest.raises(RosterError, match="trust domain"):
        verify(trust_domain="other.lab")


def items():
    return cbor2.loads(encode_roster(ROSTER))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, "rooster"),
        (1, 2),
        (1, True),
        (2, "5"),
        (2, True),
        (2, 5.0),
        (3, b"ztdpu.lab"),
        (4, {}),
        (4, [["dpu-0", b"0" * 32]]),
        (4, [["dpu-1", b"1" * 32, []], ["dpu-0", b"0" * 32, []]]),
        (5, [["blue", b"b" * 16, "1"]]),
        (5, [["blue", b"b" * 16, True]]),
        (6, [["bluefield-3", ["aa" * 48]]]),
        (6, [["bluefield-3", [b"\xbb" * 48, b"\xaa" * 48]]]),
        (6, [["bluefield-3", [b"\xaa" * 48]], ["bluefield-3", [b"\xaa" * 48]]]),
    ],
)
def test_signed_but_malformed(position, value):
    changed = items()
    changed[position] = value
    blob = cbor2.dumps(changed, canonical=True)
    with pytest.raises(RosterError):
        verify(blob=blob)


def test_signed_in_another_spelling_or_arity():
    for blob in (
        encode_roster(ROSTER) + b"\0",
        cbor2.dumps([*items(), 0]),
        cbor2.dumps(items()[:-1]),
        cbor2.dumps({"roster": 1}),
        b"",
        b"\x9f" + encode_roster(ROSTER)[1:] + b"\xff",
        bytes(70_000),
    ):
        with pytest.raises(RosterError):
            verify(blob=blob)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_change_behind_the_signature_is_accepted(data):
    blob = bytearray(encode_roster(ROSTER))
    signature = sign_roster(bytes(blob), KEY)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RosterError):
        verify(blob=bytes(blob), signature=signature)


@settings(max_examples=300, deadline=None)
@given(blob=st.binary(max_size=300))
def test_signed_noise_never_crashes(blob):
    with pytest.raises(RosterError):
        verify(blob=blob)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not here")
def test_ssh_keygen_verifies_a_roster(tmp_path):
    blob = encode_roster(ROSTER)
    public = KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "signers").write_text(f"operator {public}\n")
    (tmp_path / "sig").write_text(sign_roster(blob, KEY))
    command = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "operator", "-n", "ztdpu-roster"]
    done = subprocess.run([*command, "-s", tmp_path / "sig"], input=blob, capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


PEERED = replace(
    ROSTER,
    networks=(
        ROSTER.networks[0],
        RosterNetwork(tenant="blue-red", network_id=b"p" * 16, generation=1, members=("blue", "red")),
        ROSTER.networks[1],
    ),
)


def test_a_peering_makes_format_2_and_its_absence_format_1() -> None:
    assert decode_roster(encode_roster(PEERED)) == PEERED
    assert canonical.decode(encode_roster(ROSTER), refusal=RosterError)[1] == 1
    assert canonical.decode(encode_roster(PEERED), refusal=RosterError)[1] == 2
    both = [one.tenant for one in PEERED.networks_of(PEERED.find_device("dpu-0"))]
    assert both == ["blue", "blue-red", "red"]
    assert [one.tenant for one in PEERED.networks_of(PEERED.find_device("dpu-1"))] == ["blue", "blue-red"]


@pytest.mark.parametrize("form", [1, 2])
def test_a_roster_has_one_format(form: int) -> None:
    wrong = canonical.decode(encode_roster(PEERED if form == 1 else ROSTER), refusal=RosterError)
    wrong[1] = form
    with pytest.raises(RosterError):
        decode_roster(canonical.encode(wrong))


@pytest.mark.parametrize(
    ("tenant", "members"),
    [("blue", ("blue", "red")), ("x", ("blue",)), ("x", ("blue", "pink")), ("x", ("blue", "blue"))],
)
def test_odd_peerings_are_refused(tenant: str, members: tuple[str, ...]) -> None:
    odd = RosterNetwork(tenant=tenant, network_id=b"p" * 16, generation=1, members=members)
    with pytest.raises(RosterError):
        encode_roster(replace(ROSTER, networks=(*ROSTER.networks, odd)))
