"""Signals during the demo: one exception before the clean-up, none during it."""

import os
import signal

import pytest

from ztdpu.lab.interruption import SIGNALS, Interruption


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_once(number):
    before = signal.getsignal(number)
    with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # the clean-up is on its way already
        assert interruption.exit_status == 128 + number
    assert signal.getsignal(number) is before


def test_nothing_interrupts_the_clean_up():
    with Interruption() as interruption:
        assert interruption.number == 0
        interruption.shield()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.number == signal.SIGTERM


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.number == 0
    finally:
        signal.signal(signal.SIGHUP, before)
