"""owners.yaml: which rule decides, who may change what, and whose documents may stand where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import CommitContentError, CommitOwnerError
from ztdpu.policy.git.owners import Rule, parse_owners
from ztdpu.policy.load import load_files

HEAD = "apiVersion: ztdpu.dev/v1\nkind: Owners\nspec:\n  rules:\n"
TEXT = HEAD + (
    '    - {path: "**", principals: [ops]}\n'
    '    - {path: "*/red.yaml", principals: [rita], tenants: [red]}\n'
    "    - {path: network/red.yaml, principals: [rita, ops], tenants: [red]}\n"
)
V = "apiVersion: ztdpu.dev/v1\n"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.yaml", ["a.yaml"], ["b/a.yaml", "a.yamlx", "axyaml"]),
        ("a/", ["a/b", "a/b/c"], ["a", "ab/c", "b/a/c"]),
        ("a/*", ["a/b"], ["a/b/c", "a", "x/a/b"]),
        ("*/a.yaml", ["x/a.yaml"], ["a.yaml", "x/y/a.yaml"]),
        ("**/a.yaml", ["x/a.yaml", "x/y/a.yaml"], ["a.yaml"]),
        ("**", ["a", "a/b/c", "owners.yaml"], []),
        ("a*b.yaml", ["ab.yaml", "axxb.yaml"], ["a/b.yaml"]),
        ("a+(b).yaml", ["a+(b).yaml"], ["aab.yaml"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    rule = Rule(path=pattern, principals=("x",))
    assert [path for path in yes + no if rule.matches(path)] == yes


def test_the_last_rule_that_matches_decides() -> None:
    owners = parse_owners(TEXT, file="owners.yaml")
    for path, principal in (
        ("x", "ops"),
        ("tenants/red.yaml", "rita"),
        ("network/red.yaml", "ops"),
        ("a/b/red.yaml", "ops"),
    ):
        owners.require_owner(path, frozenset({principal, "somebody"}))
    for path, principal in (("tenants/red.yaml", "ops"), ("tenants/blue.yaml", "rita"), ("red.yaml", "rita")):
        with pytest.raises(CommitOwnerError, match=path):
            owners.require_owner(path, frozenset({principal}))


def test_a_path_without_a_rule_is_nobodys() -> None:
    owners = parse_owners(HEAD + "    - {path: a/, principals: [ops]}\n", file="owners.yaml")
    with pytest.raises(CommitOwnerError, match="nobody"):
        owners.require_owner("b", frozenset({"ops"}))


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        (TEXT.replace("principals: [rita]", "principal: [rita]"), "owners.yaml:6", "unknown field; did you mean"),
        (TEXT.replace("[rita]", "[]"), "owners.yaml:6", "at least 1"),
        (TEXT.replace("kind: Owners", "kind: Owner"), "owners.yaml:2", "Owners"),
        (TEXT.replace('"**"', '"/etc"'), "owners.yaml:5", "from the root"),
        (TEXT.replace('"**"', '"a?"'), "owners.yaml:5", "only \\* and"),
        (TEXT.replace('"**"', '"*a*a*a*a*a"'), "owners.yaml:5", "stars"),
        (TEXT.replace("rules:", "rules: &x"), "owners.yaml:4", "anchors"),
        (TEXT + "---\n" + TEXT, "owners.yaml:1", "one document"),
        (HEAD.replace("  rules:\n", "  rules: []\n"), "owners.yaml:4", "at least 1"),
        ("", "owners.yaml:1", "one document"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, where: str, words: str) -> None:
    with pytest.raises(CommitContentError, match=words) as refused:
        parse_owners(text, file="owners.yaml")
    assert str(refused.value.where).startswith(where)


DOCUMENTS = {
    "devices.yaml": f"{V}kind: Device\nmetadata: {{name: dpu-0}}\n"
    "spec: {profile: bluefield-3, underlay: {address: 10.90.0.10}}\n",
    "tenants/red.yaml": f"{V}kind: Tenant\nmetadata: {{name: red}}\n",
    "tenants/blue.yaml": f"{V}kind: Tenant\nmetadata: {{name: blue}}\n",
    "endpoints/all.yaml": f"{V}kind: Endpoint\nmetadata: {{name: red-0}}\n"
    f"spec: {{tenant: red, device: dpu-0, addresses: [10.0.0.1]}}\n---\n{V}kind: Endpoint\nmetadata: {{name: blue-0}}\n"
    "spec: {tenant: blue, device: dpu-0, addresses: [10.0.0.1]}\n",
}
POLICY = f"{V}kind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {{tenant: TENANT, policyTypes: [Ingress], endpointSelector: {{}}}}\n"
TEST = (
    f"{V}kind: PolicyTest\nmetadata: {{name: t}}\nspec: {{flows: [{{from: FROM, to: TO, port: any, expect: drop}}]}}\n"
)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (POLICY.replace("TENANT", "red"), True),
        (POLICY.replace("TENANT", "blue"), False),
        (f"{V}kind: Tenant\nmetadata: {{name: green}}\n", False),
        (
            f"{V}kind: Endpoint\nmetadata: {{name: e}}\nspec: {{tenant: red, device: dpu-0, addresses: [10.0.0.9]}}\n",
            True,
        ),
        (
            f"{V}kind: Endpoint\nmetadata: {{name: e}}\nspec: {{tenant: blue, device: dpu-0, addresses: [10.0.0.9]}}\n",
            False,
        ),
        (DOCUMENTS["devices.yaml"].replace("dpu-0", "dpu-9").replace("0.10", "0.19"), False),
        (TEST.replace("FROM", "red-0").replace("TO", "blue-0"), True),
        (TEST.replace("FROM", "blue-0").replace("TO", "blue-0"), False),
        (f"{V}kind: RoleBinding\nmetadata: {{name: r}}\nspec: {{role: auditor, spiffeId: 'spiffe://t/a'}}\n", False),
    ],
)
def test_a_tenants_file_holds_that_tenants_documents_only(text: str, fine: bool) -> None:
    owners = parse_owners(TEXT, file="owners.yaml")
    cluster = load_files(DOCUMENTS_AS_OCTETS | {"network/red.yaml": text.encode()}, origin="here")
    faults = owners.check_tenants(cluster)
    assert bool(faults) is not fine
    assert all(fault.where is not None and fault.where.file == "network/red.yaml" for fault in faults)


DOCUMENTS_AS_OCTETS = {path: text.encode() for path, text in DOCUMENTS.items()}


@given(st.text(alphabet=st.sampled_from("a*/.b"), min_size=1, max_size=12), st.text(alphabet="ab/.", max_size=60))
def test_patterns_end_in_time(pattern: str, path: str) -> None:
    try:
        rule = Rule(path=pattern, principals=("x",))
    except ValueError:
        return
    rule.matches(path)
