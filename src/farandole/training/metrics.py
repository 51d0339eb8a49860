"""Metrics by name or as torchmetrics objects, for each head that they fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farandole.artifact import Head
from farandole.errors import InputError, suggestion
from farandole.keras_models import KerasMetric
from farandole.training.losses import Loss
from farandole.training.score_metrics import AreaUnderCurve, ClassCounts, Determination, Metric

Update = Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]
"""(output, target, head) -> one number a row."""


def _accuracy(output: torch.Tensor, target: torch.Tensor, head: str) -> torch.Tensor:
    if head in ("sigmoid", "sigmoids"):
        right = (output.reshape(target.shape) > 0) == (target > 0.5)
    else:
        soft = target.is_floating_point() and target.dim() == output.dim()  # probabilities
        classes = target.argmax(1) if soft else target
        right = output.argmax(1) == classes
    return right if right.dim() == 1 else right.reshape(len(target), -1).double().mean(1)


def _error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.reshape(target.shape) - target).reshape(len(target), -1).double()


@dataclass(frozen=True)
class NamedMetric:
    """A metric that has a name here."""

    higher_is_better: bool
    of_classes: bool
    """Whether it is about classes; else it is about numbers."""
    rows: Update | None = None
    """A number for each row, of which the metric is the mean."""
    make: Callable[[Head], Metric] | None = None
    """Where it is no mean over rows."""

    def fits(self, head: Head) -> bool:
        """Whether it can be asked of a head."""
        if head.kind == "identity" and self.rows is _accuracy:
            return head.outputs > 1  # numbers of which the highest may stand for a class
        return self.of_classes == (head.kind != "identity")


def _counts(name: str) -> NamedMetric:
    return NamedMetric(True, True, make=lambda head: ClassCounts(name, head))


NAMES: dict[str, NamedMetric] = {
    "accuracy": NamedMetric(True, True, _accuracy),
    "auc": NamedMetric(True, True, make=AreaUnderCurve),
    "f1": _counts("f1"),
    "precision": _counts("precision"),
    "recall": _counts("recall"),
    "f1_weighted": _counts("f1_weighted"),
    "precision_weighted": _counts("precision_weighted"),
    "recall_weighted": _counts("recall_weighted"),
    "mae": NamedMetric(
        False, False, lambda output, target, _: _error(output, target).abs().mean(1)
    ),
    "mse": NamedMetric(
        False, False, lambda output, target, _: _error(output, target).square().mean(1)
    ),
    "r2": NamedMetric(True, False, make=Determination),
}


def resolve(metrics: Sequence[Any] | Mapping[str, Any] | None, loss: Loss) -> dict[str, Any]:
    """Metrics by the name they have in the history, as far as that is known without the network.

    >>> from farandole.training import losses
    >>> list(resolve(None, losses.resolve("cross_entropy")))
    ['accuracy']
    >>> list(resolve({"digit": ["auc"]}, losses.resolve({"digit": "cross_entropy", "size": "mse"})))
    ['digit_auc']
    """
    if metrics is None:
        kinds = dict(zip(loss.names, loss.parts, strict=True)) if loss.names else {"": loss}
        chosen = {name: _default(kind.head) for name, kind in kinds.items()}
        return {column_name(head, name): NAMES[name] for head, n in chosen.items() for name in n}
    by_head = _by_head(metrics, loss.names)
    return {
        column_name(head, name): metric
        for head, several in by_head.items()
        for name, metric in several.items()
    }


def _default(kind: str | None) -> list[str]:
    """What suits a head; of a function of the user's nothing is known."""
    return [] if kind is None else ["mae" if kind == "identity" else "accuracy"]


