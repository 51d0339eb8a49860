"""Tally: the sums of loss and metrics over some rows, which workers with uneven shards add up.

All of them cost one all-reduce an epoch together, but for metrics that are no mean over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from farandole.artifact import Head
from farandole.keras_models import KerasMetric
from farandole.ragged import Ragged
from farandole.training.keras_metric import KerasMetricTally
from farandole.training.losses import Loss, row_means
from farandole.training.metrics import NAMES, HeadMetrics, NamedMetric, column_name
from farandole.training.score_metrics import Metric
from farandole.training.torchmetrics_adapter import TorchMetric
from farandole.world import World


class Tally:
    """The running sums of one pass over some rows."""

    def __init__(self, scored: Sequence[HeadMetrics] = (), loss: Loss | None = None) -> None:
        self._pairs = (loss or Loss()).pairs
        self._heads = [_HeadTally(one) for one in scored if one.metrics or one.loss]
        self._indices = [n for n, one in enumerate(scored) if one.metrics or one.loss]
        self._loss = self._weight = 0.0

    def add(
        self,
        loss: float,
        weight: float,
        output: Any,
        targets: Sequence[torch.Tensor],
        weights: torch.Tensor | None,
        by_head: Sequence[torch.Tensor] = (),
    ) -> None:
        """Count one batch: `loss` and `weight` are sums over its rows; no weights mean all ones.

        The rows' losses of several heads are worked out, unless they are given.
        """
        self._loss += loss
        self._weight += weight
        if not self._heads:
            return
        pairs = self._pairs(output, targets)
        for head, number in zip(self._heads, self._indices, strict=True):
            found, target = pairs[number]
            losses = by_head[number] if by_head else None
            if isinstance(target, Ragged):
                head.add_ragged(found, target, weights, losses)
            else:
                head.add(_at_least_float32(found.detach()), target, weights, losses)

    def state(self) -> dict[str, Any]:
        """The sums so far, as plain values and tensors."""
        totals = [total for head in self._heads for total in head.totals]
        objects = {name: metric.state() for name, metric in self._objects()}
        return {"sums": [self._loss, self._weight, *totals], "objects": objects}

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Count what another tally had counted."""
        loss, weight, *totals = state["sums"]
        self._loss, self._weight = self._loss + loss, self._weight + weight
        rest = iter(totals)
        for head in self._heads:
            head.totals = [total + next(rest) for total in head.totals]
        for name, metric in self._objects():
            metric.add_state(state["objects"][name])

    def result(
        self, prefix: str, reduce_sums: Callable[[torch.Tensor], torch.Tensor], world: World
    ) -> dict[str, float]:
        """The values over all workers, as columns of the history."""
        mine = torch.tensor(self.state_sums(), dtype=torch.float64)
        loss, weight, *sums = reduce_sums(mine).tolist()
        nan = float("nan")
        row = {f"{prefix}_loss": loss / weight if weight else nan}
        names = [name for head in self._heads for name in head.columns]
        for name, total in zip(names, sums, strict=True):
            row[f"{prefix}_{name}"] = total / weight if weight else nan
        for name, metric in self._objects():
            row |= _numbered(f"{prefix}_{name}", metric.value(world))
        return row

    def state_sums(self) -> list[float]:
        """Loss, weight, and the sums of all metrics that are means over rows."""
        totals = [total for head in self._heads for total in head.totals]
        return [self._loss, self._weight, *totals]

    def _objects(self) -> Iterator[tuple[str, Metric]]:
        for head in self._heads:
            yield from head.objects.items()


