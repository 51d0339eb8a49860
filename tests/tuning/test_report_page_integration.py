"""The report in a real browser: every picture is drawn, and nothing is fetched or run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.tuning import Study

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
PICTURES = "() => [...document.images].map((one) => one.complete && one.naturalWidth > 300)"
TOO_WIDE = "() => document.documentElement.scrollWidth > innerWidth"


def test_a_page_is_whole(make_study: Callable[..., Study], tmp_path: Path) -> None:
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMIUMS)} is on the PATH")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    file = tmp_path / "page.html"
    make_study(16).report(file)
    asked, said = [], []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"], timeout=60_000
        )
        page = browser.new_page(viewport={"width": 800, "height": 600})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(file.as_uri())
        assert page.evaluate(PICTURES) == [True] * 4
        assert not page.evaluate(TOO_WIDE)
        assert page.locator("#trials tr.failed").count() == 4  # two trials, two errors
        assert page.locator("#trials").inner_text().count("<script>alert(1)</script>") == 2
        browser.close()
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert said == []
