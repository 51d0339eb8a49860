from __future__ import annotations

import pytest

from farandole.checkpoint.names import CheckpointName


@pytest.mark.parametrize(
    "name", [CheckpointName(0), CheckpointName(10**12), CheckpointName(3, 2), CheckpointName(3, 10)]
)
def test_there_and_back(name: CheckpointName) -> None:
    assert CheckpointName.parse(str(name)) == name


def test_numbers_count_not_letters() -> None:
    names = [CheckpointName(*one) for one in [(10**11,), (9, 10), (9, 2), (10,)]]
    assert [tuple(name) for name in sorted(names)] == [(9, 2), (9, 10), (10, 1), (10**11, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "step-1",
        "step-00000000001",
        "step-0000000001-1",
        "step-0000000001-02",
        "step-0000000001/",
        "../step-0000000001",
        "step-0000000001\n",
        "step-١٢٣٤٥٦٧٨٩٠",
        ".step-0000000001.tmp-0123456789abcdef",
        "latest",
        "",
    ],
)
def test_other_names_are_nobodys_checkpoint(text: str) -> None:
    assert CheckpointName.parse(text) is None
