"""Appraisal words: AR4SI tiers and dimensions, findings (draft-ietf-rats-ar4si, draft-ietf-rats-ear)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """Trust tiers with their numbers on the wire."""

    NONE = 0
    AFFIRMING = 2
    WARNING = 32
    CONTRAINDICATED = 96

    @property
    def word(self) -> str:
        """The lower-case word that documents and displays use."""
        return self.name.lower()


class Dimension(StrEnum):
    """Claims of the trustworthiness vector."""

    INSTANCE_IDENTITY = "instance-identity"
    CONFIGURATION = "configuration"
    EXECUTABLES = "executables"
    FILE_SYSTEM = "file-system"
    HARDWARE = "hardware"
    RUNTIME_OPAQUE = "runtime-opaque"
    STORAGE_OPAQUE = "storage-opaque"
    SOURCED_DATA = "sourced-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference between what a device showed and what was expected. All are returned, never the first alone."""

    code: str
    """Stable word, e.g. `measurement_unexpected`, `version_below_minimum`, `debug_enabled`."""
    dimension: Dimension
    claim: int
    """AR4SI value that this finding puts into the dimension."""
    message: str
    """For people: what and where."""
    index: int | None = None
    """SPDM measurement index, where there is one."""
    component: str = ""
    expected: tuple[str, ...] = ()
    """The allowed set, printable."""
    seen: str = ""
    source: str = ""
    """Document that expected it: `file:line:column`, or a certificate's subject."""


class CheckResult(StrEnum):
    """How one measurement stands against what was expected of it."""

    EXPECTED = "as expected"
    VULNERABLE = "known vulnerabilities"
    UNEXPECTED = "unexpected"
    MISSING = "missing"
    UNJUDGED = "not judged"
    """The device shows it and no reference value, minimum version or policy speaks of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the table that an appraisal makes of all measurements, good ones too."""

    place: str
    """`2` for SPDM measurement index 2, `level 4` for the firmware identity of a certificate."""
    component: str
    dimension: Dimension
    result: CheckResult
    expected: tuple[str, ...] = ()
    seen: str = ""
    source: str = ""
    """Document that expected it: `file:line:column`; empty for what is not judged."""
