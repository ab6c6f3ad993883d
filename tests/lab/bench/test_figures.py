"""Arithmetic of the bench, by numbers that can be checked in the head."""

import itertools

import pytest

from ztdpu.lab.bench import figures


def test_spread_is_median_least_most_and_the_rounds():
    assert figures.spread([3, 1, 2]) == {"median": 2, "least": 1, "most": 3, "rounds": [3, 1, 2]}


def test_spread_of_an_even_count_is_in_the_middle():
    assert figures.spread([1, 2, 3, 10])["median"] == 2.5


def test_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no rounds"):
        figures.spread([])


def test_ratio_is_the_median_of_ratios_of_the_same_round():
    # the machine halves in the second round: medians alone would say 5 / 10 = 0.5
    assert figures.ratio([9, 3, 5], [10, 5, 10]) == 0.6


@pytest.mark.parametrize("base", [[0, 1], []])
def test_there_is_no_ratio_to_nothing(base):
    assert figures.ratio([1] * len(base), base) is None


def test_ratio_of_other_rounds_is_refused():
    with pytest.raises(ValueError, match="same rounds"):
        figures.ratio([1, 2], [1])


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_the_nearest_rank(share, value):
    assert figures.percentile(range(1, 101), share) == value


def test_percentile_of_one_value_is_that_value():
    assert figures.percentile([7.5], 0.99) == 7.5


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 0.5)


def test_best_rate_is_the_most_delivered_within_the_loss_limit():
    steps = [(100, 100), (200, 199), (400, 300), (800, 310)]
    assert figures.best_rate(steps, loss_limit=0.01) == 199
    assert figures.best_rate(steps, loss_limit=0.25) == 300


def test_best_rate_is_zero_when_every_step_lost_too_much():
    assert figures.best_rate([(100, 50), (0, 0)], loss_limit=0.01) == 0


def test_time_calls_counts_its_calls():
    numbers = itertools.count()
    cost = figures.time_calls(lambda: next(numbers), seconds=0.001)
    assert cost["calls"] == next(numbers) - 2, "two calls before are not timed"
    assert cost["least"] <= cost["median"] <= cost["most"]
    assert len(cost["rounds"]) == 5


def test_per_second_is_one_over_the_cost():
    assert figures.per_second(250) == 4000
    assert figures.per_second(0) == 0
