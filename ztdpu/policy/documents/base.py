"""What all kinds are made of: names, addresses, digests, `Part` and `Document`."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from ztdpu.trust.reference import parse_version

API_VERSION = "ztdpu.dev/v1"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def is_name(value: str) -> bool:
    """Whether a document may have this name."""
    return bool(_NAME.fullmatch(value))


def _check_name(value: str) -> str:
    if not is_name(value):
        raise ValueError("a name has lower-case letters, digits and '-', at most 63 of them, no '-' at either end")
    return value


def _check_port_name(value: str) -> str:
    if not PORT_NAME.fullmatch(value) or not any(letter.isalpha() for letter in value):
        raise ValueError("a port's name has lower-case letters, digits and '-', a letter among them, at most 15")
    return value


def _check_hex_32(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("64 lower-case hexadecimal digits (SHA-256) are wanted")
    return value


def _check_digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}", value):
        raise ValueError("64, 96 or 128 lower-case hexadecimal digits are wanted")
    return value


_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
"""IPv4 in IPv6: no endpoint may have such an address, so a rule about them would look as if it did something."""
_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
_THIS_HOST = ipaddress.ip_network("127.0.0.0/16")


def _check_version(value: str) -> str:
    parse_version(value)
    return value


def check_label_key(value: str) -> str:
    """Raise ValueError for what no label can be called."""
    if not _LABEL_KEY.fullmatch(value):
        raise ValueError(f"{value!r} is not a label key")
    return value


def check_printable(value: str) -> str:
    """Raise ValueError for what would move the cursor of whoever reads it."""
    if not value.isprintable():
        raise ValueError("printable characters are wanted")
    return value


def _check_labels(value: dict[str, str]) -> dict[str, str]:
    for key, word in value.items():
        check_label_key(key)
        if not _LABEL_VALUE.fullmatch(word):
            raise ValueError(f"{word!r} is not a label value")
    return value


def _read_address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if not isinstance(value, str):
        raise ValueError("an address is wanted, as text")  # noqa: TRY004 (pydantic wants ValueError)
    address = ipaddress.ip_address(value)
    if address.is_multicast or address.is_unspecified or address.is_loopback or address.is_link_local:
        raise ValueError(f"{value} is not a usable host address")
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError(f"{value} is not a plain IPv6 address")
    return address


def _read_underlay_address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As any address, or one in 127.0.0.0/8 beyond those that mean "this host" everywhere: labs without privilege."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(value)
            if address in _LOOPBACK and address not in _THIS_HOST:
                return address
    return _read_address(value)


def _read_network(value: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if not isinstance(value, str):
        raise ValueError("a block such as 10.1.0.0/16 is wanted, as text")  # noqa: TRY004
    network = ipaddress.ip_network(value, strict=True)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        raise ValueError(f"{value} holds no endpoint: write the IPv4 block")
    return network


Name = Annotated[str, AfterValidator(_check_name)]
Sha256Hex = Annotated[str, AfterValidator(_check_hex_32)]
DigestHex = Annotated[str, AfterValidator(_check_digest)]
VersionText = Annotated[str, AfterValidator(_check_version)]
Labels = Annotated[dict[str, str], AfterValidator(_check_labels)]
PortName = Annotated[str, AfterValidator(_check_port_name), Field(pattern=f"^{PORT_NAME.pattern}$")]
Address = Annotated[Any, BeforeValidator(_read_address), WithJsonSchema({"type": "string"})]
UnderlayAddress = Annotated[Any, BeforeValidator(_read_underlay_address), WithJsonSchema({"type": "string"})]
AddressBlock = Annotated[Any, BeforeValidator(_read_network), WithJsonSchema({"type": "string"})]
Port = Annotated[int, Field(ge=1, le=65535)]


class Part(BaseModel):
    """Base of everything inside a document: strict, frozen, unknown fields refused, camelCase in files."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=False,
        use_attribute_docstrings=True,
    )


class Metadata(Part):
    """Name and labels."""

    name: Name
    labels: Labels = Field(default_factory=dict)


class Document(Part):
    """Base of all kinds."""

    KIND: ClassVar[str]

    api_version: Literal["ztdpu.dev/v1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name
