from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import InputError
from farandole.explain import TOPICS, explain

NAMES = [
    "ring", "parameter-server", "pipeline", "sharding", "backprop", "activations", "depth",
]  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "options", "complaint"),
    [
        ("ring", {"workers": 40}, "workers must be an integer from 2 to 12, .* workers=40"),
        ("ring", {"workers": "5"}, "Received: workers='5'"),
        ("ring", {"worker": 4}, "ring has no option 'worker'. Did you mean 'workers'?"),
        ("ring", {"values": 3}, "values must be an integer from 5 "),
        ("parameter-server", {"servers": 6}, "servers must be an integer from 1 to 4"),
        ("pipeline", {"schedule": "zb"}, "schedule must be 'gpipe', '1f1b' or 'naive'"),
        ("pipeline", {"stages": 8, "micro_batches": 13}, "micro_batches must .* from 1 to 12,"),
        ("pipeline", {"micro_batches": 17}, "micro_batches must .* from 1 to 16,"),
        ("pipeline", {"stages": True}, "Received: stages=True"),
        (
            "backprop",
            {"workers": 3},
            "backprop has no option 'workers'. There are x, beta, y, relu",
        ),
        ("backprop", {"trace": "run.json"}, "backprop has no option 'trace'"),
        ("activations", {"x": "1"}, "activations has no option 'x'. There is nothing to choose."),
        ("ring", {"steps": "3"}, "ring has no option 'steps'. It goes with a trace."),
        ("ring", {"trace": "a.json", "workers": 3}, "With a trace only 'steps' can be chosen"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_written(
    topic: str, options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        explain(topic, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_every_topic_is_shown_where_its_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    for name, topic in list(TOPICS.items()):
        monkeypatch.setitem(TOPICS, name, replace(topic, show=shown.append))
    assert [explain(name, tmp_path) for name in TOPICS] == shown
    assert [path.stem for path in shown] == NAMES


def test_every_option_has_a_default() -> None:
    for topic in TOPICS.values():
        options = list(inspect.signature(topic.show).parameters.values())[1:]
        assert all(option.default is not option.empty for option in options)
