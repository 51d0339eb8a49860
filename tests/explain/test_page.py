from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from farandole.explain import explain
from farandole.explain.drawing import Drawing
from farandole.explain.page import Frame, page_html

NASTY = "<script>alert('a & b')</script>"
SVG = "{http://www.w3.org/2000/svg}"


def test_words_are_escaped_everywhere() -> None:
    drawing = Drawing(10, 10, NASTY)
    drawing.box(0, 0, 10, 10, NASTY, name=NASTY)
    drawing.text(0, 0, NASTY)
    page = page_html(NASTY, [Frame(NASTY, drawing, NASTY)])
    assert page.count("<script>") == 1  # the page's own
    assert "&lt;script&gt;" in page


def test_a_drawing_is_well_formed() -> None:
    drawing = Drawing(100, 50, "everything")
    drawing.box(0, 0, 40, 20, "a1+a2+a3+a4+a5", dashed=True, bold=True, name="sum")
    drawing.arrow((0, 0), (10, 10))
    drawing.line([(0, 0), (5, 5)], dashed=True)
    drawing.hatch(0, 0, 40, 20)
    root = ElementTree.fromstring(drawing.svg())
    (text,) = root.iter(f"{SVG}text")
    assert "".join(text.itertext()) == "a1+a2+a3+a4+a5"  # on two lines, and one word
    assert len(list(text)) == 1
    assert [child.tag.removeprefix(SVG) for child in root] == [
        "rect", "text", "polyline", "polygon", "polyline", "path",
    ]  # fmt: skip


def test_an_arrow_ends_where_it_should() -> None:
    drawing = Drawing(100, 50, "an arrow")
    drawing.arrow((10, 20), (60, 20), thick=5)
    assert 'points="43.0,28.5 60.0,20.0 43.0,11.5"' in drawing.svg()


@pytest.mark.parametrize("topic", ["ring", "parameter-server", "pipeline", "sharding", "backprop"])
def test_a_page_is_one_file_that_fetches_nothing(topic: str, tmp_path: Path) -> None:
    path = explain(topic, tmp_path / "new")
    page = path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == [f"{topic}.html"]
    assert not re.search(r'(src|href)="(?!data:,)', page)
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\"'<> ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "$" not in re.sub(r"\$\{[^}]*\}", "", page)  # nothing of the template is left
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)
