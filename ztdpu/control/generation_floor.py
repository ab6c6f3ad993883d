"""The highest generation that this control ever gave out, in a file beside the store and outside of it.

A store that was put back from a backup does not know what was decided since: who was revoked, who enrolled, which
bindings were retired. Its generation is then below this file, and control notices at its start (`Fleet.start`).
The file must not be part of what is put back: `spec.floorFile` names a place that is in no backup.
"""

from __future__ import annotations

import os
from pathlib import Path

from ztdpu.errors import ConfigurationError, Location
from ztdpu.telemetry import get_logger

FLOOR_FILE = "generation.floor"
_LIMIT_OCTETS = 32
_DIGITS = 20


class GenerationFloor:
    """One file with one number."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """The floor; 0 before the first start.

        Raises:
            ConfigurationError: there is a file, and no number in it.

        """
        try:
            with self._path.open("rb") as stream:
                text = stream.read(_LIMIT_OCTETS)
        except FileNotFoundError:
            return 0
        if not text.strip().isdigit():
            raise ConfigurationError(
                "the generation floor is damaged",
                remedy="remove it if the store was not put back from a backup; else set all devices stale by hand",
                where=Location(file=str(self._path), line=1),
            )
        return int(text)

    def raise_to(self, generation: int) -> None:
        """Write it through to the disk; called after the commit that made it, so it is never above the store's.

        A disk that refuses is logged: the store has the change, and only the memory of a later loss is weaker.
        """
        octets = f"{generation:0{_DIGITS}}\n".encode()
        try:
            if not self._overwrite(octets):
                self._replace(octets)
        except OSError as error:
            get_logger().error("floor-not-written", path=str(self._path), cause=error.strerror)

    def _overwrite(self, octets: bytes) -> bool:
        """Write over a number of the same length: it lies in one sector, which a disk writes as a whole.

        So nothing but the number goes to the disk: no new file, no name, no folder. False when there is none like it.
        """
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size != len(octets):
                return False
            os.pwrite(descriptor, octets, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _replace(self, octets: bytes) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, octets)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
