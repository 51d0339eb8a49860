from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from farandole.engines.late_rows import OF_RAY, with_notice


def test_only_the_first_batch_is_waited_for_with_a_word() -> None:
    told: list[str] = []
    is_told = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        is_told.set()

    def late() -> Iterator[Any]:
        assert is_told.wait(30)
        yield 1
        yield 2

    assert list(with_notice(late(), OF_RAY, tell, 0.01)) == [1, 2]
    assert told == [f"no rows have come for 0.01 s. {OF_RAY}"]


def test_nothing_is_told_when_rows_have_come_or_there_are_none_or_they_fail() -> None:
    def failing() -> Iterator[Any]:
        raise LookupError

    before = threading.active_count()
    rows = with_notice(iter([1, 2]), OF_RAY, print, 30)
    assert next(rows) == 1
    assert not any(
        isinstance(each, threading.Timer) and each.finished.is_set() is False
        for each in threading.enumerate()
    )
    assert list(with_notice(iter(()), OF_RAY, print, 30)) == []
    with pytest.raises(LookupError):
        list(with_notice(failing(), OF_RAY, print, 30))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(10)
    assert threading.active_count() <= before
