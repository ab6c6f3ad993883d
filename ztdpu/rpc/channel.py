"""How processes of ztdpu reach control: UNIX socket for local admins, mutual TLS for remote ones.

The name checked in control's certificate is always `control.TRUSTDOMAIN`; targets are addresses. Used by
`rpc.client`; agents have channels of their own (asyncio), with the same options.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from ztdpu.errors import ConfigurationError, UsageError

ADMIN_MESSAGE_LIMIT_OCTETS: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a remote admin shows and believes; PEM files."""

    trust_domain: str
    bundle: Path
    certificate: Path
    key: Path


def open_channel(server: str, *, tls: TlsFiles | None = None) -> grpc.Channel:
    """Open a channel to `server`: a path (or `unix:PATH`), or ADDRESS:PORT with `tls`.

    Raises:
        UsageError: an address without TLS files.
        ConfigurationError: a TLS file cannot be read.

    """
    options: list[tuple[str, str | int]] = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", ADMIN_MESSAGE_LIMIT_OCTETS),
    ]
    path = socket_path(server)
    if path is not None:
        return grpc.insecure_channel(f"unix:{path}", options=[*options, ("grpc.default_authority", "localhost")])
    if tls is None:
        raise UsageError(
            f"{server} is not a UNIX socket, and TLS files are missing",
            remedy="give the path of the admin socket, or ZTDPU_TLS_DIR with bundle.pem, svid.pem, svid.key",
        )
    name = f"control.{tls.trust_domain}"
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.bundle), private_key=_read(tls.key), certificate_chain=_read(tls.certificate)
    )
    return grpc.secure_channel(
        server,
        credentials,
        options=[*options, ("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)],
    )


def socket_path(server: str) -> str | None:
    """The absolute path of the UNIX socket that `server` names; None for an address."""
    if not server.startswith(("/", "unix:", "./", "../")):
        return None
    return str(Path(server.removeprefix("unix://").removeprefix("unix:")).absolute())


def is_forbidden(server: str) -> bool:
    """Whether `server` is a socket that this user may not use; gRPC calls that unavailable, like a missing one."""
    path = socket_path(server)
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}", remedy="mend the path or the rights"
        ) from error