def _by_head(metrics: Any, heads: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Head → name → metric; those for every head that they fit are under an empty name."""
    if isinstance(metrics, Mapping) and any(
        isinstance(one, list | tuple | Mapping) or head in heads for head, one in metrics.items()
    ):
        return {str(head): _list(one) for head, one in metrics.items()}
    return {"": _list(metrics)}


def _list(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        pairs = list(metrics.items())
    else:
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        pairs = [(_name(metric), metric) for metric in several]
    return {name: _resolve_one(name, one) for name, one in pairs if name != "loss"}  # always there


def _resolve_one(name: str, metric: Any) -> Any:
    if isinstance(metric, str):
        if metric not in NAMES:
            raise InputError(
                f"There is no metric {metric!r}. {suggestion(metric, NAMES)} Or pass a "
                "torchmetrics object."
            )
        return NAMES[metric]
    if isinstance(metric, NamedMetric):
        return metric
    if isinstance(metric, KerasMetric):
        return metric
    if all(hasattr(metric, part) for part in ("update", "compute", "reset", "merge_state")):
        return metric
    raise InputError(f"The metric {name!r} is neither a name nor a torchmetrics object: {metric!r}")


def _name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    if isinstance(metric, KerasMetric):
        return metric.name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()


def column_name(head: str, name: str) -> str:
    """What a metric of a head is called in the history, after "train" or "validation"."""
    return f"{head}_{name}" if head else name


@dataclass(frozen=True)
class HeadMetrics:
    """One head of a network, and what is counted of it."""

    head: Head
    metrics: Mapping[str, Any]
    """By the names they have in the history, without the head's."""
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    """The head's own loss, where there are several heads."""


def of_heads(metrics: Any, loss: Loss) -> list[HeadMetrics]:
    """What is counted of each head of a network; raises for what fits none of them."""
    heads = [one.head for one in loss.heads]
    names = [head.name for head in heads]
    if metrics is None:
        by_head = {h.name: _list(_default(_known(loss, n, h))) for n, h in enumerate(heads)}
    else:
        by_head = _by_head(metrics, names)
    for name in by_head:
        if name not in ("", *names):
            known = ", ".join(names) if any(names) else "only one, which has no name"
            raise InputError(f"metrics has no head {name!r}. The network's heads: {known}.")
    for name, metric in by_head.get("", {}).items():
        _check_fits_one(name, metric, heads)
    return [
        HeadMetrics(head, _fitting(head, by_head, len(heads)), _own_loss(loss, number))
        for number, head in enumerate(heads)
    ]


def _known(loss: Loss, number: int, head: Head) -> str | None:
    """What a head is; None for numbers about which only a function of the user's knows more."""
    part = loss.part_of(number)
    guessed = part is None or part.head is None
    return None if guessed and head.kind == "identity" else head.kind


def _own_loss(loss: Loss, number: int) -> Any:
    if len(loss.heads) < 2 or loss.callable is not None:
        return None
    return lambda output, target: loss.head_rows(number, output, target)


def _check_fits_one(name: str, metric: Any, heads: Sequence[Head]) -> None:
    if isinstance(metric, NamedMetric):
        if any(metric.fits(head) for head in heads):
            return
        what = "classes" if metric.of_classes else "numbers"
        raise InputError(
            f"The metric {name!r} is about {what}, and this network learns "
            f"{'numbers' if metric.of_classes else 'classes'}. If not: task= says so."
        )
    if len(heads) > 1:
        raise InputError(
            f"Which of the heads {', '.join(h.name for h in heads)} is the metric {name!r} for? "
            f'metrics={{"{heads[0].name}": […]}} says so.'
        )


def _fitting(head: Head, by_head: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """The metrics of a head: its own, and those for all that fit it."""
    everyones = {
        name: metric
        for name, metric in by_head.get("", {}).items()
        if heads == 1 or not isinstance(metric, NamedMetric) or metric.fits(head)
    }
    own = by_head.get(head.name, {}) if head.name else {}
    for name, metric in own.items():
        if isinstance(metric, NamedMetric):
            _check_fits_one(name, metric, [head])
    return {**everyones, **own}


def history_names(scored: Sequence[HeadMetrics]) -> dict[str, Any]:
    """The metrics by their columns in the history, without "train" or "validation"."""
    found: dict[str, Any] = {}
    for one in scored:
        if one.loss is not None:
            found[column_name(one.head.name, "loss")] = LOSS
        found |= {column_name(one.head.name, name): metric for name, metric in one.metrics.items()}
    return found


LOSS = NamedMetric(False, False)
"""Stands for the loss of a head."""
