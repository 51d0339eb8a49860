from __future__ import annotations

import threading
import time

import pytest

from farandole.engines.key_values import (
    ADD,
    APPEND,
    CHECK,
    COMPARE_SET,
    COUNT,
    DELETE,
    GET,
    SET,
    WAIT,
    KeysMissing,
    KeyValues,
)


def test_several_are_set_and_read_together() -> None:
    values = KeyValues()
    values.call(SET, b"a", b"1", b"b", b"2")
    assert values.call(GET, b"b", b"a") == [b"2", b"1"]
    assert values.call(COUNT) == [b"2"]
    assert values.call(CHECK, b"a", b"b") == [b"1"]
    assert values.call(CHECK, b"a", b"c") == [b"0"]
    assert values.call(DELETE, b"a") == [b"1"]
    assert values.call(DELETE, b"a") == [b"0"]


def test_those_that_did_not_come_are_named() -> None:
    values = KeyValues()
    values.call(SET, b"here", b"")
    for operation in (GET, WAIT):
        with pytest.raises(KeysMissing, match=r"nobody has set not, nor within 0.05 s"):
            values.call(operation, b"here", b"not", b"nor", seconds=0.05)


def test_who_waits_gets_it_as_soon_as_it_is_there() -> None:
    values = KeyValues()
    found: list[list[bytes]] = []
    waiting = threading.Thread(
        target=lambda: found.append(values.call(GET, b"a", b"n", b"t", seconds=60))
    )
    waiting.start()
    values.call(SET, b"a", b"1")
    values.call(ADD, b"n", b"2")
    values.call(APPEND, b"t", b"3")
    waiting.join(60)
    assert found == [[b"1", b"2", b"3"]]


def test_closing_ends_all_waiting() -> None:
    values = KeyValues()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(KeysMissing):
            values.call(WAIT, b"never", seconds=600)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
    values.close()
    assert ended.wait(60)


@pytest.mark.parametrize(
    "call",
    [
        (b"no such thing",),
        (ADD, b"key"),
        (ADD, b"key", b"x"),
        (SET, b"key"),
        (COMPARE_SET, b"key", b"a", b"b", b"c"),
        (COUNT, b"key"),
    ],
)
def test_what_is_no_call_is_said(call: tuple[bytes, ...]) -> None:
    values = KeyValues()
    with pytest.raises(ValueError, match=r"."):
        values.call(*call)
    assert values.call(COUNT) == [b"0"]
