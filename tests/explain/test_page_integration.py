"""The pages in a real browser: what a person sees, clicks and presses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farandole.explain import TOPICS, explain
from farandole.parallel.trace import Span, write_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.integration

WAIT = 10_000  # milliseconds, for anything
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "ring": ("ring", {}),
    "ring of 2": ("ring", {"workers": 2}),
    "ring of 12": ("ring", {"workers": 12, "values": 7_654_321}),
    "server": ("parameter-server", {}),
    "4 servers of 12": ("parameter-server", {"workers": 12, "servers": 4}),
    "2 servers": ("parameter-server", {"servers": 2, "workers": 2}),
    "gpipe": ("pipeline", {}),
    "1f1b": ("pipeline", {"schedule": "1f1b", "stages": 8, "micro_batches": 12}),
    "gpipe of 16": ("pipeline", {"stages": 4, "micro_batches": 16}),
    "naive": ("pipeline", {"schedule": "naive"}),
    "sharding": ("sharding", {}),
    "sharding of 12": ("sharding", {"workers": 12}),
    "backprop": ("backprop", {}),
    "backprop of 4": ("backprop", {"x": "1,2,3.333,-4", "beta": "1e-5,2,-3,9", "relu": False}),
    "backprop of large ones": (
        "backprop",
        {"x": "1.234e50,-2e-39,3.333e40,4e39", "beta": "1e50,-2e40,3e1,4", "y": -1e99},
    ),
    "activations": ("activations", {}),
    "trace": ("ring", {"trace": "run.json"}),
    "trace of 12": ("ring", {"trace": "run of 12.json"}),
}

# The words of every box, and all others, that are wider than what they stand in.
TOO_WIDE = """() => {
    const found = [];
    const svg = document.querySelector("figure:not([hidden]) svg");
    const {width, height} = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll("text")) {
        const box = text.getBBox();
        const inside = box.x >= 0 && box.x + box.width <= width && box.y + box.height <= height + 2;
        const rect = text.dataset.name ? text.previousElementSibling.getBBox() : null;
        const fits = !rect || rect.width === 0 || text.previousElementSibling.tagName !== "rect"
            || (box.width <= rect.width && box.height <= rect.height + 6);
        if (!inside || !fits) found.push(text.textContent);
    }
    const page = document.documentElement;
    if (page.scrollWidth > innerWidth) found.push("the page scrolls to the right");
    if (page.scrollHeight > innerHeight) found.push("the page scrolls down");
    return found;
}"""

# Words that lie over others.
OVERLAPPING = """() => {
    const texts = [...document.querySelectorAll("figure:not([hidden]) svg text")];
    const boxes = texts.map((text) => text.getBBox());
    const found = [];
    boxes.forEach((a, one) => boxes.slice(0, one).forEach((b, other) => {
        const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
        const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
        if (across > 1 && down > 4) found.push(texts[other].textContent, texts[one].textContent);
    }));
    return found;
}"""

# The size of the smallest words on the screen, in pixels, and what they are.
SMALLEST = """() => {
    const svg = document.querySelector("figure:not([hidden]) svg");
    const scale = svg.getScreenCTM().a;
    const sizes = [...svg.querySelectorAll("text")].map(
        (text) => [scale * parseFloat(getComputedStyle(text).fontSize), text.textContent]);
    for (const other of document.querySelectorAll("h1, figure:not([hidden]) *, nav *"))
        if (!other.closest("svg") && other.textContent)
            sizes.push([parseFloat(getComputedStyle(other).fontSize), other.textContent]);
    return sizes.sort((one, other) => one[0] - other[0])[0];
}"""
READABLE = 14  # pixels, of 720


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    spans = [Span("compute", 0, 0.01), Span("sum", 0.01, 0.02), Span("wait", 0.011, 0.019, "chunk")]
    steps = [
        Span(span.kind, span.start + turn, span.end + turn, span.label)
        for turn in (0, 1, 2)
        for span in [*spans, Span("step", 0.02, 0.021)]
    ]
    write_trace(place / "run.json", "ring", [steps] * 3)
    write_trace(place / "run of 12.json", "ring", [steps] * 12)
    return place


@pytest.fixture
def open_page(browser: Browser, folder: Path) -> Iterator[Callable[..., Page]]:
    """Write a page and open it; whatever it complains of or fetches is an error."""
    heard: list[str] = []
    contexts = []

    def open_(name: str, *, hash_: str = "", **settings: Any) -> Page:
        topic, options = PAGES[name]
        if "trace" in options:
            options = {"trace": folder / options["trace"]}
        path = folder / name / TOPICS[topic].file
        if not path.exists():  # one of the other tests may have written it
            explain(topic, folder / name, **options)
        settings = {"viewport": {"width": 1280, "height": 720}, **settings}
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        page.goto(path.as_uri() + hash_)
        return page

    yield open_
    for context in contexts:
        context.close()
    fetched = [line for line in heard if not re.match(r"request: (file:.*\.html|data:,$)", line)]
    assert fetched == []


def words(page: Page, name: str) -> str:
    """Give what stands in a named box of the frame that is shown."""
    found = page.locator(f"figure:not([hidden]) [data-name='{name}']")
    return found.text_content() or ""


def held(page: Page, workers: int = 5) -> list[list[str]]:
    letters = "abcdefghijkl"[:workers]
    return [[words(page, f"worker {w + 1}, {c}") for c in letters] for w in range(workers)]


def counter(page: Page) -> str:
    return page.locator("#counter").text_content() or ""


def test_the_ring_is_as_the_course_draws_it(open_page: Callable[..., Page]) -> None:
    page = open_page("ring")
    assert held(page)[0] == ["a1", "b1", "c1", "d1", "e1"]
    page.click("#next")
    assert words(page, "worker 2, a") == "a1+a2"  # worker 1 has sent its a to the right
    assert words(page, "worker 1, e") == "e1+e5"
    for _ in range(3):
        page.click("#next")
    assert page.locator("figure:not([hidden]) h2").text_content() == "Scatter-reduce, step 4 of 4"
    whole = {c: "+".join(f"{c}{w}" for w in range(1, 6)) for c in "abcde"}
    after = held(page)
    finished = {w + 1: [c for c in row if c.count("+") == 4] for w, row in enumerate(after)}
    assert finished == {
        5: [whole["a"]], 1: [whole["b"]], 2: [whole["c"]], 3: [whole["d"]], 4: [whole["e"]],
    }  # fmt: skip
    for _ in range(4):
        page.click("#next")
    assert held(page) == [list(whole.values())] * 5
    assert page.locator("#next").is_disabled()
    caption = page.locator("figure:not([hidden]) figcaption").text_content() or ""
    assert "2(N−1)·K/N" in caption
    assert "1,600,000 (6.4 MB)" in caption


def test_it_plays_to_the_end_and_again(open_page: Callable[..., Page]) -> None:
    page = open_page("ring of 2")
    page.evaluate("document.body.dataset.pace = 40")
    for _ in range(2):
        page.click("#play")
        page.wait_for_function("document.querySelector('#counter').value === '3 / 3'")
        assert page.locator("#play").get_attribute("aria-label") == "Play"  # it stops by itself
    page.evaluate("document.body.dataset.pace = 60000")
    page.click("#play")
    assert counter(page) == "1 / 3"
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    page.click("#play")
    assert page.locator("#play").get_attribute("aria-label") == "Play"


def test_the_keyboard_is_enough(open_page: Callable[..., Page]) -> None:
    page = open_page("ring")
    presses = [("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 9), ("Home", 1)]
    presses += [("ArrowLeft", 1), ("PageDown", 2), ("PageUp", 1)]
    for key, number in presses:
        page.keyboard.press(key)
        assert counter(page) == f"{number} / 9", key
    page.focus("#slider")
    page.keyboard.press("ArrowRight")
    assert counter(page) == "2 / 9"  # once, though the slider knows the key as well
    page.evaluate("document.body.dataset.pace = 60000")
    page.focus("#play")
    page.keyboard.press("Space")
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    page.keyboard.press("ArrowRight")
    assert page.locator("#play").get_attribute("aria-label") == "Play"


def test_the_slider_and_the_address_lead_to_a_step(open_page: Callable[..., Page]) -> None:
    page = open_page("ring", hash_="#5")
    assert counter(page) == "5 / 9"
    page.fill("#slider", "9")
    assert counter(page) == "9 / 9"
    assert page.locator("#slider").get_attribute("aria-valuetext") == "All-gather, step 4 of 4"
    page.fill("#slider", "1")
    assert page.locator("#previous").is_disabled()


@pytest.mark.parametrize(
    ("hash_", "number"), [("#2.5", 2), ("#0", 1), ("#-3", 1), ("#99", 9), ("#here", 1)]
)
def test_an_odd_address_leads_somewhere_too(
    hash_: str, number: int, open_page: Callable[..., Page]
) -> None:
    page = open_page("ring", hash_=hash_)
    assert counter(page) == f"{number} / 9"
    assert page.locator("figure:visible").count() == 1


def test_the_address_can_change_while_the_page_is_open(open_page: Callable[..., Page]) -> None:
    page = open_page("ring")
    for hash_, number in (("#4", 4), ("#2.5", 2), ("#Infinity", 9)):
        page.evaluate(f"location.hash = '{hash_}'")
        page.wait_for_function(f"document.querySelector('#counter').value === '{number} / 9'")
        assert page.locator("figure:visible").count() == 1


@pytest.mark.parametrize("name", PAGES)
def test_everything_fits_into_a_small_projector(name: str, open_page: Callable[..., Page]) -> None:
    page = open_page(name)
    count = page.locator("figure").count()
    assert count > 2
    for number in range(count):
        assert page.evaluate(TOO_WIDE) == [], f"frame {number + 1}"
        assert page.evaluate(OVERLAPPING) == [], f"frame {number + 1}"
        size, text = page.evaluate(SMALLEST)
        assert size >= READABLE, f"frame {number + 1}: {text!r}"
        page.keyboard.press("ArrowRight")
    labels = page.locator("svg").evaluate_all("all => all.map(svg => svg.ariaLabel)")
    assert all(labels)
    assert page.title() == page.locator("h1").text_content()


def test_without_javascript_all_frames_are_there(open_page: Callable[..., Page]) -> None:
    page = open_page("ring", java_script_enabled=False)
    shown = [page.locator("figure").nth(number).is_visible() for number in range(9)]
    assert shown == [True] * 9
    assert not page.locator("nav").is_visible()


@pytest.mark.parametrize(("motion", "name"), [("reduce", "none"), ("no-preference", "appear")])
def test_who_wants_no_motion_gets_none(
    motion: str, name: str, open_page: Callable[..., Page]
) -> None:
    page = open_page("ring", reduced_motion=motion)
    style = "getComputedStyle(document.querySelector('svg')).animationName"
    assert page.evaluate(style) == name


def test_backprop_fills_values_and_then_gradients(open_page: Callable[..., Page]) -> None:
    page = open_page("backprop")
    boxes = "figure:not([hidden]) [data-name$='gradient']"
    assert page.locator(boxes).count() == 0
    for _ in range(4):
        page.click("#next")
    assert words(page, "L, value") == "2.25"
    assert page.locator(boxes).count() == 0
    page.keyboard.press("End")
    assert words(page, "β, gradient") == "∂ [3, 6]"
    assert words(page, "x, gradient") == "∂ [9, −1.5]"


def test_the_server_and_the_pipeline_end_as_they_should(open_page: Callable[..., Page]) -> None:
    page = open_page("server", hash_="#2")
    assert words(page, "server 1, a") == "a1+a2+a3+a4+a5"
    assert words(page, "worker 5, a") == "a5"
    page.click("#next")
    assert words(page, "worker 5, a") == "a1+a2+a3+a4+a5"
    page = open_page("gpipe", hash_="#9")
    assert words(page, "stage 1, kept") == "8 (max 8)"
    page.keyboard.press("End")
    assert words(page, "stage 1, kept") == "0 (max 8)"
    assert "27%" in (page.locator("figure:not([hidden]) figcaption").text_content() or "")


def test_every_topic_that_has_a_page_is_opened() -> None:
    assert {topic for topic, _ in PAGES.values()} == set(TOPICS) - {"depth"}
