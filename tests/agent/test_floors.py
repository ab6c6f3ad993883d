from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ztdpu.agent.floors import FILE_NAME, PEERS_MAX, Floors, load_floors, raise_floors
from ztdpu.errors import ConfigurationError
from ztdpu.trust.peer import PeerFloor

SEEN = datetime(2026, 5, 4, 3, 2, 1, 500, tzinfo=UTC)


def test_nothing_there_means_zero(tmp_path):
    assert load_floors(tmp_path) == Floors()


def test_raised_floors_outlive_a_restart(tmp_path):
    raised = raise_floors(tmp_path, Floors(), roster_serial=3, roster_sha256="ab" * 32, generation=10)
    assert load_floors(tmp_path) == raised == Floors(roster_serial=3, roster_sha256="ab" * 32, generation=10)


def test_floors_never_go_down(tmp_path):
    high = raise_floors(tmp_path, Floors(), roster_serial=3, roster_sha256="ab" * 32, generation=10)
    assert raise_floors(tmp_path, high, roster_serial=2, roster_sha256="cd" * 32, generation=9) == high
    assert load_floors(tmp_path) == high


def floor(boot_counter: int, sequence: int = 1, first_seen: datetime = SEEN) -> PeerFloor:
    return PeerFloor(
        boot_counter=boot_counter,
        sequence=sequence,
        binding_sha256=bytes([sequence]) * 32,
        alias_spki_sha256=bytes([boot_counter]) * 32,
        first_seen=first_seen,
    )


def test_peers_are_raised_one_by_one_and_never_lowered(tmp_path):
    floors = raise_floors(tmp_path, Floors(), peers={"dpu-1": floor(5), "dpu-2": floor(1)})
    floors = raise_floors(tmp_path, floors, peers={"dpu-1": floor(4, 9), "dpu-2": floor(1, 2)})
    assert load_floors(tmp_path) == floors == Floors(peers={"dpu-1": floor(5), "dpu-2": floor(1, 2)})
    later = floor(5, first_seen=SEEN + timedelta(hours=1))
    assert raise_floors(tmp_path, floors, peers={"dpu-1": later}) == floors, "its ttl counts from the first time"


def test_the_file_is_bounded(tmp_path):
    floors = raise_floors(tmp_path, Floors(), peers={f"dpu-{number}": floor(1) for number in range(PEERS_MAX)})
    floors = raise_floors(tmp_path, floors, peers={"dpu-0": floor(2), "dpu-new": floor(1)})
    assert len(load_floors(tmp_path).peers) == PEERS_MAX
    assert {"dpu-0", "dpu-new"} < set(floors.peers)
    assert "dpu-1" not in floors.peers


def test_a_file_without_peers_is_read(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"roster_serial": 2, "roster_sha256": "", "generation": 3}')
    assert load_floors(tmp_path) == Floors(roster_serial=2, generation=3)


PEER = '"boot_counter": 1, "sequence": 1, "binding_sha256": "", "alias_spki_sha256": ""'


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"generation": -1}', '{"generation": "7"}', '{"other": 1}', "{", '{"generation": true}',
        '{"peers": []}', '{"peers": {"dpu-1": 1}}', '{"peers": {"dpu-1": {"boot_counter": 1}}}',
        '{"peers": {"dpu-1": {' + PEER + ', "first_seen": "2026-01-01T00:00:00"}}}',
        '{"peers": {"dpu-1": {' + PEER.replace("1", "-1") + ', "first_seen": "2026-01-01T00:00:00+00:00"}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_ignored(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_floors(tmp_path)
    assert FILE_NAME in str(caught.value)
