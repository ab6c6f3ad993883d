"""Reference values of what emulated devices of a profile ship with, as a policy document.

Called by tests and by whoever adds devices of another profile to a lab's policy. What a vendor would publish.
"""

from __future__ import annotations

from typing import Any

from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.profile import MeasurementKind, Profile


def make_reference_values(profile: Profile) -> dict[str, Any]:
    """Return a ReferenceValues document: every digest and firmware identity, and minimum versions.

    Slow measurements are left out: verifiers do not read them.
    """
    firmware = default_firmware(profile)
    blocks = measure(profile, firmware)
    return {
        "apiVersion": "ztdpu.dev/v1",
        "kind": "ReferenceValues",
        "metadata": {"name": f"{profile.name}-shipped"},
        "spec": {
            "profile": profile.name,
            "measurements": [
                {"index": spec.index, "component": spec.component, "digests": [block.value.hex()]}
                for spec, block in zip(profile.measurements, blocks, strict=True)
                if not block.raw and not spec.slow_ms
            ],
            "fwids": [
                {"level": number, "component": str(level.role), "digests": [compute_fwid(profile, level, blocks).hex()]}
                for number, level in enumerate(profile.levels)
                if level.fwid_covers
            ],
            "minimumVersions": [
                {"component": spec.component, "version": str(firmware.components[spec.component])}
                for spec in profile.measurements
                if spec.kind in {MeasurementKind.VERSION, MeasurementKind.SVN}
            ],
        },
    }
