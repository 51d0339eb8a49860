"""What a user sees of an error: the sentence, and frames of the user's own."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole.engines import InlineEngine
from farandole.errors import FarandoleError, InputError
from farandole.tracebacks import short_traceback, shorten

TABLE = pd.DataFrame({"x": np.arange(6.0), "label": [0, 1, 0, 1, 0, 7]})


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows.reshape(-1, 3))


def fit(network: nn.Module) -> object:
    return farandole.train(network, TABLE, features="x", engine=InlineEngine(), progress=False)


def caught(call: Callable[[], object]) -> FarandoleError:
    with pytest.raises(FarandoleError) as found:
        call()
    return found.value


def packages(frames: TracebackType | None) -> list[str]:
    found = []
    while frames is not None:
        found.append(frames.tb_frame.f_globals["__name__"].partition(".")[0])
        frames = frames.tb_next
    return found


def test_the_sentence_and_the_users_frames() -> None:
    error = caught(lambda: fit(nn.Linear(1, 2)))
    assert "'label': 1 row has a label outside of 0 … 1" in str(error)
    assert "farandole" not in packages(error.__traceback__)
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback") == 1
    assert "in fit\n" in shown
    assert "src/farandole/" not in shown
    assert "src/farandole/api/train.py" in error.full_traceback


def test_frames_of_a_users_network_stay() -> None:
    error = caught(lambda: fit(Choosy()))
    shown = "".join(traceback.format_exception(error))
    assert "in forward\n" in shown
    assert "rows.reshape(-1, 3)" in shown
    assert "src/farandole/" not in shown
    assert isinstance(error.__cause__, RuntimeError)


def test_other_errors_and_whole_tracebacks_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @short_traceback
    def broken() -> None:
        raise KeyError("a defect of ours")

    with pytest.raises(KeyError) as found:
        broken()
    assert "farandole" in packages(found.value.__traceback__)  # the decorator's own
    monkeypatch.setenv("FARANDOLE_FULL_TRACEBACK", "1")
    error = caught(lambda: fit(nn.Linear(1, 2)))
    assert packages(error.__traceback__).count("farandole") > 2
    assert error.full_traceback == ""


def test_only_the_outermost_call_shortens() -> None:
    @short_traceback
    def inner() -> None:
        raise InputError("no")

    @short_traceback
    def outer() -> None:
        inner()

    error = caught(outer)
    assert "in outer" in error.full_traceback
    assert "in inner" in error.full_traceback
    assert pickle.loads(pickle.dumps(error)).full_traceback == error.full_traceback


def test_javas_pages_are_left_out() -> None:
    error = InputError("The executors have no torch.")
    error.__cause__ = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})("at …")
    shorten(error)
    assert "at …" not in "".join(traceback.format_exception(error))
    assert "py4j.protocol.Py4JJavaError: at …" in error.full_traceback


def test_a_notebook_shows_the_same() -> None:
    ultratb = pytest.importorskip("IPython.core.ultratb")
    try:
        fit(nn.Linear(1, 2))
    except InputError:
        shown = ultratb.VerboseTB(include_vars=False).text(*sys.exc_info())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "label outside of 0 … 1" in shown
    assert "def fit(" in shown
    assert "src/farandole/" not in shown
    assert shown.count("\n") < 60


@pytest.mark.parametrize("name", sorted(set(farandole.__all__) - {"World", "TrainingResult"}))
def test_every_public_function_is_short(name: str) -> None:
    assert name == "current_world" or hasattr(getattr(farandole, name), "__wrapped__")
