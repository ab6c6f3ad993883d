import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sidecar_ground import standing


@pytest.fixture
async def ground(tmp_path):
    async with standing(tmp_path / "sidecar") as ground:
        yield ground
