"""PolicyTest: what must and what must not flow, checked before policy is put in force."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ztdpu.model.verdict import Reason
from ztdpu.policy.documents.base import Document, Name, Part
from ztdpu.policy.documents.traffic import Selector

_PORTS = re.compile(r"any|icmp|(any|([0-9]{1,5})(-([0-9]{1,5}))?)/(tcp|udp)")


def _check_ports(text: str) -> str:
    found = _PORTS.fullmatch(text)
    if not found:
        raise ValueError("write 22/tcp, 5000-5010/udp, any/tcp, icmp or any")
    first, last = found[2], found[4] or found[2]
    if first is not None and not 1 <= int(first) <= int(last) <= 65535:
        raise ValueError("ports go from 1 to 65535, the lower one first")
    return text


PortsText = Annotated[str, AfterValidator(_check_ports), Field(pattern=f"^({_PORTS.pattern})$")]
Expectation = Literal["allow", "drop"]
ReasonWord = Literal["rule_allowed", "no_rule", "rule_denied", "no_route"]
assert {Reason(word) for word in ReasonWord.__args__}  # type: ignore[attr-defined]


class TestFlow(Part):
    """One flow."""

    __test__ = False

    from_: Name = Field(alias="from")
    """Endpoint that opens it."""
    to: str
    """Endpoint or overlay address."""
    port: PortsText
    """`22/tcp`, `5000-5010/udp`, `icmp`, `any/tcp` or `any`: all of it must be as expected."""
    expect: Expectation
    reason: ReasonWord | None = None
    """The reason there must be, too."""


class TestGroup(Part):
    """Endpoints: of a tenant, of all others, or everybody's; by label."""

    __test__ = False

    tenant: Name | None = None
    not_tenant: Name | None = None
    """Everybody else's endpoints."""
    endpoint_selector: Selector = Field(default_factory=Selector)

    @model_validator(mode="after")
    def _at_most_one(self) -> TestGroup:
        if self.tenant is not None and self.not_tenant is not None:
            raise ValueError("tenant or notTenant, not both")
        return self


class TestPairs(Part):
    """The same for every pair of two groups."""

    __test__ = False

    from_: TestGroup = Field(alias="from")
    to: TestGroup
    port: PortsText = "any"
    """As in `flows`."""
    expect: Expectation


class PolicyTestSpec(Part):
    """What must hold."""

    flows: list[TestFlow] = Field(default_factory=list)
    pairs: list[TestPairs] = Field(default_factory=list)
    """All pairs at once, such as "red reaches nothing outside red"."""

    @model_validator(mode="after")
    def _not_empty(self) -> PolicyTestSpec:
        if not self.flows and not self.pairs:
            raise ValueError("a test without flows and pairs tests nothing")
        return self


class PolicyTest(Document):
    """Run by `ztdpu policy test`, and before any change of policy is accepted."""

    KIND = "PolicyTest"
    spec: PolicyTestSpec
