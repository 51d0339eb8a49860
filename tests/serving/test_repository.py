"""Which folders are models, and what is said before they are loaded."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import farandole
from farandole.serving import App, app
from farandole.serving.garbage import spare_collections
from farandole.serving.refusal import Refusal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of one model, and of one whose network is elsewhere."""
    column = {"x": np.zeros((1, 2), np.float32)}
    farandole.save(nn.Linear(2, 1), tmp_path / "models" / "own", column)
    farandole.save(nn.Linear(2, 1), tmp_path / "elsewhere", column)
    (tmp_path / "models" / "out").mkdir()
    (tmp_path / "models" / "out" / "network").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "models"


@pytest.fixture
def served(folder: Path) -> App:
    return app(folder, engine="eager")


def test_a_link_inside_of_a_model_is_not_followed(served: App) -> None:
    assert list(served.repository.available()) == ["own"]


def test_before_models_are_loaded_it_is_503(served: App) -> None:
    with pytest.raises(Refusal, match="aren't loaded yet") as refused:
        served.repository.find("own")
    assert refused.value.status == 503
    served.repository.load_all()
    assert served.repository.find("own").model.name == "own"
    with pytest.raises(Refusal) as refused:
        served.repository.find("other")
    assert refused.value.status == 404


def test_what_follows_a_change_is_called_once(served: App) -> None:
    calls: list[int] = []
    served.after_change = lambda: calls.append(1)
    served.repository.load_all()
    assert asyncio.run(served.perform("load", "own")) == {"status": 200}
    assert asyncio.run(served.perform("load", "other"))["status"] == 404
    assert calls == [1]


def test_collections_pass_over_what_is_served_now() -> None:
    """And not over what was, and is only held by itself."""

    class Node:
        pass

    one = Node()
    one.own = one  # type: ignore[attr-defined]
    gone = weakref.ref(one)
    spare_collections()
    del one
    gc.collect()
    assert gone() is not None
    spare_collections()
    assert gone() is None
