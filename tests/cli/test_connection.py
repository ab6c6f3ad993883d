"""Which control a command speaks to: one that is named, never another because the name was empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztdpu.cli.connection import connect
from ztdpu.errors import UsageError


def test_an_empty_server_is_not_the_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTDPU_STATE", str(tmp_path))
    with pytest.raises(UsageError, match="--server is empty"):
        connect("")
    with connect(str(tmp_path / "admin.sock")) as named:
        assert named
