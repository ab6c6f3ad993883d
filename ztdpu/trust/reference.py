"""Reference values and appraisal policy as appraisal takes them: plain values, each with the place it came from.

`ztdpu.policy` builds them from documents, tests by hand; `ztdpu.trust.appraise` compares against them. This module
never reads a file and never judges a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ztdpu.errors import Location, PolicyError
from ztdpu.model.attestation import Tier

Version = tuple[int, ...]
"""(major, minor, patch) of a firmware version, or (svn,) of a security version number; compared as tuples."""

_DIGEST = re.compile(r"(?:[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})")
_VERSION_PART_LIMIT = 2**64
_VERSION_PARTS = 4

EXECUTABLES_UNRECOGNIZED = 33
EXECUTABLES_CONTRAINDICATED = 96


class DebugState(StrEnum):
    """Debug state in the words of EAT `dbgstat` (RFC 9711 section 4.2.9)."""

    DISABLED_SINCE_BOOT = "disabled-since-boot"
    DISABLED = "disabled"
    """Off now, but it was on since this boot."""
    ENABLED = "enabled"


class OperationalMode(StrEnum):
    """Operational mode of a device (DSP0274, device mode measurement)."""

    NORMAL = "normal"
    RECOVERY = "recovery"
    MANUFACTURING = "manufacturing"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDigests:
    """What one measurement index, or one firmware identity, may be."""

    component: str
    """For people: `nic-firmware`, `arm-firmware`."""
    digests: tuple[str, ...]
    """Approved, lower-case hex."""
    vulnerable_digests: tuple[str, ...] = ()
    """Approved once, with known vulnerabilities since: accepted as a warning."""
    source: Location

    def __post_init__(self) -> None:
        for digest in (*self.digests, *self.vulnerable_digests):
            if not _DIGEST.fullmatch(digest):
                raise PolicyError(
                    f"{self.component}: {digest[:140]!r} is not a digest",
                    remedy="write 64, 96 or 128 lower-case hexadecimal digits",
                    where=self.source,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumVersion:
    """The lowest version of one component that is accepted."""

    minimum: Version
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues:
    """All that devices of one profile may show. An index that is not named here is not judged."""

    name: str
    """Of the document."""
    profile: str
    """Profile name: `bluefield-3`."""
    measurements: Mapping[int, AllowedDigests] = field(default_factory=dict)
    """By SPDM measurement index. An index named here and absent from the evidence is a finding."""
    fwids: Mapping[int, AllowedDigests] = field(default_factory=dict)
    """By chain level as the profile counts it: firmware identities in the device's certificates."""
    minimum_versions: Mapping[str, MinimumVersion] = field(default_factory=dict)
    """By component name of the profile."""
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalPolicy:
    """How findings are weighed, and which tiers may hold keys."""

    name: str
    """Of the document; it stands in the attestation result."""
    maximum_evidence_age_s: int = 60
    """Evidence older than this is appraised as a failing state of its own."""
    allowed_debug_states: frozenset[DebugState] = frozenset({DebugState.DISABLED_SINCE_BOOT})
    allowed_modes: frozenset[OperationalMode] = frozenset({OperationalMode.NORMAL})
    unrecognized_executables: int = EXECUTABLES_CONTRAINDICATED
    """AR4SI claim of firmware that no reference names. A DPU is a closed appliance, so 96 by default: a policy that
    leases the warning tier means known vulnerabilities, not unknown firmware. 33 makes it a warning."""
    lease_tiers: frozenset[Tier] = frozenset({Tier.AFFIRMING})
    """Tiers that get a lease; `contraindicated` and `none` are refused here."""
    source: Location

    def __post_init__(self) -> None:
        if not self.lease_tiers <= {Tier.AFFIRMING, Tier.WARNING}:
            raise PolicyError(
                "only the tiers affirming and warning can hold a lease",
                remedy="name `affirming`, or `affirming` and `warning`",
                where=self.source,
            )
        if self.unrecognized_executables not in (EXECUTABLES_UNRECOGNIZED, EXECUTABLES_CONTRAINDICATED):
            raise PolicyError(
                "unrecognized executables are claim 33 (warning) or 96 (contraindicated)", where=self.source
            )
        if self.maximum_evidence_age_s < 1:
            raise PolicyError("the maximum age of evidence is at least 1 s", where=self.source)


def parse_version(text: str) -> Version:
    """Read `24.41.1000` or a bare security version number `7`; ValueError when it is neither."""
    parts = text.split(".")
    if len(parts) > _VERSION_PARTS or not all(re.fullmatch(r"0|[1-9][0-9]{0,19}", part) for part in parts):
        raise ValueError(f"{text[:40]!r} is no version: write up to four numbers with dots between them")
    numbers = tuple(int(part) for part in parts)
    if max(numbers) >= _VERSION_PART_LIMIT:
        raise ValueError(f"{text[:40]!r} does not fit in 64 bits")
    return numbers


def format_version(version: Version) -> str:
    """The text that `parse_version` reads."""
    return ".".join(map(str, version))
