"""Devices of three profiles in one cluster; every fault preset at run time is refused for its own reason and heals.

Seven devices misbehave at once, two neighbours talk through all of it. What each preset does: `ztdpu.trust.faults`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from ztdpu.lab.documents import EXAMPLE_POLICIES
from ztdpu.lab.shipped import make_reference_values
from ztdpu.trust.faults import Preset
from ztdpu.trust.profile import list_profiles, load_profile

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

CONTRAINDICATED = {
    Preset.FIRMWARE_ALTERED: "measurement_unexpected: .* measurement . is not one of the allowed",
    Preset.FIRMWARE_ROLLBACK: "version_below_minimum: .* below",
    Preset.DEBUG_ENABLED: "debug_enabled: debug access is on",
}
REFUSED = {
    Preset.STALE_ALIAS: "binding: device claims a newer boot with the Alias key of an older one",
    Preset.OLD_BOOT: "evidence: boot . is over, the highest seen is",
    Preset.WRONG_ROOT: "certificate: chain does not lead to a pinned manufacturer root",
    Preset.DUPLICATE_INDEX: "spdm: measurement index . is reserved or there twice",
    Preset.UNSIGNED_LAST: "spdm: the answer is not signed",
    Preset.NONCE_REUSE: "spdm: signature does not verify .responder-measurements",
    Preset.FOREIGN_BINDING: "binding: key binding is not signed by the device's Alias key",
    Preset.SLOW: "spdm: the device is still busy after 12 attempts",
    Preset.SILENT: "evidence: the agent ended the attestation early",
}
FAULTS = [*CONTRAINDICATED, *REFUSED, Preset.MALLEATED_SIGNATURE]
NAMES = [f"dpu-{number}" for number in range(9)]
NEIGHBOURS, TROUBLED = ("dpu-0", "dpu-8"), NAMES[1:8]


def document(kind, name, spec, **metadata):
    return json.dumps(
        {"apiVersion": "ztdpu.dev/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
    )


def write_policy(folder):
    """One tenant with an endpoint on each of nine devices, profiles in turn."""
    for name in ("network", "attestation"):
        (folder / name).mkdir(parents=True)
    shutil.copy(EXAMPLE_POLICIES / "attestation" / "standard.yaml", folder / "attestation")
    (folder / "blue.yaml").write_text(document("Tenant", "blue", {"appraisalPolicy": "standard"}))
    training = (EXAMPLE_POLICIES / "network" / "blue.yaml").read_text().partition("\n---\n")[0]
    (folder / "network" / "blue.yaml").write_text(training)
    profiles = list_profiles()
    for profile in profiles:
        text = json.dumps(make_reference_values(load_profile(profile)))
        (folder / "attestation" / f"{profile}.yaml").write_text(text)
    for number, name in enumerate(NAMES):
        spec = {"profile": profiles[number % len(profiles)], "underlay": {"address": f"10.90.0.{10 + number}"}}
        (folder / f"{name}.yaml").write_text(document("Device", name, spec))
        spec = {"tenant": "blue", "device": name, "addresses": [f"10.1.0.{10 + number}"]}
        (folder / f"blue-{number}.yaml").write_text(
            document("Endpoint", f"blue-{number}", spec, labels={"role": "worker"})
        )


def wait_for(condition, *, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen in time: {what()}"
        time.sleep(0.3)
    return value


def list_devices(lab):
    return {one["name"]: one for one in json.loads(lab.ztdpu("device", "list", "-o", "json").stdout)}


def read_audit(lab, first):
    leaves = json.loads(lab.ztdpu("audit", "list", "--from", str(first), "-n", "1000", "-o", "json").stdout)
    return [
        (one["subject"], f"{one['reason']}: {(one.get('detail') or {}).get('message', '')}")
        for one in leaves
        if (one["action"], one["outcome"]) == ("attest", "refused")
    ]


def last_index(lab):
    return json.loads(lab.ztdpu("audit", "list", "-n", "1", "-o", "json").stdout)[-1]["index"]


def fault(lab, device, preset):
    lab.ztdpu("lab", "fault", device, preset, "--state", str(lab.state))


def run_round(lab, presets):
    """Put presets on devices at once; wait for each one's reason and state; heal all; wait until all are ready."""
    placed = dict(zip(TROUBLED, presets, strict=False))
    first = last_index(lab) + 1
    for device, preset in placed.items():
        fault(lab, device, preset)
    wanted = {device: (CONTRAINDICATED | REFUSED).get(preset) for device, preset in placed.items()}

    def missing():
        seen = read_audit(lab, first)
        return {
            device: words
            for device, words in wanted.items()
            if words and not any(subject == device and re.search(words, text) for subject, text in seen)
        }

    wait_for(lambda: not missing(), what=missing)
    states = {
        device: "contraindicated" if preset in CONTRAINDICATED else "stale" if preset in REFUSED else "affirming"
        for device, preset in placed.items()
    }
    wait_for(
        lambda: {device: list_devices(lab)[device]["state"] for device in states} == states,
        what=lambda: (states, list_devices(lab)),
    )
    for device in placed:
        fault(lab, device, Preset.NONE)
    wait_for(lambda: all(one["ready"] for one in list_devices(lab).values()), what=lambda: list_devices(lab))
    return placed


def test_every_preset_is_refused_for_its_reason_and_heals(new_lab, tmp_path):
    write_policy(tmp_path / "policy")
    lab = new_lab("--policy", str(tmp_path / "policy"), "--interval", "1", "--lease", "4").up()
    assert {one.profile for one in lab.plan.devices} == set(list_profiles())
    neighbours = [f"blue-{name[4:]}" for name in NEIGHBOURS]
    talk = subprocess.Popen(
        [
            sys.executable, "-m", "ztdpu", "lab", "exec", neighbours[0], "--state", str(lab.state), "--",
            "ping", "-i", "0.2", "-W", "2", neighbours[1],
        ],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        placed = run_round(lab, FAULTS[: len(TROUBLED)])
        assert list_devices(lab)["dpu-1"]["state"] == "affirming"
        assert placed["dpu-1"] is Preset.FIRMWARE_ALTERED
        run_round(lab, FAULTS[len(TROUBLED) :])
        assert lab.ping("blue-0", "blue-1", count=2) == 2
    finally:
        talk.terminate()
        out, _ = talk.communicate(timeout=10)
    numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+)", out)]
    assert len(numbers) > 20
    assert numbers == list(range(1, len(numbers) + 1)), "a neighbour lost packets"
    unknown = lab.ztdpu("lab", "fault", "dpu-1", "lazy", "--state", str(lab.state), check=False)
    assert (unknown.returncode, "firmware-rollback" in unknown.stderr) == (2, True)
