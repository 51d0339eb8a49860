"""JSON is read to a depth that no stack minds, and strings don't count."""

from __future__ import annotations

import pytest

from farandole.serving.json_text import DEPTH, read_json
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
