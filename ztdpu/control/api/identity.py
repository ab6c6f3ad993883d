"""IdentityService: what was issued, the bundle, and the steps of replacing an authority."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.authority.issue import Issuer
from ztdpu.control.authority.rotation import AuthorityRotations
from ztdpu.control.authority.view import IdentityView
from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.doors.authorisation import ACCESS
from ztdpu.model.identity import TrustBundle
from ztdpu.rpc.convert.identity import bundle_to_message, identities_to_message, rotation_to_message
from ztdpu.v1 import identity_pb2, identity_pb2_grpc


class IdentityServicer(identity_pb2_grpc.IdentityServiceServicer):
    """Identities, never their keys."""

    def __init__(self, issuer: Issuer, view: IdentityView, rotations: AuthorityRotations) -> None:
        self._issuer = issuer
        self._view = view
        self._rotations = rotations

    async def ListIdentities(self, _request: Any, _context: Any) -> identity_pb2.ListIdentitiesResponse:
        """Everything that was issued and still counts."""
        return identities_to_message(self._view.identities())

    async def GetBundle(self, _request: Any, _context: Any) -> identity_pb2.TrustBundle:
        """Whom to believe."""
        issuer = self._issuer
        return bundle_to_message(
            TrustBundle(
                trust_domain=issuer.trust_domain,
                sequence=issuer.standing.sequence,
                document=issuer.bundle_document,
            )
        )

    async def RotateAuthority(
        self, request: identity_pb2.RotateAuthorityRequest, _context: Any
    ) -> identity_pb2.RotateAuthorityResponse:
        """Take one step."""
        change = ChangeRequest(
            caller=ACCESS.get().caller,
            method="rotate-authority",
            subject=request.step[:32],
            reason=request.reason,
            request_id=request.request_id,
            parameters=f"force={request.force}",
        )
        return rotation_to_message(await self._rotations.rotate(change, force=request.force))
