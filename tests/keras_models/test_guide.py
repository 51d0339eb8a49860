"""The guide's table of differences from `fit`: every model, and nothing that tests would refuse."""

from __future__ import annotations

import re
from pathlib import Path

from tests.keras_models.cases import CASES
from tests.keras_models.parity import HISTORY, WEIGHTS

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "keras.md"
NUMBER = r"(\d+e[-+]\d+)"


def test_every_model_is_in_the_table() -> None:
    cells = rf" \| {NUMBER}, {NUMBER}" * 3
    rows = re.findall(rf"^\| (.+?){cells} \|$", GUIDE.read_text(), re.MULTILINE)
    assert [title for title, *_ in rows] == [case.title for case in CASES.values()]
    for _, *numbers in rows:
        found = [float(one) for one in numbers]
        assert max(found[::2]) <= HISTORY
        assert max(found[1::2]) <= WEIGHTS
