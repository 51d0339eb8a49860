"""A saved network as a model of MLflow's: `loader_module="farandole.inference.pyfunc"`.

MLflow then keeps the folder of the network as it is: no pickle is in it, and none is loaded.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from farandole.artifact import load_network
from farandole.inference.predictor import Predictor


class PyfuncModel:
    """What MLflow calls: a table in, predictions out."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predict for a pandas DataFrame, or a mapping of columns.

        Args:
            model_input: the network's columns.
            params: nothing that is known here.
        """
        found = self._predictor(model_input)
        heads = found.heads or {"": found}
        columns = {}
        for name, one in heads.items():
            prefix = f"{name}." if name else ""
            columns[f"{prefix}prediction"] = list(one.prediction)
            if one.probability is not None:
                columns[f"{prefix}probability"] = list(one.probability)
        return pd.DataFrame(columns)


def _load_pyfunc(path: str) -> PyfuncModel:
    """MLflow's name for the function that loads."""
    return PyfuncModel(Predictor(*load_network(path)))
