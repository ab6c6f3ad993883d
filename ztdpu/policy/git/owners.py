"""`owners.yaml` at the root of a policy repository: who may change which path.

    apiVersion: ztdpu.dev/v1
    kind: Owners
    spec:
      rules:
        - {path: "**", principals: [ops@example.org]}
        - {path: "*/red.yaml", principals: [rita@example.org], tenants: [red]}

The last rule that matches a path decides; a path without one belongs to nobody. `*` stands for anything within a
folder, `**` for anything, a path that ends in `/` for all below it. Files of a rule with `tenants` may hold documents
of these tenants only: else whoever owns a file could write another tenant's policy into it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ztdpu.errors import CommitContentError, CommitOwnerError, Location, PolicyError
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.documents import Document
from ztdpu.policy.load import describe
from ztdpu.policy.yaml import parse

_STATED: Final = {"NetworkPolicy": "network_policies", "RoleBinding": "role_bindings"}
"""Kinds whose `spec.tenant` says whose they are, and where a cluster has them."""
_STARS_LIMIT: Final = 4


def _check_pattern(text: str) -> str:
    if text.startswith("/") or "\\" in text or not text.isprintable():
        raise ValueError("write paths as git does: from the root, without a leading /")
    if len(re.findall(r"\*+", text)) > _STARS_LIMIT:
        raise ValueError(f"more than {_STARS_LIMIT} stars")
    if re.search(r"\*{3}|[?\[\]{}!]", text):
        raise ValueError("only * and ** are patterns")
    return text


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Rule(_Section):
    """One row of the table."""

    path: Annotated[str, AfterValidator(_check_pattern)] = Field(min_length=1, max_length=512)
    principals: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    tenants: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=256)
    """Whose documents may stand there; absent: anybody's."""

    def matches(self, path: str) -> bool:
        """Whether the rule speaks about a path."""
        return _translate(self.path).fullmatch(path) is not None


class _Specification(_Section):
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=2000)]


class Owners(_Section):
    """The file as a whole."""

    api_version: Literal["ztdpu.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["Owners"]
    spec: _Specification

    def rule_for(self, path: str) -> Rule | None:
        """The last rule that matches."""
        return next((rule for rule in reversed(self.spec.rules) if rule.matches(path)), None)

    def require_owner(self, path: str, principals: frozenset[str]) -> None:
        """Let a change of a path through.

        Raises:
            CommitOwnerError: none of the principals owns it; says who does.

        """
        rule = self.rule_for(path)
        if rule is not None and principals & set(rule.principals):
            return
        owners = ", ".join(rule.principals) if rule else "nobody (no rule of owners.yaml matches it)"
        raise CommitOwnerError(
            f"{', '.join(sorted(principals))} does not own it; its owners: {owners}",
            remedy="have an owner sign the commit, or owners.yaml changed first",
            where=Location(file=path, line=0),
        )

    def check_tenants(self, cluster: Cluster, *, root: str = "") -> tuple[PolicyError, ...]:
        """Faults: documents that stand where a rule lets only other tenants' stand. `root` is before their paths."""
        faults = []
        for (kind, name), placed in cluster.placed.items():
            rule = self.rule_for(placed.file.removeprefix(root))
            if rule is None or rule.tenants is None:
                continue
            if not _is_theirs(cluster, kind, name, frozenset(rule.tenants)):
                faults.append(
                    PolicyError(
                        f"owners.yaml lets only documents of {', '.join(rule.tenants)} stand here: no such {kind}",
                        remedy="move it to a file of its own owner",
                        where=placed.locate(("metadata", "name")),
                    )
                )
        return tuple(faults)


def parse_owners(text: str, *, file: str) -> Owners:
    """Read the file.

    Raises:
        CommitContentError: not strict YAML, or not of that form; names every fault.

    """
    try:
        documents = parse(text, file=file)
        if len(documents) != 1:
            raise CommitContentError(
                f"one document is wanted, {len(documents)} are there", where=Location(file=file, line=1)
            )
        return Owners.model_validate(documents[0].value)
    except ValidationError as error:
        faults = [describe(detail, documents[0], Owners) for detail in error.errors()]
        more = "".join(f"\n{fault}" for fault in faults[1:])
        raise CommitContentError(faults[0].message + more, remedy=faults[0].remedy, where=faults[0].where) from None
    except PolicyError as error:
        raise CommitContentError(error.message, remedy=error.remedy, where=error.where) from None


def _is_theirs(cluster: Cluster, kind: str, name: str, tenants: frozenset[str]) -> bool:
    """Whether a document speaks for these tenants alone. A test does if each of its rows has one of them on a side."""
    if kind == "Tenant":
        return name in tenants
    if kind == "Endpoint":
        return cluster.endpoints[name].tenant in tenants
    if kind == "PolicyTest":
        spec = cluster.policy_tests[name].spec
        own = {one.name for one in cluster.endpoints.values() if one.tenant in tenants}
        return all({flow.from_, flow.to} & own for flow in spec.flows) and all(
            {pair.from_.tenant, pair.to.tenant} & tenants for pair in spec.pairs
        )
    if kind not in _STATED:
        return False
    document: Document = getattr(cluster, _STATED[kind])[name]
    tenant: str | None = document.spec.tenant  # type: ignore[attr-defined]
    return tenant in tenants


def _translate(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression without alternatives or nested repeats."""
    if pattern.endswith("/"):
        pattern += "**"
    parts = re.split(r"(\*\*|\*)", pattern)
    words = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
