"""Steps of a training between two moments: only those that were surely done there."""

from pathlib import Path

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab import bystander
from ztdpu.lab.bystander import STEPS, Bystander


class Hand:
    """One rank that says what it is told to say."""

    def __init__(self):
        self.take = None

    def follow(self, take):
        self.take = take

    def finish(self, *, timeout_s):
        return {"timeout_s": timeout_s}


class Crew:
    def __init__(self):
        self.hands, self.commands = [], []

    def start(self, host, *argv):
        self.commands.append((host, argv))
        self.hands.append(Hand())
        return self.hands[-1]


@pytest.fixture
def training(monkeypatch):
    """Return a bystander and a function that lets rank 0 say a step at a moment."""
    crew, seen = Crew(), []
    red = Bystander(crew, Path("example.py"), ("red-0", "red-2"), lambda step, loss: seen.append((step, loss)))

    def say(moment, **said):
        monkeypatch.setattr(bystander.time, "time", lambda: moment)
        crew.hands[0].take(said)

    red.seen, red.crew = seen, crew
    return red, say


def test_only_what_was_told_in_between_counts(training):
    red, say = training
    for moment, step in ((1.0, 10), (2.0, 20), (2.5, 26), (3.0, 31), (4.0, 40)):
        say(moment, step=step, loss=0.5)
    assert red.steps_between(1.5, 3.5) == 11, "from the first told after the beginning to the last before the end"
    assert red.steps_between(2.2, 2.8) == 0, "one word says nothing about what went on"
    assert red.steps_between(5.0, 6.0) == 0
    assert red.seen[0] == (10, 0.5)


def test_the_last_line_is_the_last_step(training):
    red, say = training
    say(1.0, step=10, loss=0.5)
    say(2.0, accuracy=0.97)
    assert red.steps_between(0.0, 3.0) == STEPS - 10


def test_it_waits_for_the_beginning_and_says_when_there_is_none(training, monkeypatch):
    red, say = training
    monkeypatch.setattr(bystander, "_START_S", 0.01)
    with pytest.raises(MachineError, match="red-0 and red-2 does not begin"):
        red.wait_begun()
    say(1.0, step=1, loss=1.0)
    red.wait_begun()
    assert len(red.finish()) == 2
    assert [host for host, _ in red.crew.commands] == ["red-0", "red-2"]
