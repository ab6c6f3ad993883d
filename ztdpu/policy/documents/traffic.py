"""What policies about traffic are made of: selectors, address blocks, ports."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from ztdpu.policy.documents.base import PORT_NAME, AddressBlock, Labels, Part, Port, PortName, check_label_key

COLLECTIVE: Final = "collective"
"""The port name that every endpoint has: where reducers meet."""
COLLECTIVE_PORT: Final = 1000
"""TCP (protocols.md 6)."""


class LabelRequirement(Part):
    """One row of `matchExpressions`."""

    key: Annotated[str, AfterValidator(check_label_key)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _values_fit(self) -> LabelRequirement:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"operator {self.operator} {'wants' if not self.values else 'takes no'} values")
        return self


class Selector(Part):
    """Labels to match; an empty one matches everything."""

    match_labels: Labels = Field(default_factory=dict)
    match_expressions: list[LabelRequirement] = Field(default_factory=list)


class AddressRange(Part):
    """A block of overlay addresses, with holes."""

    cidr: AddressBlock
    except_: list[AddressBlock] = Field(default_factory=list, alias="except")

    @model_validator(mode="after")
    def _holes_inside(self) -> AddressRange:
        for hole in self.except_:
            if hole.version != self.cidr.version or not hole.subnet_of(self.cidr):
                raise ValueError(f"except {hole} does not lie inside {self.cidr}")
        return self


def _read_port(value: Any) -> int | str:
    """A number from 1 to 65535, or the name of a port."""
    if isinstance(value, str):
        if not PORT_NAME.fullmatch(value) or not any(letter.isalpha() for letter in value):
            raise ValueError("a number from 1 to 65535 is wanted (unquoted), or the name of a port")
        return value
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError("a number from 1 to 65535 is wanted, or the name of a port")
    return value


PortOrName = Annotated[
    Any,
    BeforeValidator(_read_port),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": f"^{PORT_NAME.pattern}$"},
            ]
        }
    ),
]
"""What a rule may write after `port:`."""


class PortRange(Part):
    """Protocol and destination ports; ICMP stands for both versions of it and takes no port."""

    protocol: Literal["TCP", "UDP", "ICMP"] = "TCP"
    port: PortOrName | None = None
    end_port: Port | None = None

    @model_validator(mode="after")
    def _range_fits(self) -> PortRange:
        if self.protocol == "ICMP" and self.port is not None:
            raise ValueError("ICMP has no ports")
        if self.end_port is not None and isinstance(self.port, str):
            raise ValueError("endPort wants a number as port, not a name")
        if self.end_port is not None and (self.port is None or self.end_port < self.port):
            raise ValueError("endPort wants a port that is not larger than it")
        if self.port == COLLECTIVE and self.protocol != "TCP":
            raise ValueError(f"port {COLLECTIVE!r} is TCP")
        return self


class NamedPort(Part):
    """A name that policies may write instead of a number."""

    name: PortName
    protocol: Literal["TCP", "UDP"] = "TCP"
    port: Port

    @model_validator(mode="after")
    def _not_reserved(self) -> NamedPort:
        if self.name == COLLECTIVE:
            raise ValueError(f"{COLLECTIVE!r} is reserved: it is TCP {COLLECTIVE_PORT} everywhere")
        return self


def check_port_names(ports: list[NamedPort]) -> list[NamedPort]:
    """Each (name, protocol) once. Raises ValueError."""
    seen = [(one.name, one.protocol) for one in ports]
    for index, one in enumerate(seen):
        if one in seen[:index]:
            raise ValueError(f"port name {one[0]!r} is there twice for {one[1]}")
    return ports
