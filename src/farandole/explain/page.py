"""A page that is stepped through: drawings one after the other, each with a caption.

It is one file: styles, script and drawings are in it, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from farandole.arguments import check_integer
from farandole.explain.drawing import Drawing


@dataclass(frozen=True)
class Frame:
    """What a page shows at a time."""

    phase: str
    """Where we are: "scatter-reduce, step 2 of 4"."""
    drawing: Drawing
    caption: str
    """What happens, in words."""


def page_html(title: str, frames: Sequence[Frame], *, seconds: float = 2.0) -> str:
    """Put frames together into a page.

    Without JavaScript it shows them all, one below the other.

    Args:
        title: of the page.
        frames: what it shows, in order.
        seconds: how long each is shown while the page plays.

    >>> page = page_html("A & B", [Frame("start", Drawing(9, 9, "nothing"), "Nothing yet.")])
    >>> "<title>A &amp; B</title>" in page, page.count("<figure")
    (True, 1)
    """
    return Template(_part("page.html")).substitute(
        title=escape(title),
        styles=_part("page.css"),
        script=_part("page.js"),
        pace=round(seconds * 1000),
        last=len(frames),
        frames="\n".join(map(_figure, frames)),
    )


def write_page(path: Path, title: str, frames: Sequence[Frame], *, seconds: float = 2.0) -> None:
    """Write a page, and the folders that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(title, frames, seconds=seconds), encoding="utf-8")


def check_drawable(name: str, value: object, least: int, most: int) -> None:
    """Raise for what is not an integer from `least` to `most`.

    >>> check_drawable("workers", 40, 2, 12)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: workers must be an integer from 2 to 12, ... workers=40
    """
    check_integer(name, value, least, most, reason="so that it can be drawn")


def _figure(frame: Frame) -> str:
    return (
        f"<figure>\n<h2>{escape(frame.phase)}</h2>\n{frame.drawing.svg()}\n"
        f"<figcaption>{escape(frame.caption)}</figcaption>\n</figure>"
    )


def _part(name: str) -> str:
    return files("farandole.explain").joinpath(name).read_text(encoding="utf-8")
