from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from farandole.engines.interrupt import Interrupts


def press() -> None:
    """Ctrl-C; Python calls the handler soon after."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


def test_ctrl_c_is_counted_and_then_itself_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.count == 0
        press()
        press()
        assert interrupts.count == 2
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press()


def test_the_handler_is_put_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError), Interrupts():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_leaves_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def enter() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_sigterm_counts_as_well_and_ends_with_its_own_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert interrupts.count == 1
        error = interrupts.error()
        press()
        assert isinstance(interrupts.error(), KeyboardInterrupt)
    assert isinstance(error, SystemExit)
    assert error.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_of_the_users_own_for_sigterm_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
