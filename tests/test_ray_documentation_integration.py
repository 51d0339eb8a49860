"""The Python blocks about Ray run, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.test_documentation_integration import (
    NEEDS_RAY,
    RAY_PAGE,
    ROOT,
    blocks_of,
    digits_table,
    run_blocks,
)

pytestmark = pytest.mark.integration


@pytest.mark.timeout(400)  # actors start three times: minutes on a busy machine
@pytest.mark.parametrize("page", [RAY_PAGE, ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_code_about_ray_runs(page: Path, ray_cluster: Any) -> None:
    found = blocks_of(page)
    blocks = found if page == RAY_PAGE else [block for block in found if NEEDS_RAY.search(block)]
    assert blocks
    run_blocks(page, blocks, {"digits": digits_table()})
