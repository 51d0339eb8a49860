"""Batches fetched ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from farandole.inference.prefetch import prefetch


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def wait_for_end_of(started: set[threading.Thread]) -> None:
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("depth", [1, 3])
def test_the_same_in_the_same_order(depth: int) -> None:
    before = threads()
    assert list(prefetch(iter(range(200)), depth)) == list(range(200))
    assert list(prefetch(iter([]))) == []
    assert list(prefetch(iter([None, StopIteration, Exception]))) == [
        None,
        StopIteration,
        Exception,
    ]
    wait_for_end_of(threads() - before)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), StopAsyncIteration()])
def test_errors_pass_through_after_what_came_before(error: BaseException) -> None:
    def batches() -> Iterator[int]:
        yield 1
        yield 2
        raise error

    found = prefetch(batches())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(found)
    assert caught.value is error


def test_the_next_is_fetched_while_the_last_is_worked_on() -> None:
    fetched = [threading.Event() for _ in range(4)]

    def batches() -> Iterator[int]:
        for number, event in enumerate(fetched):
            event.set()
            yield number

    for number in prefetch(batches()):
        if number + 1 < len(fetched):  # without a thread this would wait in vain
            assert fetched[number + 1].wait(60)


def test_no_further_ahead_than_asked() -> None:
    given: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(100):
            given.append(number)
            yield number

    found = prefetch(batches(), depth=2)
    assert next(found) == 0
    time.sleep(0.2)
    # One is worked on, two wait, and one is in the thread's hands.
    assert len(given) <= 4
    found.close()  # type: ignore[attr-defined]


def test_closing_early_ends_the_thread() -> None:
    before = threads()
    found = prefetch(iter(range(1000)))
    next(found)
    started = threads() - before
    assert len(started) == 1
    found.close()  # type: ignore[attr-defined]
    wait_for_end_of(started)


def test_an_error_of_the_consumer_ends_the_thread() -> None:
    before = threads()
    started: set[threading.Thread] = set()

    def work() -> None:
        for _ in prefetch(iter(range(1000))):
            started.update(threads() - before)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()
    assert started
    wait_for_end_of(started)
