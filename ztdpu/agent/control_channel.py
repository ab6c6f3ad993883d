"""gRPC channels from a device to control, with the one name that control's certificate must carry.

Used by `agent.attester` (server TLS) and `agent.uplink` (mutual TLS). Targets are addresses; the name checked
is always `control.TRUSTDOMAIN`, which no certificate but control's own carries, so an agent's SVID can never
pose as control.
"""

from __future__ import annotations

from typing import Final

import grpc
from grpc import aio

from ztdpu.agent.own_keys import OwnKeys

MESSAGE_LIMIT_OCTETS: Final = 20 * 1024 * 1024
"""Tables are at most 16 MiB."""


def _options(trust_domain: str) -> list[tuple[str, str | int]]:
    name = f"control.{trust_domain}"
    return [
        ("grpc.ssl_target_name_override", name),
        ("grpc.default_authority", name),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_OCTETS),
    ]


def enrolment_channel(target: str, *, trust_domain: str, bundle_pem: bytes) -> aio.Channel:
    """Open a channel on which only control is authenticated."""
    credentials = grpc.ssl_channel_credentials(root_certificates=bundle_pem)
    return aio.secure_channel(target, credentials, options=_options(trust_domain))


def main_channel(target: str, *, trust_domain: str, bundle_pem: bytes, keys: OwnKeys, svid_pem: bytes) -> aio.Channel:
    """Open a channel on which both sides are authenticated."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=bundle_pem, private_key=keys.tls_key_pem, certificate_chain=svid_pem
    )
    return aio.secure_channel(target, credentials, options=_options(trust_domain))
