"""The page at / in a real browser: models, a form, an answer, a picture, figures that move."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from tests.serving.conftest import Server

import farandole

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.integration

WAIT = 15_000  # milliseconds

DROP = """([bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], "photo.png", {type: "image/png"}));
    const zone = document.querySelector("#drop");
    zone.dispatchEvent(new DragEvent("drop",
        {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """Open it; whatever it complains of, or fetches elsewhere, is an error."""
    heard: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    found = context.new_page()
    found.set_default_timeout(WAIT)
    found.on("pageerror", lambda error: heard.append(f"error: {error}"))
    found.on("request", lambda request: heard.append(request.url))
    found.goto(server.url)
    yield found
    context.close()
    assert [one for one in heard if not one.startswith((server.url, "data:"))] == []


def test_a_form_is_made_from_the_signature_and_answers(page: Page, models: Path) -> None:
    page.click("#models button:text-is('flowers')")
    names = farandole.load(models / "flowers").names
    page.wait_for_selector("#form label:nth-of-type(4)")
    assert page.locator("#form label > span").all_text_contents() == list(names)
    assert page.text_content("#form small") == "versions 1 · farandole_eager"
    row = [5.1, 3.5, 1.4, 0.2]
    for name, value in zip(names, row, strict=True):
        page.fill(f"input[name='{name}']", str(value))
    page.click("text=Predict")
    page.wait_for_selector("#prediction")
    wanted = farandole.load(models / "flowers")(np.array([row], np.float32))
    assert page.text_content("#prediction") == str(int(wanted.prediction[0]))
    best = page.locator(".bar").first.text_content() or ""
    assert best == f"{int(wanted.prediction[0])}{100 * wanted.probability.max():.1f} %"
    page.fill(f"input[name='{names[0]}']", "null")
    page.click("text=Predict")
    page.wait_for_selector("#error:has-text('field')")
    assert f"field '{names[0]}'" in (page.text_content("#error") or "")


def test_a_dropped_picture_is_predicted_for(page: Page, models: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    page.click("#models button:text-is('photos')")
    page.wait_for_selector("#drop")
    page.evaluate(DROP, [list(file.getvalue())])
    page.wait_for_selector("#prediction")
    wanted = farandole.load(models / "photos")({"image": pixels[None]})
    assert page.text_content("#prediction") == str(int(wanted.prediction[0]))
    assert page.locator("#drop img").count() == 1


def test_figures_and_the_routes(page: Page, server: Server) -> None:
    page.click("#models button:text-is('flowers')")
    page.wait_for_selector("#form label")
    page.wait_for_selector("#rate:not(:text-is('–'))")
    page.click("text=Predict")
    page.wait_for_selector("#prediction")
    page.wait_for_selector("#p99:not(:text-is('–'))")
    page.click("text=routes")
    page.wait_for_selector("h1:text-is('Routes')")
    assert page.locator("details").count() > 10
