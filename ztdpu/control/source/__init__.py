"""Where desired state comes from: a directory, or signed commits of a git repository."""

from ztdpu.control.source.desired import Desired, build_desired, load_desired, load_manufacturer_roots

__all__ = ["Desired", "build_desired", "load_desired", "load_manufacturer_roots"]
