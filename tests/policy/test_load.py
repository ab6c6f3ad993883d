"""Policy directories and start-up files: every fault with its place, nothing applied by halves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from ztdpu.errors import ConfigurationError, PolicyError, PolicyPathError, PolicyRefusedError
from ztdpu.policy.load import Known, load_directory, load_files, read_strict

EXAMPLE = Path(__file__).parents[2] / "policies"


def refusal(repository: Path, old: str, new: str) -> PolicyError:
    """Replace one thing in the good repository and return the last fault on the first line that has any."""
    file = repository / "cluster.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(PolicyRefusedError) as caught:
        load_directory(repository)
    lines = {fault.where.line for fault in caught.value.faults if fault.where}
    assert len(lines) == 1, str(caught.value)
    return caught.value.faults[-1]


def test_the_example_repository_loads() -> None:
    cluster = load_directory(EXAMPLE)
    assert set(cluster.devices) == {"dpu-0", "dpu-1"}
    assert set(cluster.endpoints) == {"blue-0", "blue-1", "red-0", "red-1", "green-0"}
    assert cluster.endpoint("blue-0").addresses == cluster.endpoint("red-0").addresses, "overlap is the point"
    assert not set(cluster.endpoint("green-0").addresses) & set(cluster.endpoint("blue-0").addresses)


def test_the_good_repository_loads(repository: Path) -> None:
    cluster = load_directory(repository)
    assert cluster.tenants_on("dpu-0") == ("blue", "red")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("profile:", "profil:", "did you mean 'profile'"),
        ("kind: Tenant", "kind: Tenent", "did you mean 'Tenant'"),
        ("kind: Tenant", "kind: Fence", "not one that is enforced"),
        ("ztdpu.dev/v1", "ztdpu.dev/v2", "apiVersion 'ztdpu.dev/v2' is not known"),
        ("address: 10.90.0.11", "address: 10.90.0.10", "belongs to 'dpu-0' already"),
        ("address: 10.90.0.10", "address: 224.0.0.1", "not a usable host address"),
        ("address: 10.90.0.10", "address: 127.0.0.1", "not a usable host address"),
        ("address: 10.90.0.10", "address: 10.90.0.256", "spec.underlay.address"),
        ("address: 10.90.0.10", "address: 12", "as text"),
        ("device: dpu-1, addresses: [10.1.0.12]", "device: dpu-9, addresses: [10.1.0.12]", "no Device 'dpu-9'"),
        ("{tenant: red, device: dpu-1", "{tenant: pink, device: dpu-1", "no Tenant 'pink'"),
        ("[10.1.0.12]", "[10.1.0.10]", "belongs to 'red-0' already"),
        ("[10.1.0.12]", "[]", "at least 1 item"),
        ("endPort: 5009", "endPort: 4999", "not larger"),
        ("port: 5000,", "port: 70000,", "a number from 1 to 65535 is wanted"),
        ("port: 5000,", "port: '5000',", "a number from 1 to 65535 is wanted"),
        ("port: 5000,", "port: true,", "a number from 1 to 65535 is wanted"),
        ("{protocol: ICMP}", "{protocol: ICMP, port: 3}", "ICMP has no ports"),
        ("{protocol: ICMP}", "{protocol: SCTP}", "'TCP', 'UDP' or 'ICMP'"),
        ("[{endpointSelector: {}}]", "[{}]", "exactly one of"),
        ("[{endpointSelector: {}}]", "[{ipBlock: {cidr: 10.1.0.1/8}}]", "host bits set"),
        ("[{endpointSelector: {}}]", "[{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]", "does not lie inside"),
        ("name: blue-1,", "name: Blue_1,", "lower-case"),
        ("role: worker}", "'ro le': worker}", "not a label key"),
        ("name: blue-1,", "name: blue-0,", "is there twice"),
    ],
)
def test_one_fault_one_line(repository: Path, old: str, new: str, message: str) -> None:
    line = (repository / "cluster.yaml").read_text().split(old)[0].count("\n") + 1
    fault = refusal(repository, old, new)
    assert message in fault.message
    assert fault.where is not None
    assert fault.where.file == str(repository / "cluster.yaml")
    assert abs(fault.where.line - line) <= 1, f"{fault.where} for a change in line {line}"


REFERENCES = """\
apiVersion: ztdpu.dev/v1
kind: ReferenceValues
metadata: {name: shipped}
spec:
  profile: bluefield-3
  measurements:
    - {index: 3, component: nic-firmware, digests: [DIGEST]}
  fwids:
    - {level: 4, component: layer, digests: [DIGEST]}
    - {level: 5, component: alias, digests: [DIGEST]}
  minimumVersions:
    - {component: version, version: "24.41.1000"}
    - {component: nic-rollback-counters, version: "1"}
