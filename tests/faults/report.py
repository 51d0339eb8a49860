"""The table of faults and attacks: what was done, what was seen, how long it took, rows lost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

KINDS = ("fault", "attack")
COLUMNS = ("what is done", "what is seen", "noticed after", "goes on after", "rows lost", "twice")


def note_marker(item: pytest.Item) -> None:
    """Let the report of a test say which fault or attack it is about."""
    for kind in KINDS:
        marker = item.get_closest_marker(kind)
        if marker is not None:
            item.user_properties.append(("kind", kind))
            item.user_properties.append(("what is done", str(marker.args[0])))
            if len(marker.args) > 1:
                item.user_properties.append(("what is seen", str(marker.args[1])))


def rows_of(reports: Iterable[pytest.TestReport]) -> list[dict[str, Any]]:
    """One row a test that is about a fault or an attack."""
    found = []
    for report in reports:
        properties = dict(report.user_properties)
        if report.when == "call" and "kind" in properties:
            found.append({**properties, "passed": report.passed, "test": report.nodeid})
    return sorted(found, key=lambda row: (row["kind"] != "fault", row["test"]))


def page(rows: list[dict[str, Any]]) -> str:
    """The tables as a page of the docs."""
    parts = ["# Every fault and attack that was tried\n"]
    titles = {"fault": "Faults", "attack": "Attacks"}
    for kind in KINDS:
        chosen = [row for row in rows if row["kind"] == kind]
        columns = COLUMNS if kind == "fault" else COLUMNS[:2]
        lines = [" | ".join(columns), "|".join("---" for _ in columns)]
        lines += [" | ".join(_cell(row, column) for column in columns) for row in chosen]
        parts.append(f"## {titles[kind]}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n")
    failed = [row["test"] for row in rows if not row["passed"]]
    passed = f"{len(rows) - len(failed)} of {len(rows)} ended as they should."
    parts.append("\n".join([passed, *(f"- not so: `{test}`" for test in failed)]))
    return "\n".join(parts) + "\n\n*Made by `make faults`.*\n"


def write(rows: list[dict[str, Any]], root: Path) -> None:
    """Keep the figures as JSON, and the page."""
    figures = root / "benchmarks" / "results" / "faults.json"
    figures.write_text(json.dumps(rows, indent=1) + "\n")
    (root / "docs" / "benchmarks" / "faults.md").write_text(page(rows))


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "–")
    return f"{value:.1f} s" if isinstance(value, float) else str(value)
