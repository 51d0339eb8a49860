"""What all benchmarks share: medians with their spread, a JSON file and a table in the docs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def timed(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range of what was seen."""
    middle = statistics.median(values)
    if len(values) == 1:
        return f"{middle:.{digits}f} (one run)"
    return f"{middle:.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pyspark", "pyarrow")},
    }


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the docs."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def write(name: str, figures: dict[str, Any], text: str) -> None:
    """Keep the raw figures as JSON and the table as a page of the docs, and show the table."""
    results = ROOT / "benchmarks" / "results" / f"{name}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    page = ROOT / "docs" / "benchmarks" / f"{name}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    page.write_text(f"{text.strip()}\n\n*{about}; made by `benchmarks/{name}.py`.*\n")
    print(text)