""".replace("DIGEST", "a" * 96)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"24.41.1000"', '"24.041.1000"', "no version"),
        ('"24.41.1000"', '"1.2.3.4.5"', "no version"),
        ('"24.41.1000"', '"18446744073709551616"', "64 bits"),
        ("index: 3", "index: 200", "bluefield-3 has no index 200"),
        ("level: 5", "level: 4", "level 4 is there twice"),
        ("level: 5", "level: 3", "bluefield-3 has no level 3"),
        ("component: nic-rollback-counters", "component: version", "component version is there twice"),
        ("component: nic-rollback-counters", "component: nic-firmware", "bluefield-3 has no component nic-firmware"),
        ("profile: bluefield-3", "profile: bluefield-9", "no profile `bluefield-9`"),
    ],
)
def test_reference_values_that_nothing_could_be_compared_with(
    repository: Path, old: str, new: str, message: str
) -> None:
    file = repository / "references.yaml"
    file.write_text(REFERENCES)
    assert load_directory(repository).reference_values["shipped"].spec.minimum_versions[0].version == "24.41.1000"
    assert REFERENCES.count(old) == 1
    file.write_text(REFERENCES.replace(old, new))
    with pytest.raises(PolicyRefusedError) as caught:
        load_directory(repository)
    (fault,) = caught.value.faults
    assert message in fault.message
    assert fault.where is not None
    assert fault.where.file == str(file)
    assert fault.where.line == REFERENCES.split(old)[0].count("\n") + 1


def test_every_fault_is_told_at_once(repository: Path) -> None:
    file = repository / "cluster.yaml"
    file.write_text(file.read_text().replace("profile:", "profil:").replace("port: 5000", "port: 0"))
    (repository / "second.yaml").write_text("kind: [")
    with pytest.raises(PolicyRefusedError) as caught:
        load_directory(repository)
    assert len(caught.value.faults) == 7, "two devices twice (unknown and missing), two ports, one broken file"


def test_symbolic_links_and_foreign_bytes_are_refused(repository: Path) -> None:
    (repository / "link.yaml").symlink_to("cluster.yaml")
    (repository / "latin.yaml").write_bytes(b"a: \xe9\n")
    (repository / ".hidden.yaml").write_text("not: [read")
    (repository / "README").symlink_to("cluster.yaml")
    with pytest.raises(PolicyRefusedError) as caught:
        load_directory(repository)
    assert [fault.message for fault in caught.value.faults] == ["not UTF-8 text", "symbolic links are refused"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such directory"):
        load_directory(tmp_path / "nowhere")


def test_a_file_and_a_directory_without_documents_are_named(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyPathError, match="is a file") as caught:
        load_directory(repository / "cluster.yaml")
    assert caught.value.remedy.endswith(str(repository))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(PolicyPathError, match=f"no policy documents in {empty}"):
        load_directory(empty)
    (empty / "comment.yaml").write_text("# nothing yet\n")
    with pytest.raises(PolicyPathError, match="no policy documents"):
        load_directory(empty)


def test_files_without_documents_are_noted(repository: Path) -> None:
    (repository / "later.yaml").write_text("# nothing yet\n---\n")
    assert load_directory(repository).empty_files == (str(repository / "later.yaml"),)


def test_a_key_that_is_there_twice_hides_nothing_else(repository: Path) -> None:
    file = repository / "cluster.yaml"
    text = file.read_text().replace("profile: bluefield-3,", "profile: bluefield-3, profile: x, profil: y,", 1)
    file.write_text(text.replace("port: 5000, endPort: 5009", "port: 0x10"))
    with pytest.raises(PolicyRefusedError) as caught:
        load_directory(repository)
    messages = [fault.message for fault in caught.value.faults]
    assert "key 'profile' is there twice; first in line 4" in messages
    assert any("did you mean 'profile'" in message for message in messages)
    assert any("'0x10' can be read in more than one way" in message for message in messages)


class _StartUp(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    device: str
    interval: int = 10


def test_start_up_files(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("device: dpu-0\n")
    assert read_strict(file, _StartUp).interval == 10
    file.write_text("device: dpu-0\nintervall: 3\n")
    with pytest.raises(ConfigurationError, match="did you mean 'interval'") as caught:
        read_strict(file, _StartUp)
    assert str(caught.value.where) == f"{file}:2:1"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_strict(tmp_path / "none.yaml", _StartUp)


def test_files_read_before_have_their_own_places(tmp_path: Path) -> None:
    """`policy diff` reads most files twice: the second reading is the first, but for where things stand."""
    text = "apiVersion: ztdpu.dev/v1\nkind: Tenant\nmetadata: {name: red}\n"
    bad = text.replace("red", "Red")
    known: Known = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tenant.yaml").write_text(text)
        cluster = load_directory(tmp_path / name, known=known)
        assert cluster.locate("Tenant", "red", ("metadata", "name")).file == str(tmp_path / name / "tenant.yaml")
    assert set(known) == {text}
    for _ in range(2):
        with pytest.raises(PolicyRefusedError):
            load_files({"bad.yaml": bad.encode()}, origin="three", known=known)
    with pytest.raises(PolicyRefusedError, match=r"is there twice; first at a\.yaml:3:12"):
        load_files({"a.yaml": text.encode(), "b.yaml": text.encode()}, origin="four", known=known)
