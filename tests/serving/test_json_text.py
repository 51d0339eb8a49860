"""JSON is read to a depth that no stack minds, and strings don't count."""

from __future__ import annotations

import pytest

from farandole.serving.json_text import DEPTH, MOST, read_json
from farandole.serving.refusal import Refusal


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000])
def test_deep_json_is_refused_before_it_is_parsed(text: bytes) -> None:
    with pytest.raises(Refusal, match="nested deeper than 64"):
        read_json(text)


def test_just_deep_enough_is_read() -> None:
    assert read_json(b"[" * DEPTH + b"]" * DEPTH) is not None
    assert len(read_json(b"[" + b"[1]," * 1000 + b"[1]]")) == 1001


def test_brackets_in_texts_are_no_depth() -> None:
    assert read_json(b'["' + b"[" * 500 + b'\\"{{"]') == ["[" * 500 + '"{{']


def test_a_text_without_an_end_is_read_in_no_time() -> None:
    """It was tried anew from each of its quotes: this took days."""
    with pytest.raises(Refusal, match="nested deeper than 64"):
        read_json(b"[" * 65 + b'"' + b'\\"' * 10_000_000)


def test_backslashes_before_a_quote() -> None:
    deep = b"[" * 65
    assert read_json(b'["\\\\\\"' + deep + b'"]') == ['\\"' + "[" * 65]  # a pair, then a quote
    with pytest.raises(Refusal, match="nested deeper than 64"):
        read_json(b'["\\\\",' + deep + b"]" * 66)  # the pair doesn't hide the string's end


def test_depth_goes_on_over_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.serving.json_text._BLOCK", 7)
    assert read_json(b'["' + b"[" * 100 + b'"]') == ["[" * 100]
    with pytest.raises(Refusal, match="nested deeper than 64"):
        read_json(b"[" * 65 + b"]" * 65)


def test_many_lists_are_refused_before_they_are_made() -> None:
    with pytest.raises(Refusal, match="lists and objects"):
        read_json(b"[" + b"{}," * MOST + b"1]")
