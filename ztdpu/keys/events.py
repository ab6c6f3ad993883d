"""What `Exchange.receive` tells its shell to do: one plain value per outcome."""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.model.sa import SaGrant, SaWant


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """A peer may send to us: have the worker pick SPIs, then call `Exchange.offer` (or `decline`)."""

    device: str
    request_hash: bytes
    wants: tuple[SaWant, ...]
    """Grants must come in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """The same request again: send the stored answer, allocate nothing."""

    device: str
    envelope: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A peer lets us send: have the worker install the grants, then call `Exchange.installed`."""

    device: str
    offer_hash: bytes
    grants: tuple[SaGrant, ...]
    wants: tuple[SaWant, ...]
    """What was asked for, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """A peer confirmed: these receive SAs are in use, older ones drain."""

    device: str
    spis: tuple[int, ...]
    """SPIs that it installed; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A peer would like to be asked again."""

    device: str
    instance: bytes
    cause: str
    """`rotate` or `restart`."""


Event = Allocate | Resend | Install | Activate | Hint
