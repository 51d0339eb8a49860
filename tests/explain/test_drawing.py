from __future__ import annotations

import re

import pytest

from farandole.explain.drawing import SMALLEST, Drawing


def lines(words: str, width: float = 120) -> list[str]:
    """What stands on each line of a box."""
    drawing = Drawing(400, 400, "a box")
    drawing.box(0, 0, width, 90, words, name="it")
    (text,) = re.findall(r"<text[^>]*>(.*)</text>", drawing.svg())
    return re.sub(r"<tspan[^>]*>(.*?)</tspan>", r"|\1", text).split("|")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("a1+a2+a3+a4+a5", ["a1+a2+a3+", "a4+a5"]),
        ("[1e+300, 2e+300, −3e+300]", ["[1e+300, 2e+300,", "−3e+300]"]),
        ("[1e+300, 2]", ["[1e+300,", "2]"]),
        ("e1+e2+e3", ["e1+e2+", "e3"]),
        ("a1+a2", ["a1+a2"]),
        ("8e+300", ["8e+300"]),
    ],
)
def test_sums_and_lists_are_cut_between_terms(words: str, wanted: list[str]) -> None:
    assert lines(words) == wanted
    assert lines(words, width=2000) == [words]


def test_words_shrink_but_stay_readable() -> None:
    drawing = Drawing(400, 400, "a box")
    drawing.box(0, 0, 300, 90, "some words in here", size=40)
    drawing.box(0, 0, 40, 90, "incomprehensibilities", size=40)
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', drawing.svg())]
    assert SMALLEST < sizes[0] < 40
    assert sizes[1] == SMALLEST
