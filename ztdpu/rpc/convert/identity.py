"""Identities and authorities, to and from messages."""

from __future__ import annotations

from ztdpu.model.identity import AuthorityRotation, Expiry, Identities, IdentityKind, IdentityStatus, TrustBundle
from ztdpu.v1 import identity_pb2


def identities_to_message(identities: Identities) -> identity_pb2.ListIdentitiesResponse:
    """Message for all of them."""
    return identity_pb2.ListIdentitiesResponse(
        trust_domain=identities.trust_domain,
        bundle_sequence=identities.bundle_sequence,
        identities=[_to_message(one) for one in identities.identities],
    )


def identities_from_message(message: identity_pb2.ListIdentitiesResponse) -> Identities:
    """What a message tells of."""
    return Identities(
        trust_domain=message.trust_domain,
        bundle_sequence=message.bundle_sequence,
        identities=tuple(_from_message(one) for one in message.identities),
    )


def _to_message(one: IdentityStatus) -> identity_pb2.Identity:
    return identity_pb2.Identity(
        kind=str(one.kind),
        spiffe_id=one.spiffe_id,
        state=one.state,
        serial=one.serial,
        spki_sha256=one.spki_sha256,
        not_before_unix_s=one.not_before_unix_s,
        not_after_unix_s=one.not_after_unix_s,
        authority=one.authority,
        bundle_sequence=one.bundle_sequence,
        expiry=str(one.expiry),
    )


def _from_message(message: identity_pb2.Identity) -> IdentityStatus:
    return IdentityStatus(
        kind=IdentityKind(message.kind),
        spiffe_id=message.spiffe_id,
        state=message.state,
        serial=message.serial,
        spki_sha256=message.spki_sha256,
        not_before_unix_s=message.not_before_unix_s,
        not_after_unix_s=message.not_after_unix_s,
        authority=message.authority,
        bundle_sequence=message.bundle_sequence,
        expiry=Expiry(message.expiry),
    )


def bundle_to_message(bundle: TrustBundle) -> identity_pb2.TrustBundle:
    """Message for the bundle."""
    return identity_pb2.TrustBundle(
        trust_domain=bundle.trust_domain, sequence=bundle.sequence, document=bundle.document
    )


def bundle_from_message(message: identity_pb2.TrustBundle) -> TrustBundle:
    """The bundle in a message."""
    return TrustBundle(trust_domain=message.trust_domain, sequence=message.sequence, document=message.document)


def rotation_to_message(rotation: AuthorityRotation) -> identity_pb2.RotateAuthorityResponse:
    """Message for the answer to a step."""
    return identity_pb2.RotateAuthorityResponse(
        authority=rotation.authority,
        state=rotation.state,
        bundle_sequence=rotation.bundle_sequence,
        devices_behind=rotation.devices_behind,
    )


def rotation_from_message(message: identity_pb2.RotateAuthorityResponse) -> AuthorityRotation:
    """The answer that a message carries."""
    return AuthorityRotation(
        authority=message.authority,
        state=message.state,
        bundle_sequence=message.bundle_sequence,
        devices_behind=tuple(message.devices_behind),
    )
