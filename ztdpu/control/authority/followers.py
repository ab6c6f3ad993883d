"""Which devices follow a change of authority: the bundle that each said it believes, and whose SVID it holds.

Told by the agent's servicer, asked by `authority.rotation` and whoever shows identities. What a device said is kept in
the store: one that is switched off during a rotation counts as one that does not follow. It gets there with the next
sweep, all that was said meanwhile in one transaction, or with the rotation that relies on it: a thousand agents answer
a new bundle within the same second. What a crash takes from memory is said again when the agent is back, and until
then the device counts as one that does not follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ztdpu.control.devices.issued import IssuedSvid, read_all_newest
from ztdpu.control.fleet import Fleet
from ztdpu.control.store.store import Transaction
from ztdpu.model.device import DeviceState


class Followers:
    """One per control process."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._said: dict[str, int] = {}
        """Of this run of control; newer than the store, or the same."""
        self._unwritten: set[str] = set()

    def note(self, device: str, sequence: int) -> None:
        """A device said which bundle it believes."""
        if sequence != self._said.get(device):
            self._said[device] = sequence
            self._unwritten.add(device)

    def sweep(self) -> None:
        """Write what was said since the last time."""
        if self._unwritten:
            with self._fleet.transaction() as transaction:
                self._write(transaction)
            self._unwritten.clear()

    def behind(self, transaction: Transaction, sequence: int) -> tuple[str, ...]:
        """Devices that have not said that they believe this bundle or a later one.

        Who does not count as behind has said so in the store as well, once the transaction commits.
        """
        self._write(transaction)
        believed = self.sequences(transaction)
        return tuple(name for name in self._members() if believed.get(name, 0) < sequence)

    def sequences(self, transaction: Transaction) -> Mapping[str, int]:
        """Device -> what it said last, for all that ever did."""
        kept = transaction.list_numbers(_name(""))
        return {name.removeprefix(_name("")): sequence for name, sequence in kept.items()} | self._said

    def held_by_others(self, transaction: Transaction, authority: str) -> tuple[str, ...]:
        """Devices whose newest SVID still counts and is not of this authority."""
        now_unix_s = self._fleet.now().unix_ms / 1000
        return tuple(
            name
            for name, newest in self.issued(transaction)
            if newest.authority != authority and newest.not_after_unix_s > now_unix_s
        )

    def issued(self, transaction: Transaction) -> Iterator[tuple[str, IssuedSvid]]:
        """(device, its newest SVID), those that have one."""
        newest = read_all_newest(transaction)
        for name in self._members():
            if name in newest:
                yield name, newest[name]

    def _write(self, transaction: Transaction) -> None:
        transaction.put_numbers({_name(device): self._said[device] for device in sorted(self._unwritten)})

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
