"""Writes the table of docs/guide/keras.md: how far trainings here are from `model.fit`.

    PYTHONPATH=. .venv/bin/python scripts/keras_parity.py

Each model of tests/keras_models/cases.py is trained by Keras, and here with 1, 2 and 3 workers.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.keras_models.cases import CASES
from tests.keras_models.parity import Differences, differences

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guide" / "keras.md"
HEADER = "| trained by `fit` | 1 worker | 2 workers | 3 workers |\n|---|---|---|---|\n"
WORKERS = (1, 2, 3)


def main() -> None:
    rows = [
        f"| {case.title} | {' | '.join(_cell(differences(name, n)) for n in WORKERS)} |\n"
        for name, case in CASES.items()
    ]
    page = GUIDE.read_text()
    start = page.index(HEADER) + len(HEADER)
    rest = re.sub(r"\A(\|.*\n)*", "", page[start:])
    GUIDE.write_text(page[:start] + "".join(rows) + rest)
    print(HEADER + "".join(rows))


def _cell(found: Differences) -> str:
    return f"{found.history:.0e}, {found.weights:.0e}"


if __name__ == "__main__":
    main()
