"""Devices of three profiles in one cluster; every fault preset at run time is refused for its own reason and heals.

Several devices misbehave at once, two neighbours talk through all of it. What each preset does: `ztdpu.trust.faults`;
tests/trust/test_faults.py has all of them on every profile in process, `make soak` all of them here.
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
from ztdpu.lab.faults import set_fault
from ztdpu.lab.shipped import make_reference_values
from ztdpu.rpc.client import ControlClient
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
ALL = [*CONTRAINDICATED, *REFUSED, Preset.MALLEATED_SIGNATURE]
FEW = [Preset.FIRMWARE_ROLLBACK, Preset.WRONG_ROOT, Preset.FOREIGN_BINDING, Preset.MALLEATED_SIGNATURE]
TROUBLED_LIMIT = 7
"""Devices that misbehave at once; dpu-0 and the last one are the neighbours."""


def document(kind, name, spec, **metadata):
    return json.dumps(
        {"apiVersion": "ztdpu.dev/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
    )


def write_policy(folder, names):
    """One tenant with an endpoint on each device, profiles in turn."""
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
    for number, name in enumerate(names):
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


class Watcher:
    """Asks control over one connection, and speaks to the fault doors, as the command line does but without its start."""

    def __init__(self, lab):
        self.lab = lab
        self.control = ControlClient.connect(f"unix:{lab.state}/control/admin.sock")

    def devices(self):
        return {one.name: one for one in self.control.list_devices()}

    def refusals(self, first):
        """(device, code and message) of every refused attestation since that leaf."""
        leaves = [json.loads(one.leaf) for one in self.control.list_audit(first=first, limit=1000)]
        return [
            (leaf["subject"], f"{leaf['reason']}: {(leaf.get('detail') or {}).get('message', '')}")
            for leaf in leaves
            if (leaf["action"], leaf["outcome"]) == ("attest", "refused")
        ]

    def next_leaf(self):
        return self.control.list_audit(limit=1)[-1].index + 1

    def fault(self, device, preset):
        set_fault(self.lab.state, device, preset)


def run_round(watcher, presets):
    """Put presets on devices at once; wait for each one's reason and state; heal all; wait until all are ready."""
    placed = {f"dpu-{number}": preset for number, preset in enumerate(presets, 1)}
    first = watcher.next_leaf()
    for device, preset in placed.items():
        watcher.fault(device, preset)
    wanted = {device: (CONTRAINDICATED | REFUSED).get(preset) for device, preset in placed.items()}

    def missing():
        seen = watcher.refusals(first)
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
        lambda: {device: str(watcher.devices()[device].state) for device in states} == states,
        what=lambda: (states, watcher.devices()),
    )
    for device in placed:
        watcher.fault(device, Preset.NONE)
    wait_for(lambda: all(one.ready for one in watcher.devices().values()), what=watcher.devices)


@pytest.mark.parametrize("presets", [FEW, pytest.param(ALL, marks=pytest.mark.soak)], ids=["few", "all"])
def test_presets_are_refused_for_their_reasons_and_heal(new_lab, tmp_path, presets):
    rounds = [presets[start : start + TROUBLED_LIMIT] for start in range(0, len(presets), TROUBLED_LIMIT)]
    names = [f"dpu-{number}" for number in range(len(rounds[0]) + 2)]
    write_policy(tmp_path / "policy", names)
    lab = new_lab("--policy", str(tmp_path / "policy"), "--interval", "1", "--lease", "4").up()
    assert {one.profile for one in lab.plan.devices} == set(list_profiles())
    watcher = Watcher(lab)
    neighbours = "blue-0", f"blue-{len(names) - 1}"
    talk = subprocess.Popen(
        [
            sys.executable, "-m", "ztdpu", "lab", "exec", neighbours[0], "--state", str(lab.state), "--",
            "ping", "-i", "0.2", "-W", "2", neighbours[1],
        ],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        for some in rounds:
            run_round(watcher, some)
        assert lab.ping("blue-0", "blue-1", count=2) == 2
        lab.ztdpu("lab", "fault", "dpu-1", "debug-enabled", "--state", str(lab.state))
        wait_for(lambda: str(watcher.devices()["dpu-1"].state) == "contraindicated", what=watcher.devices, seconds=20)
        assert lab.ping("blue-0", "blue-1", count=2) == 0
    finally:
        talk.terminate()
        out, _ = talk.communicate(timeout=10)
    numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+)", out)]
    assert len(numbers) > 20
    assert numbers == list(range(1, len(numbers) + 1)), "a neighbour lost packets"
    unknown = lab.ztdpu("lab", "fault", "dpu-1", "lazy", "--state", str(lab.state), check=False)
    assert (unknown.returncode, "firmware-rollback" in unknown.stderr) == (2, True)
