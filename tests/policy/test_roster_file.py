"""The roster that a policy wants: ids stay, serials rise, changes are told, what is not known is asked for."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.errors import PolicyRefusedError
from ztdpu.policy.load import load_directory
from ztdpu.policy.roster_file import RosterWishes, describe_changes, plan_roster, read_wishes
from ztdpu.trust.roster import Roster, decode_roster, encode_roster, verify_roster
from ztdpu.trust.sshsig import parse_public_keys

POLICIES = Path(__file__).parents[2] / "policies"
WISHES = RosterWishes(
    tenants={"dpu-0": ("blue", "red"), "dpu-1": ("blue",)},
    networks={"blue": (), "red": (), "blue-red": ("blue", "red")},
    fwids={"bluefield-3": ("ab" * 48,)},
    device_ids={"dpu-0": b"\0" * 32},
)


def plan(wishes: RosterWishes = WISHES, before: Roster | None = None, **ids: bytes) -> Roster:
    numbers = itertools.count(len(before.networks) + 1 if before else 1)
    return plan_roster(
        wishes,
        trust_domain="test.example",
        before=before,
        device_ids={name.replace("_", "-"): digest for name, digest in ids.items()},
        draw_network_id=lambda: next(numbers).to_bytes(16),
    )


FIRST = plan(dpu_1=b"\1" * 32)


def test_a_first_roster_says_all_that_policy_says() -> None:
    assert FIRST.serial == 1
    assert [(one.name, one.device_id_sha256, one.tenants) for one in FIRST.devices] == [
        ("dpu-0", b"\0" * 32, ("blue", "red")),
        ("dpu-1", b"\1" * 32, ("blue",)),
    ]
    assert {one.tenant: one.members for one in FIRST.networks} == WISHES.networks
    assert len({one.network_id for one in FIRST.networks}) == 3
    assert decode_roster(encode_roster(FIRST)).fwids == WISHES.fwids
    assert all(line.startswith("+ ") for line in describe_changes(None, FIRST))


def test_nothing_new_is_no_new_serial() -> None:
    assert plan(before=FIRST) is FIRST
    assert describe_changes(FIRST, FIRST) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tenants": {"dpu-0": ("blue", "red")}}, ["- device  dpu-1"]),
        ({"tenants": {"dpu-0": ("blue",), "dpu-1": ("blue",)}}, ["~ device  dpu-0"]),
        ({"networks": {"blue": (), "blue-red": ("blue", "red")}}, ["- network  red"]),
        ({"networks": {"blue": (), "green": (), "red": (), "blue-red": ("blue", "red")}}, ["+ network  green"]),
        ({"networks": {"blue": (), "red": (), "blue-red": ("blue", "green")}}, ["~ network  blue-red"]),
        ({"fwids": {"bluefield-3": ("cd" * 48,)}}, ["- firmware  bluefield-3", "+ firmware  bluefield-3"]),
        ({"device_ids": {"dpu-0": b"\2" * 32}}, ["~ device  dpu-0"]),
    ],
)
def test_a_change_is_told_and_raises_the_serial(changes: Mapping[str, object], words: list[str]) -> None:
    after = plan(replace(WISHES, **changes), FIRST)  # type: ignore[arg-type]
    assert after.serial == 2
    lines = describe_changes(FIRST, after)
    assert sorted(line[: len(word)] for line, word in zip(sorted(lines), sorted(words), strict=True)) == sorted(words)
    kept = {one.tenant: one for one in FIRST.networks}
    stays = [one for one in after.networks if kept.get(one.tenant) == one]
    assert len(stays) >= 2, "ids of networks that stay are what they were"


def test_a_peering_between_others_is_another_network() -> None:
    after = plan(replace(WISHES, networks=dict(WISHES.networks) | {"blue-red": ("blue", "green")}), FIRST)
    ids = [{one.tenant: one.network_id for one in it.networks}["blue-red"] for it in (FIRST, after)]
    assert ids[0] != ids[1]


def test_unknown_and_contradicted_devices_are_refused() -> None:
    with pytest.raises(PolicyRefusedError) as refused:
        plan(dpu_0=b"\5" * 32, dpu_9=b"\6" * 32)
    assert [fault.message.partition(":")[0] for fault in refused.value.faults] == ["dpu-0", "dpu-1", "dpu-9"]
    assert "--device-id dpu-1=HASH" in refused.value.faults[1].remedy


def test_the_example_cluster_gives_a_roster() -> None:
    wishes = read_wishes(load_directory(POLICIES))
    assert wishes.networks["blue-green"] == ("blue", "green")
    assert wishes.fwids["bluefield-3"]
    assert encode_roster(plan(wishes, dpu_0=b"\0" * 32, dpu_1=b"\1" * 32))


# --- the command ---


def ztdpu(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ztdpu", "policy", "sign-roster", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"NO_COLOR": "1"},
    )


@pytest.fixture
def key(tmp_path: Path) -> Path:
    private = Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key.pub").write_bytes(private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return tmp_path / "key"


def test_sign_check_and_sign_again(tmp_path: Path, key: Path) -> None:
    out, ids = tmp_path / "roster.cbor", [f"--device-id=dpu-{n}={n:064x}" for n in (0, 1)]
    asked = ztdpu(POLICIES, "--out", out, "--key", key, "--trust-domain", "test.example", *ids)
    assert (asked.returncode, out.exists()) == (2, False), "nobody said yes"
    signed = ztdpu(POLICIES, "--out", out, "--key", key, "--trust-domain", "test.example", *ids, "--yes")
    assert signed.returncode == 0, signed.stderr
    assert "+ device  dpu-0" in signed.stdout
    operators = parse_public_keys(key.with_suffix(".pub").read_text(), file="keys")
    roster = verify_roster(out.read_bytes(), out.with_name("roster.cbor.sig").read_text(), operators, 1)
    assert {device.name for device in roster.devices} == {"dpu-0", "dpu-1"}

    check = ["--out", out, "--keys", key.with_suffix(".pub"), "--check"]
    assert ztdpu(POLICIES, *check).returncode == 0
    other = tmp_path / "policies"
    other.mkdir()
    for path in POLICIES.rglob("*.yaml"):
        if "tests" not in path.parts and path.name != "red.yaml":
            (other / f"{path.parent.name}-{path.name}").write_text(path.read_text())
    differs = ztdpu(other, *check)
    assert differs.returncode == 4, differs.stderr
    assert "- network  red" in differs.stdout
    assert ztdpu(other, "--out", out, "--key", key, "--yes").returncode == 0
    assert decode_roster(out.read_bytes()).serial == 2
    out.write_bytes(encode_roster(replace(roster, serial=9)))
    forged = ztdpu(POLICIES, *check)
    assert forged.returncode == 1
    assert "signature does not match" in forged.stderr


def test_ssh_keygen_signs_what_was_written(tmp_path: Path, key: Path) -> None:
    out, ids = tmp_path / "roster.cbor", [f"--device-id=dpu-{n}={n:064x}" for n in (0, 1)]
    written = ztdpu(POLICIES, "--out", out, "--trust-domain", "test.example", *ids, "--yes")
    assert "ssh-keygen -Y sign" in written.stderr
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "ztdpu-roster", out], check=True)
    assert ztdpu(POLICIES, "--out", out, "--keys", key.with_suffix(".pub"), "--check").returncode == 0
    assert json.dumps(decode_roster(out.read_bytes()).serial) == "1"
