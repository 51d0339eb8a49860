"""A saved network as MLflow loads it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import farandole


def test_mlflow_loads_it_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3)).eval()
    columns = {"a": [1.0, -2.0], "b": [0.5, 3.0]}
    farandole.save(network, tmp_path / "net", {"a": [0.0], "b": [0.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import pyfunc

        pyfunc.save_model(
            tmp_path / "model", loader_module="farandole.inference.pyfunc",
            data_path=str(tmp_path / "net"), pip_requirements=[],
        )  # fmt: skip
        found = pyfunc.load_model(str(tmp_path / "model")).predict(pd.DataFrame(columns))
    rows = torch.tensor([columns["a"], columns["b"]]).T
    wanted = network(rows).softmax(1).detach().numpy()
    np.testing.assert_allclose(np.stack(found["probability"]), wanted, 1e-5)
    assert found["prediction"].tolist() == wanted.argmax(1).tolist()
