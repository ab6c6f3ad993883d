"""A document and where it stands: what `policy.load` hands to `policy.cluster` and its checks."""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.errors import Location
from ztdpu.policy.documents import Document
from ztdpu.policy.yaml import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One document and where it stands."""

    document: Document
    placed: Placed

    def locate(self, *path: str | int) -> Location:
        """Place of a field in the file."""
        return self.placed.locate(tuple(path))


ByKind = dict[str, dict[str, Entry]]
"""Kind -> name -> document."""
