"""How far a training here is from `model.fit` of the same model, on the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.keras_models.cases import BATCH, CASES, Case

from farandole import train

EPOCHS = 3
HISTORY = 1e-5
"""The most that losses and metrics may differ, relative to those of `fit`."""
WEIGHTS = 1e-5
"""The same for each weight's array, relative to its largest weight."""


@dataclass(frozen=True)
class Differences:
    """The largest ones."""

    history: float
    weights: float


def trained(case: Case, **options: Any) -> Any:
    return train(
        case.make(),
        case.table(),
        label=list(case.labels),
        epochs=options.pop("epochs", EPOCHS),
        batch_size=BATCH,
        shuffle=False,
        progress=False,
        **{**case.options, **options},
    )


def differences(name: str, workers: int) -> Differences:
    history, weights = CASES[name].fitted(EPOCHS)
    result = trained(CASES[name], num_workers=workers)
    pairs = zip(result.network.model.get_weights(), weights, strict=True)
    of_history = [_largest(result.history[f"train_{key}"], of) for key, of in history.items()]
    return Differences(max(of_history), max(_largest(one, other) for one, other in pairs))


def _largest(found: Any, expected: Any) -> float:
    expected = np.asarray(expected)
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(np.asarray(found) - expected).max()) / scale
