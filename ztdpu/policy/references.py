"""Documents to what appraisal takes: reference values and appraisal policies with their places.

Called by control whenever policy changes. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ztdpu.errors import Location, NotFoundError, PolicyError
from ztdpu.model.attestation import Tier
from ztdpu.policy import documents
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.yaml import Path
from ztdpu.trust import reference
from ztdpu.trust.reference import AllowedDigests, AppraisalPolicy, DebugState, OperationalMode, ReferenceValues


def reference_values_for(cluster: Cluster, profile: str) -> ReferenceValues:
    """Return the reference values of one profile.

    Raises NotFoundError when no document names the profile, PolicyError when two do: which of them would
    count must not be a matter of file names.
    """
    found = [document for document in cluster.reference_values.values() if document.spec.profile == profile]
    if not found:
        raise NotFoundError(
            f"no ReferenceValues for profile {profile!r}", remedy="add a ReferenceValues document for it"
        )
    if len(found) > 1:
        raise PolicyError(
            f"profile {profile!r} has reference values in {found[0].name!r} and {found[1].name!r}",
            remedy="merge the two documents",
            where=cluster.locate("ReferenceValues", found[1].name, ("spec", "profile")),
        )
    document = found[0]
    spec = document.spec
    return ReferenceValues(
        name=document.name,
        profile=profile,
        measurements={
            m.index: _allowed(cluster, document, m, ("spec", "measurements", i))
            for i, m in enumerate(spec.measurements)
        },
        fwids={f.level: _allowed(cluster, document, f, ("spec", "fwids", i)) for i, f in enumerate(spec.fwids)},
        minimum_versions={
            m.component: reference.MinimumVersion(
                minimum=reference.parse_version(m.version),
                source=cluster.locate("ReferenceValues", document.name, ("spec", "minimumVersions", i)),
            )
            for i, m in enumerate(spec.minimum_versions)
        },
        source=cluster.locate("ReferenceValues", document.name),
    )


def tenants_refusing(cluster: Cluster, tenants: Sequence[str], tier: Tier) -> tuple[str, ...]:
    """Those of `tenants` whose AppraisalPolicy, or the default in its place, gives `tier` no lease; by name."""
    return tuple(tenant for tenant in sorted(tenants) if tier not in tiers_of_tenant(cluster, tenant))


def tiers_of_tenant(cluster: Cluster, tenant: str) -> frozenset[Tier]:
    """Tiers in which a device may use the tenant's network; one without a policy of its own has the default."""
    name = cluster.tenants[tenant].spec.appraisal_policy
    spec = cluster.appraisal_policies[name].spec if name else documents.AppraisalPolicySpec.model_validate({})
    return frozenset(Tier[word.upper()] for word in spec.allowed_tiers)


def tiers_of_networks(cluster: Cluster) -> dict[str, frozenset[Tier]]:
    """The same by network: a Peering bears what both members bear."""
    tiers = {tenant: tiers_of_tenant(cluster, tenant) for tenant in cluster.tenants}
    for name, peering in cluster.peerings.items():
        tiers[name] = frozenset.intersection(*(tiers[member.tenant] for member in peering.spec.members))
    return tiers


def appraisal_policy_for(cluster: Cluster, tenants: Sequence[str]) -> AppraisalPolicy:
    """Return the strictest common policy of the tenants on a device: what one of them refuses is refused.

    A tenant without one of its own takes the defaults, which are the strictest. Tiers alone count per tenant: the
    device has a lease in those that any of them allows, and in each tier the networks that allow it.
    """
    wanted = [cluster.tenants[tenant].spec.appraisal_policy for tenant in tenants]
    names = sorted({name for name in wanted if name is not None})
    specs = [cluster.appraisal_policies[name].spec for name in names]
    if not specs or None in wanted:
        specs.append(documents.AppraisalPolicySpec.model_validate({}))
    debug = {DebugState.DISABLED_SINCE_BOOT}
    if all(spec.allow_debug for spec in specs):
        debug |= {DebugState.DISABLED, DebugState.ENABLED}
    tiers = set.union(*({Tier[word.upper()] for word in spec.allowed_tiers} for spec in specs))
    modes = set.intersection(*({OperationalMode(word) for word in spec.allowed_modes} for spec in specs))
    source = cluster.locate("AppraisalPolicy", names[0]) if names else _nowhere(cluster, tenants)
    return AppraisalPolicy(
        name="+".join(names) or "default",
        maximum_evidence_age_s=min(spec.maximum_evidence_age_s for spec in specs),
        allowed_debug_states=frozenset(debug),
        allowed_modes=frozenset(modes),
        lease_tiers=frozenset(tiers),
        source=source,
    )


def _allowed(
    cluster: Cluster,
    document: documents.ReferenceValues,
    item: documents.ReferenceMeasurement | documents.ReferenceFwid,
    path: Path,
) -> AllowedDigests:
    return AllowedDigests(
        component=item.component,
        digests=tuple(item.digests),
        vulnerable_digests=tuple(item.vulnerable_digests),
        source=cluster.locate("ReferenceValues", document.name, path),
    )


def _nowhere(cluster: Cluster, tenants: Sequence[str]) -> Location:
    if tenants:
        return cluster.locate("Tenant", tenants[0])
    return Location(file="(default appraisal policy)", line=0)
