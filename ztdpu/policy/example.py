"""Where the example cluster lies: the policy of a lab, and of `policy lint` and `policy explain`, when none is named.

One place, so that both mean the same files. Imports nothing heavy: the command line names it in `--help`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

EXAMPLE_POLICIES: Final = Path(__file__).resolve().parents[2] / "policies"
