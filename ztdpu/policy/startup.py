"""Values that the start-up files of control and agent share, each checked in one place.

Used by `control.configuration` and `agent.configuration`. Pure.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Final

from pydantic import AfterValidator, Field

TRUST_DOMAIN_PATTERN: Final = r"^[a-z0-9]([a-z0-9._-]{0,253}[a-z0-9])?$"
UNDERLAY_MTU_OCTETS: Final = 9000


def _check_listener(text: str) -> str:
    """Accept `192.0.2.1:7401` and `[2001:db8::1]:7401`; names are refused, since resolving them trusts a resolver."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("expected ADDRESS:PORT, such as 10.91.0.1:7401 or [fd00::1]:7401")
    bracketed = host.startswith("[") and host.endswith("]")
    address = ip_address(host[1:-1] if bracketed else host)
    if bracketed != (address.version == 6):
        raise ValueError("write an IPv6 address in brackets, such as [fd00::1]:7401, and an IPv4 address without")
    return text


def _check_address_and_port(text: str) -> str:
    if _check_listener(text).rpartition(":")[2].strip("0") == "":
        raise ValueError("port 0 is nowhere: write the port that is listened on")
    return text


TrustDomain = Annotated[str, Field(pattern=TRUST_DOMAIN_PATTERN)]
AddressAndPort = Annotated[str, AfterValidator(_check_address_and_port)]
"""Where somebody listens."""
Listener = Annotated[str, AfterValidator(_check_listener)]
"""Where to listen; port 0 takes any free one."""
UnderlayMtu = Annotated[int, Field(ge=1280, le=65535)]
"""Octets."""
