"""Which devices follow a change of authority: the bundle that each said it believes, and whose SVID it holds.

Told by the agent's servicer, asked by `authority.rotation` and whoever shows identities. What a device said is kept in
the store: one that is switched off during a rotation counts as one that does not follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from ztdpu.control.fleet import Fleet
from ztdpu.control.issued import IssuedSvid, read_issued
from ztdpu.control.store.store import Transaction
from ztdpu.model.device import DeviceState


class Followers:
    """One per control process."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._said: dict[str, int] = {}

    def note(self, device: str, sequence: int) -> None:
        """A device said which bundle it believes. Kept when it is another one than before."""
        if sequence == self._said.get(device):
            return
        with self._fleet.transaction() as transaction:
            if transaction.get_number(_name(device)) != sequence:
                transaction.put_number(_name(device), sequence)
        self._said[device] = sequence

    def sequence(self, transaction: Transaction, device: str) -> int:
        """What it said last; 0 when it never did."""
        return transaction.get_number(_name(device))

    def behind(self, transaction: Transaction, sequence: int) -> tuple[str, ...]:
        """Devices that have not said that they believe this bundle or a later one."""
        return tuple(name for name in self._members() if self.sequence(transaction, name) < sequence)

    def held_by_others(self, transaction: Transaction, authority: str) -> tuple[str, ...]:
        """Devices whose newest SVID still counts and is not of this authority."""
        now_unix_s = self._fleet.now().unix_ms / 1000
        return tuple(
            name
            for name in self._members()
            for newest in read_issued(transaction, name)[:1]
            if newest.authority != authority and newest.not_after_unix_s > now_unix_s
        )

    def issued(self, transaction: Transaction) -> Iterator[tuple[str, IssuedSvid]]:
        """(device, its newest SVID), those that have one."""
        for name in self._members():
            for newest in read_issued(transaction, name)[:1]:
                yield name, newest

    def _members(self) -> tuple[str, ...]:
        """Devices that attested once and were not revoked: each of them has to follow."""
        fleet = self._fleet
        return tuple(
            name
            for name in fleet.names()
            if fleet.binding(name) is not None and fleet.record(name).state is not DeviceState.REVOKED
        )


def _name(device: str) -> str:
    return f"bundle:{device}"
