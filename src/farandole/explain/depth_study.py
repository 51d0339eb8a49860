"""A study of depth: gradients of the first step, layer by layer, and what training reaches."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from torch import nn

from farandole.api import train
from farandole.errors import MissingPackage, TrainingDiverged
from farandole.explain.depth_variants import VARIANTS, Variant, linear_layers
from farandole.training import LOSS_DIVERGED, WEIGHTS_DIVERGED


@dataclass(frozen=True)
class DepthPlan:
    """How much to measure.

    >>> QUICK.depths
    (2, 20)
    """

    depths: tuple[int, ...] = (2, 5, 10, 20, 50)
    """Numbers of hidden layers."""
    width: int = 32
    epochs: int = 8
    batch_size: int = 64
    seed: int = 0


FULL = DepthPlan()
"""All depths; less than a minute on one core."""
QUICK = DepthPlan(depths=(2, 20), epochs=2)
"""A shallow and a deep one, for a few seconds."""


@dataclass(frozen=True)
class DepthStudy:
    """What was measured."""

    gradients: pd.DataFrame
    """One row a layer: variant, depth, layer (1 is the first), norm of its weights' gradient."""
    summary: pd.DataFrame
    """One row a network: variant, depth, norms of the first and the last layer, their ratio, and
    loss and accuracy of the last epoch, which are NaN where training diverged."""


def study_depth(plan: DepthPlan = FULL, tell: Callable[[str], Any] | None = None) -> DepthStudy:
    """Measure every variant at every depth, on scikit-learn's handwritten digits.

    Args:
        plan: how much to measure.
        tell: hears a line before each variant is trained.

    >>> study = study_depth(DepthPlan(depths=(2,), epochs=1))
    >>> study.summary["variant"].tolist()[:2]
    ['sigmoid', 'careful weights']
    """
    table = load_digits()
    gradients: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for number, (name, variant) in enumerate(VARIANTS.items(), 1):
        if tell is not None:
            depths = ", ".join(map(str, plan.depths))
            tell(f"{number}/{len(VARIANTS)}  {name}: training with {depths} hidden layers")
        for depth in plan.depths:
            network = variant.build([64, *[plan.width] * depth, 10], plan.seed)
            with one_thread():
                norms = gradient_norms(network, table, variant.clip_norm)
                scores = _learn(network, table, variant, plan)
            who = {"variant": name, "depth": depth}
            gradients += [{**who, "layer": at, "norm": norm} for at, norm in enumerate(norms, 1)]
            ends = {"first": norms[0], "last": norms[-1], "ratio": norms[0] / norms[-1]}
            summary.append({**who, **ends, **scores})
    return DepthStudy(pd.DataFrame(gradients), pd.DataFrame(summary))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the fastest for layers this small, and the same on all machines.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_digits() -> pa.Table:
    """Give 1,797 handwritten digits of 8×8 pixels, each pixel scaled to mean 0 and variance 1."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackage("scikit-learn", "demo") from error
    data: Any = datasets.load_digits()
    pixels = (data.data - data.data.mean(0)) / (data.data.std(0) + 1e-9)
    features = pa.FixedSizeListArray.from_arrays(pa.array(pixels.astype("float32").ravel()), 64)
    return pa.table({"features": features, "label": data.target})


def gradient_norms(
    network: nn.Module, table: pa.Table, clip_norm: float | None = None
) -> list[float]:
    """Measure the gradient of a first batch: its norm for the weights of each layer.

    In double precision, as single precision has no numbers below 1e-45 to show.

    Args:
        network: is not changed.
        table: the digits; the first 256 are the batch.
        clip_norm: what the whole gradient is shortened to, if it is longer.
    """
    twin = copy.deepcopy(network).double().train()
    batch = table.slice(0, 256).combine_chunks()
    pixels = batch["features"].combine_chunks().flatten().to_numpy().reshape(-1, 64)
    labels = torch.tensor(batch["label"].to_numpy())
    nn.functional.cross_entropy(twin(torch.tensor(pixels).double()), labels).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
    return [_norm(layer.weight.grad) for layer in linear_layers(twin)]


def _norm(gradient: torch.Tensor | None) -> float:
    assert gradient is not None
    return float(gradient.norm())


def _learn(
    network: nn.Module, table: pa.Table, variant: Variant, plan: DepthPlan
) -> dict[str, float]:
    """Train, and give the loss and accuracy of the last epoch; NaN if there is no such thing."""
    lost = {"loss": math.nan, "accuracy": math.nan}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it diverged is what we are after
            result = train(
                network,
                table,
                optimizer="sgd",
                optimizer_options={"momentum": 0.9},
                learning_rate=variant.learning_rate,
                epochs=plan.epochs,
                batch_size=plan.batch_size,
                clip_norm=variant.clip_norm,
                seed=plan.seed,
                progress=False,
            )
    except TrainingDiverged:
        return lost
    if result.reason in (LOSS_DIVERGED, WEIGHTS_DIVERGED):
        return lost
    last = result.history.iloc[-1]
    return {"loss": float(last["train_loss"]), "accuracy": float(last["train_accuracy"])}
