"""Units, start-up files and container files: they load, they are hard, they agree with each other."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from ztdpu.agent.configuration import AgentConfiguration
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.errors import ConfigurationError
from ztdpu.policy.load import read_strict

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = (("control.yaml", ControlConfiguration), ("agent.yaml", AgentConfiguration))


class Unit(configparser.RawConfigParser):
    """A unit file; the last of two equal keys wins, which is all that these tests ask for."""

    def __init__(self, name):
        super().__init__(strict=False, interpolation=None)
        self.optionxform = str
        self.read(DEPLOY / name)


def exposure(path):
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    return float(found.group(1))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_are_little_exposed(tmp_path):
    assert exposure(DEPLOY / "ztdpu-control.service") <= 3.0
    assert exposure(DEPLOY / "ztdpu-agent.service") <= 3.0
    soft = tmp_path / "soft.service"
    soft.write_text("[Service]\nExecStart=/bin/true\n")
    assert exposure(soft) > 9


def test_control_has_no_capability_and_the_agent_three():
    assert Unit("ztdpu-control.service")["Service"]["CapabilityBoundingSet"] == ""
    agent = Unit("ztdpu-agent.service")["Service"]
    assert agent["CapabilityBoundingSet"].split() == ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE"]
    assert agent["AmbientCapabilities"] == agent["CapabilityBoundingSet"]
    assert agent["DeviceAllow"] == "/dev/net/tun rw"


def test_units_run_as_the_users_that_sysusers_makes():
    users = {line.split()[1] for line in (DEPLOY / "sysusers.conf").read_text().splitlines() if line[:2] == "u "}
    assert users == {Unit(f"ztdpu-{name}.service")["Service"]["User"] for name in ("control", "agent")}


@pytest.mark.parametrize(("name", "model"), FILES)
def test_start_up_files_load_and_show_every_field(name, model):
    loaded = read_strict(DEPLOY / name, model)
    text = (DEPLOY / name).read_text()
    missing = [key for key in keys_of(model) if not re.search(rf"^ *#? ?{key}:", text, re.MULTILINE)]
    assert missing == []
    assert loaded.spec.trust_domain == "cluster.example"


def keys_of(model):
    """Every key that may stand in the file."""
    for field in model.model_fields.values():
        yield field.alias
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation)


@pytest.mark.parametrize(("name", "model"), FILES)
def test_a_field_too_many_is_refused_with_its_place(tmp_path, name, model):
    copy = tmp_path / name
    copy.write_text((DEPLOY / name).read_text() + "  surprise: 1\n")
    lines = len(copy.read_text().splitlines())
    with pytest.raises(ConfigurationError, match=rf"{name}:{lines}:3 spec.surprise"):
        read_strict(copy, model)


def test_the_two_start_up_files_belong_together():
    control, agent = (read_strict(DEPLOY / name, model).spec for name, model in FILES)
    assert (agent.trust_domain, agent.control.enrolment, agent.control.main) == (
        control.trust_domain,
        control.listen.enrolment,
        control.listen.main,
    )


@pytest.mark.parametrize(("name", "model"), FILES)
def test_units_let_the_services_write_where_their_files_say(name, model):
    service = Unit(f"ztdpu-{name.removesuffix('.yaml')}.service")["Service"]
    assert service["ExecStart"].endswith(f"--config /etc/ztdpu/{name}")
    writable = [Path("/var/lib", service["StateDirectory"]), Path("/run", service["RuntimeDirectory"])]
    spec = read_strict(DEPLOY / name, model).spec
    written = [spec.state_dir, spec.admin_socket if name == "control.yaml" else spec.root_of_trust.secrets_file]
    assert all(any(home in path.parents for home in writable) for path in written)


def test_a_restart_of_the_agent_leaves_what_tenants_have_mounted():
    service = Unit("ztdpu-agent.service")["Service"]
    folder = read_strict(DEPLOY / "agent.yaml", AgentConfiguration).spec.sidecar_dir
    assert Path("/run", service["RuntimeDirectory"]) in folder.parents
    assert service["RuntimeDirectoryPreserve"] == "restart"


def pins(path):
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def test_the_image_has_the_versions_that_were_tested():
    everything, run_time = pins(ROOT / "requirements.lock"), pins(DEPLOY / "requirements.lock")
    assert len(run_time) > 20
    assert run_time.items() <= everything.items()
    assert "pytest" in everything.keys() - run_time.keys()


def test_containers_have_no_more_rights_than_units():
    services = YAML(typ="safe", pure=True).load((DEPLOY / "compose.yaml").read_text())["services"]
    control, agent = services["control"], services["agent"]
    assert all(one["cap_drop"] == ["ALL"] and one["read_only"] for one in (control, agent))
    assert control["user"] == "7400:7400"
    assert "cap_add" not in control
    wanted = Unit("ztdpu-agent.service")["Service"]["CapabilityBoundingSet"].split()
    assert [f"CAP_{name}" for name in agent["cap_add"]] == wanted
    containerfile = (DEPLOY / "Containerfile").read_text()
    assert containerfile.count("--require-hashes") == 2
    assert re.search(r"^USER 7400:7400$", containerfile, re.MULTILINE)


def test_floors_of_the_agent_outlive_a_reboot():
    spec = read_strict(DEPLOY / "agent.yaml", AgentConfiguration).spec
    unit = Unit("ztdpu-agent.service")["Service"]
    assert spec.floors_folder == Path("/var/lib") / unit["StateDirectory"]
    assert spec.state_dir.is_relative_to(Path("/run") / unit["RuntimeDirectory"])
