"""A copy of the policy in which each device stands where the wire shows it to the others.

Policy names the underlay addresses of devices; a lab without privilege cannot have those, so it runs with a copy that
differs in nothing else. Called by `userspace.cluster`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from ztdpu.errors import UsageError
from ztdpu.policy.load import load_directory

_ADDRESS: Final = re.compile(r"(\baddress:\s*)([\"']?)([0-9A-Fa-f:.]+)\2")
_IS_DEVICE: Final = re.compile(r"^kind:\s*[\"']?Device[\"']?\s*(#.*)?$", re.MULTILINE)
_BETWEEN_DOCUMENTS: Final = re.compile(r"(?m)^(?=---)")


def write_policy_with_faces(source: Path, target: Path, faces: Mapping[str, str]) -> None:
    """Copy `source` to `target` (not again where it is that already) with the underlay addresses in `faces`.

    UsageError when a Device says its address in a way that cannot be replaced.
    """
    cluster = load_directory(source)
    old = {device.spec.underlay.address: faces[name] for name, device in cluster.devices.items()}
    if source.resolve() != target.resolve():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".git"))
    for file in sorted(path for path in target.rglob("*") if path.suffix in {".yaml", ".yml"} and path.is_file()):
        text = file.read_text()
        changed = "".join(_with_faces(part, old) for part in _BETWEEN_DOCUMENTS.split(text))
        if changed != text:
            file.chmod(file.stat().st_mode | 0o200)
            file.write_text(changed)
    for name, device in load_directory(target).devices.items():
        if str(device.spec.underlay.address) != faces[name]:
            raise UsageError(
                f"the underlay address of device {name} cannot be replaced for a lab without a network of its own",
                remedy="write it as `address: A.B.C.D` on one line of the Device document",
            )


def _with_faces(document: str, faces: Mapping[object, str]) -> str:
    if not _IS_DEVICE.search(document):
        return document

    def replace(found: re.Match[str]) -> str:
        try:
            address = ip_address(found[3])
        except ValueError:
            return found[0]
        return f"{found[1]}{found[2]}{faces.get(address, found[3])}{found[2]}"

    return _ADDRESS.sub(replace, document)
