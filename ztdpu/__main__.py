"""`python -m ztdpu` is the `ztdpu` command."""

from __future__ import annotations

from ztdpu.cli import main

main()
