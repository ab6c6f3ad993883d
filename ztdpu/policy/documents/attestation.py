"""ReferenceValues and AppraisalPolicy: what evidence is compared with, and what else is asked of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ztdpu.policy.documents.base import DigestHex, Document, Name, Part, VersionText


class ReferenceMeasurement(Part):
    """What one measurement index may show."""

    index: Annotated[int, Field(ge=1, le=254)]
    component: Name
    digests: Annotated[list[DigestHex], Field(min_length=1, max_length=64)]
    vulnerable_digests: Annotated[list[DigestHex], Field(max_length=64)] = Field(default_factory=list)
    """Good once, with known vulnerabilities since: the warning tier."""


class ReferenceFwid(Part):
    """What one firmware identifier of the certificate chain may be."""

    level: Annotated[int, Field(ge=0, le=15)]
    component: Name
    digests: Annotated[list[DigestHex], Field(min_length=1, max_length=64)]
    vulnerable_digests: Annotated[list[DigestHex], Field(max_length=64)] = Field(default_factory=list)
    """Good once, with known vulnerabilities since: the warning tier."""


class MinimumVersion(Part):
    """The oldest version of a component that is still good."""

    component: Name
    version: VersionText


class ReferenceValuesSpec(Part):
    """Known good values for one profile."""

    profile: Name
    measurements: list[ReferenceMeasurement] = Field(default_factory=list)
    fwids: list[ReferenceFwid] = Field(default_factory=list)
    minimum_versions: list[MinimumVersion] = Field(default_factory=list)


class ReferenceValues(Document):
    """Known good values for one profile, from whoever built the firmware."""

    KIND = "ReferenceValues"
    spec: ReferenceValuesSpec


class AppraisalPolicySpec(Part):
    """What is asked of evidence beyond the reference values."""

    allow_debug: bool = False
    allowed_modes: Annotated[list[Literal["normal", "recovery"]], Field(min_length=1)] = Field(default=["normal"])
    """Operational modes that a device may be in; what else it says is contraindicated."""
    allowed_tiers: Annotated[list[Literal["affirming", "warning"]], Field(min_length=1)] = Field(default=["affirming"])
    maximum_evidence_age_s: Annotated[int, Field(ge=2, le=3600)] = 60


class AppraisalPolicy(Document):
    """Appraisal policy for evidence (RFC 9334)."""

    KIND = "AppraisalPolicy"
    spec: AppraisalPolicySpec
