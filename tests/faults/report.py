"""The table of faults and attacks: what was done, what was seen, how long it took, rows lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import date
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
            today = date.today().isoformat()
            result = {"passed": report.passed, "test": report.nodeid, "date": today}
            found.append({**properties, **result})
    return sorted(found, key=_order)


def page(rows: list[dict[str, Any]]) -> str:
    """The tables as a page of the docs; tests that say the same make one row."""
    parts = ["# Every fault and attack that was tried\n"]
    titles = {"fault": "Faults", "attack": "Attacks"}
    for kind in KINDS:
        chosen = [row for row in rows if row["kind"] == kind]
        columns = COLUMNS if kind == "fault" else COLUMNS[:2]
        lines = [" | ".join(columns), "|".join("---" for _ in columns)]
        cells = Counter(tuple(_cell(row, column) for column in columns) for row in chosen)
        lines += [" | ".join((_times(what, n), *others)) for (what, *others), n in cells.items()]
        parts.append(f"## {titles[kind]}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n")
    failed = [row["test"] for row in rows if not row["passed"]]
    passed = f"{len(rows) - len(failed)} of {len(rows)} ended as they should."
    parts.append("\n".join([passed, *(f"- not so: `{test}`" for test in failed)]))
    dates = [row["date"] for row in rows]
    when = f"The last run of each, from {min(dates)} to {max(dates)}." if dates else ""
    return "\n".join(parts) + f"\n\n*Made by `make faults`. {when}*\n"


def write(rows: list[dict[str, Any]], root: Path) -> str:
    """Keep the figures as JSON, and the page, which is returned.

    What other tests gave in an earlier run stays.
    """
    figures = root / "benchmarks" / "results" / "faults.json"
    earlier = json.loads(figures.read_text()) if figures.exists() else []
    known = {row["test"]: row for row in (*earlier, *rows)}
    merged = sorted(known.values(), key=_order)
    figures.write_text(json.dumps(merged, indent=1) + "\n")
    text = page(merged)
    (root / "docs" / "benchmarks" / "faults.md").write_text(text)
    return text


def _order(row: dict[str, Any]) -> tuple[bool, str]:
    return row["kind"] != "fault", row["test"]


def _times(what: str, count: int) -> str:
    return what if count == 1 else f"{what} ({count} cases)"


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "–")
    return f"{value:.1f} s" if isinstance(value, float) else str(value)
