"""SPIFFE IDs: the one spelling that ztdpu reads and writes (SPIFFE-ID section 2).

Used by `authority`, which issues them, and `svid`, which verifies them. Knows nothing of certificates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import SvidError

CONTROL_PATH: Final = "/control"
ID_LIMIT_OCTETS: Final = 2048
TRUST_DOMAIN_LIMIT_OCTETS: Final = 255

_TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]+")
_SEGMENT: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiffeId:
    """`spiffe://trust_domain/path`, in its one spelling."""

    trust_domain: str
    path: str
    """Empty for the trust domain itself, else with its leading slash."""

    def __str__(self) -> str:
        return f"spiffe://{self.trust_domain}{self.path}"


def check_trust_domain(name: str) -> None:
    """Refuse what is no trust domain name (SPIFFE-ID section 2.1).

    Raises:
        SvidError: empty, longer than 255 octets, or a character outside [a-z0-9.-_].

    """
    if len(name) > TRUST_DOMAIN_LIMIT_OCTETS or not _TRUST_DOMAIN.fullmatch(name):
        raise SvidError(
            f"{name[:64]!r} is not a trust domain",
            remedy="use lower-case letters, digits, dots, dashes and underscores, at most 255",
        )


def parse_spiffe_id(text: str) -> SpiffeId:
    """Read a SPIFFE ID (SPIFFE-ID section 2). An upper-case scheme or domain is refused, so there is one spelling.

    Raises:
        SvidError: another scheme, user, port, query, fragment, per cent signs, empty or dotted segments, too long.

    """
    prefix = "spiffe://"
    if len(text) > ID_LIMIT_OCTETS or not text.startswith(prefix):
        raise SvidError(f"{text[:64]!r} is not a SPIFFE ID")
    trust_domain, slash, path = text[len(prefix) :].partition("/")
    check_trust_domain(trust_domain)
    if slash:
        check_path(f"/{path}")
    return SpiffeId(trust_domain=trust_domain, path=f"/{path}" if slash else "")


def check_path(path: str) -> None:
    """Refuse what is no path of a workload (SPIFFE-ID section 2.2).

    Raises:
        SvidError: no leading slash, an empty segment, `.` or `..`, or a character outside [a-zA-Z0-9.-_].

    """
    first, *segments = path.split("/")
    if first or not segments:
        raise SvidError("the path of a SPIFFE ID begins with a slash")
    for segment in segments:
        if segment in {".", ".."} or not _SEGMENT.fullmatch(segment):
            raise SvidError(f"{segment[:64]!r} is not a path segment of a SPIFFE ID")


def control_dns_name(trust_domain: str) -> str:
    """The name that gRPC clients check in control's certificate."""
    return f"control.{trust_domain}"