class _HeadTally:
    """The running sums of one head."""

    def __init__(self, scored: HeadMetrics) -> None:
        self._head, self._loss = scored.head, scored.loss
        named = {k: m for k, m in scored.metrics.items() if isinstance(m, NamedMetric)}
        self._rows = {k: m.rows for k, m in named.items() if m.rows is not None}
        self.columns = [column_name(self._head.name, name) for name in self._rows]
        if self._loss is not None:
            self.columns.append(column_name(self._head.name, "loss"))
        self.totals = [0.0] * len(self.columns)
        self.objects: dict[str, Metric] = {}
        for name, metric in scored.metrics.items():
            column = column_name(self._head.name, name)
            if isinstance(metric, KerasMetric):
                self.objects[column] = KerasMetricTally(metric)
            elif not isinstance(metric, NamedMetric):
                self.objects[column] = TorchMetric(metric, self._head)
            elif metric.make is not None:
                self.objects[column] = metric.make(self._head)

    def add(
        self,
        output: torch.Tensor,
        target: torch.Tensor,
        weights: torch.Tensor | None,
        losses: torch.Tensor | None,
    ) -> None:
        """Count one batch."""
        number = 0
        for update in self._rows.values():
            rows = update(output, target, self._head.kind)
            self.totals[number] += float((rows if weights is None else rows * weights).sum())
            number += 1
        if self._loss is not None:
            rows = self._loss(output, target) if losses is None else _at_least_float32(losses)
            rows = rows if rows.dim() else rows.expand(len(target))
            self.totals[number] += float((rows if weights is None else rows * weights).sum())
        for metric in self.objects.values():
            metric.update(output, target, weights)

    def add_ragged(
        self,
        output: Any,
        target: Ragged,
        weights: torch.Tensor | None,
        losses: torch.Tensor | None,
    ) -> None:
        """Count rows that differ in length: their means, or each element by its row's weight."""
        values = _at_least_float32(output.values.detach())
        updates = [
            row_means(update(values, target.values, self._head.kind).double(), target)
            for update in self._rows.values()
        ]
        if self._loss is not None:
            updates.append(self._loss(output, target).detach() if losses is None else losses)
        for number, rows in enumerate(updates):
            self.totals[number] += float((rows if weights is None else rows * weights).sum())
        if len(values) == 0:  # all rows are empty
            return
        each = None if weights is None else weights[target.owners]
        for metric in self.objects.values():
            metric.update(values, target.values, each)


def _at_least_float32(output: torch.Tensor) -> torch.Tensor:
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def _numbered(name: str, value: torch.Tensor) -> dict[str, float]:
    """A metric with a value for each class fills a column for each."""
    if value.numel() == 1:
        return {name: float(value)}
    return {f"{name}_{number}": float(part) for number, part in enumerate(value.reshape(-1))}


def try_metrics(
    scored: Sequence[HeadMetrics], loss: Loss, output: Any, targets: Sequence[torch.Tensor]
) -> str:
    """Count one batch: an error about the first metric that can't, or nothing."""
    if not scored:
        return ""
    pairs = loss.pairs(output, targets)
    for one, (found, target) in zip(scored, pairs, strict=True):
        for name, metric in one.metrics.items():
            tally = Tally([HeadMetrics(one.head, {name: metric})])
            try:
                tally.add(0.0, 1.0, found, [target], None)
                tally.result("train", lambda sums: sums, World())
            except Exception as error:
                return _trial_error(name, metric, one.head, found, target, error)
    return ""


def _trial_error(
    name: str,
    metric: Any,
    head: Head,
    output: Any,
    target: Any,
    error: Exception,
) -> str:
    kind = "" if isinstance(metric, NamedMetric) else f" ({type(metric).__name__})"
    of = f" of {head.name!r}" if head.name else ""
    fitting = ", ".join(known for known, one in NAMES.items() if one.fits(head))
    return (
        f"The metric {name!r}{kind} can't take the outputs{of}, of shape "
        f"{_shape(output)} a row, and labels of shape {_shape(target)}. It says: "
        f"{error}. Use one of {fitting}, or a torchmetrics object for {_advice(head)}."
    )


def _shape(rows: Any) -> tuple[int, ...]:
    return tuple((rows.values if isinstance(rows, Ragged) else rows).shape[1:])


def _advice(head: Head) -> str:
    if head.kind == "identity":
        return "regression"
    if head.kind == "sigmoids":
        return f"several labels: Multilabel…(num_labels={head.outputs})"
    if head.num_classes == 2:
        return "two classes: Binary…"
    return f"several classes: Multiclass…(num_classes={head.num_classes})"
