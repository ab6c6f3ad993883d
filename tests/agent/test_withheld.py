"""What may not be used with whom: no list or grant from before gives anything back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ztdpu.agent.withheld import Withheld

BLUE, RED = b"B" * 16, b"R" * 16
NETWORKS = st.frozensets(st.sampled_from([BLUE, RED]))


def test_a_peer_gets_back_what_a_newer_list_gives_back():
    withheld = Withheld()
    withheld.withhold("dpu-1", [BLUE], 7)
    assert withheld.between("dpu-1", [], 6) == {BLUE}, "a list from before"
    assert withheld.between("dpu-2", [], 6) == frozenset()
    assert withheld.between("dpu-1", [BLUE], 7) == {BLUE}, "the list that confirms it"
    assert withheld.between("dpu-1", [], 8) == frozenset()


def test_own_networks_count_for_every_peer_and_follow_the_newest_keys():
    withheld = Withheld()
    withheld.withhold_own([BLUE], 7)
    assert not withheld.set_own([], 6), "a grant from before"
    assert withheld.between("dpu-1", [RED], 9) == {BLUE, RED}
    assert not withheld.set_own([BLUE], 7)
    assert withheld.set_own([], 8)
    assert withheld.between("dpu-1", [RED], 9) == {RED}


@given(st.lists(st.tuples(st.booleans(), NETWORKS, st.integers(1, 9)), max_size=12))
def test_own_networks_are_those_of_the_newest_word_and_what_was_added_since(steps):
    withheld, newest, expected = Withheld(), 0, frozenset()
    for is_push, networks, generation in steps:
        if is_push:
            withheld.withhold_own(networks, generation)
            expected |= networks
            newest = max(newest, generation)
        else:
            withheld.set_own(networks, generation)
            if generation >= newest:
                expected, newest = networks, generation
        assert withheld.own == expected
