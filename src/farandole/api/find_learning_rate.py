"""The learning-rate finder: a short run in which the rate only rises."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from farandole.api.train import train
from farandole.errors import InputError
from farandole.tracebacks import short_traceback

RESERVED = (
    "epochs",
    "schedule",
    "schedule_per",
    "learning_rate",
    "learning_rates",
    "max_steps",
    "max_seconds",
    "stop_on_nan",
    "patience",
)
"""Options of `train` that the finder sets itself, or that would cut it short."""
_EXPLODED = 3.0
"""A loss has exploded that is above its lowest by so many times that: four times as high."""


@short_traceback
def find_learning_rate(
    network: nn.Module,
    data: Any,
    *,
    lowest: float = 1e-6,
    highest: float = 1.0,
    steps: int = 100,
    **options: Any,
) -> pd.DataFrame:
    """Try learning rates from `lowest` to `highest`, one update each, and record the loss.

    Returns a DataFrame with columns learning_rate, loss and smooth_loss; its attribute
    `attrs["suggestion"]` is the rate at which the smoothed loss falls fastest, before its minimum.

    Args:
        network: the network to try on; it is not changed.
        data: as for `train`.
        lowest: the first learning rate.
        highest: the last one.
        steps: how many updates.
        **options: as for `train`, but for those that the finder sets itself: learning_rate,
            schedule, epochs and what would end training sooner.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [1.0, 3.0, 5.0, 7.0]})
    >>> found = find_learning_rate(torch.nn.Linear(1, 1), table, loss="mse", optimizer="sgd",
    ...                            steps=50, batch_size=4)
    >>> 1e-4 < found.attrs["suggestion"] < 1
    True
    """
    if not (0 < lowest < highest and steps > 1):
        raise InputError(
            "0 < lowest < highest and more than one step are needed. "
            f"Received: {lowest=}, {highest=}, {steps=}"
        )
    for name in RESERVED:
        if name in options:
            raise InputError(
                f"find_learning_rate takes no {name!r}: it sets that itself, from lowest, highest "
                "and steps."
            )
    ramp = partial(_ramp, lowest=lowest, growth=(highest / lowest) ** (1 / (steps - 1)))
    result = train(
        network,
        data,
        **{
            "progress": False,
            "allow_pickle": True,  # nothing is kept of this network
            **options,
            "learning_rate": lowest,
            "schedule": ramp,
            "schedule_per": "step",
            "max_steps": steps,
            "epochs": steps,
            "stop_on_nan": False,
        },
    )
    found = result.steps.drop(columns="epoch")
    found["smooth_loss"] = found["loss"].ewm(span=10).mean()
    found.attrs["suggestion"] = suggest(found["learning_rate"], found["smooth_loss"])
    return found


def suggest(rates: pd.Series[float], smooth_loss: pd.Series[float]) -> float:
    """The rate at which the smoothed loss falls fastest, before its minimum and before it explodes.

    After an explosion a loss may fall steeply too, from very high to high: that says nothing.
    Where the loss only rises, the first rate is the best of them.

    >>> suggest(pd.Series([0.1, 1.0, 10.0, 100.0]), pd.Series([2.0, 1.0, 900.0, 300.0]))
    1.0
    """
    lowest = smooth_loss.cummin()
    exploded = ~np.isfinite(smooth_loss) | (smooth_loss > lowest + _EXPLODED * lowest.abs())
    before = smooth_loss[: int(exploded.argmax())] if exploded.any() else smooth_loss
    if before.empty:
        return float(rates.iloc[0])
    falls = before[: int(before.argmin()) + 1].diff()[1:]
    return float(rates[falls.idxmin()] if len(falls) else rates.iloc[0])


def _ramp(optimizer: torch.optim.Optimizer, lowest: float, growth: float) -> Any:
    for group in optimizer.param_groups:  # a factory has set a rate of its own
        group["lr"] = lowest
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, growth)
