"""Metrics that are no mean over rows: AUC, precision, recall, F1 and R².

Each keeps what workers can add up, so that many of them give exactly what one gives. Values are
those of scikit-learn: of two classes, of the second one; of more, and of several answers of yes or
no, the mean over classes (macro), each counting alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from farandole.artifact import Head
from farandole.parallel import gather_objects
from farandole.world import World

State = dict[str, Any]


class Metric(Protocol):
    """A metric that is more than a sum of rows' values."""

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Count a batch."""
        ...

    def state(self) -> Any:
        """All that was counted, as plain values and tensors."""
        ...

    def add_state(self, state: Any) -> None:
        """Count what another one has counted."""
        ...

    def value(self, world: World) -> torch.Tensor:
        """The metric over all workers, which have to call this together."""
        ...


def class_rows(
    output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None, head: Head
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores (rows, classes), class numbers (rows,) and weights; a position counts as a row.

    Of several answers of yes or no, the second is (rows, answers) of zeros and ones.
    """
    rows = len(target)
    if head.kind in ("sigmoid", "sigmoids"):
        scores, classes = output.reshape(rows, -1), (target.reshape(rows, -1) > 0.5).long()
        if head.kind == "sigmoid":
            scores, classes = torch.cat([-scores, scores], 1), classes[:, 0]
    else:
        soft = target.is_floating_point() and target.shape == output.shape  # probabilities
        classes = (target.argmax(1) if soft else target).reshape(-1).long()
        scores = output.movedim(1, -1).reshape(len(classes), -1)
    each = torch.ones(rows, dtype=torch.float64) if weights is None else weights.double()
    return scores.detach(), classes, each.to(scores.device).repeat_interleave(len(classes) // rows)


class ClassCounts:
    """Precision, recall or F1, from how often classes were right, predicted and there."""

    def __init__(self, name: str, head: Head) -> None:
        self._score, _, self._average = name.partition("_")
        self._head = head
        classes = head.outputs if head.kind == "sigmoids" else head.num_classes
        self._counts = torch.zeros(3, classes, dtype=torch.float64)

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Count a batch."""
        scores, there, each = class_rows(output, target, weights, self._head)
        if self._head.kind == "sigmoids":
            found = (scores > 0).double()
            there = there.double()
        else:
            classes = self._counts.shape[1]
            found = torch.nn.functional.one_hot(scores.argmax(1), classes).double()
            there = torch.nn.functional.one_hot(there, classes).double()
        sums = torch.stack([each @ (found * there), each @ found, each @ there])
        self._counts += sums.cpu()

    def state(self) -> State:
        """True positives, predictions and labels, (3, classes)."""
        return {"counts": self._counts.clone()}

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Count what another one has counted."""
        self._counts = self._counts + state["counts"]

    def value(self, world: World) -> torch.Tensor:
        """The score of the second class, or the mean over classes that were there or predicted."""
        counts: torch.Tensor = torch.stack(gather_objects(self._counts, world)).sum(0)
        right, found, there = counts.unbind()
        below = {"precision": found, "recall": there, "f1": (found + there) / 2}[self._score]
        scores = torch.where(below > 0, right / below.clamp(min=1e-300), torch.zeros_like(below))
        if self._average == "weighted":
            weighted: torch.Tensor = (scores * there).sum() / there.sum()
            return weighted
        if self._head.is_classifier and len(scores) == 2:
            return scores[1]
        if self._head.kind == "sigmoids":
            return scores.mean()
        return scores[(found > 0) | (there > 0)].mean()


class AreaUnderCurve:
    """The area under the ROC curve, exact: it keeps the scores of all rows.

    That is about 20 bytes a row of two classes (score, label, weight), 16 + 8 for each class of
    several. When an epoch ends, every worker has those of all rows for a moment.

    Of more than two classes, the mean over each class against the others.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Keep a batch's scores."""
        scores, there, each = class_rows(output, target, weights, self._head)
        if self._head.is_classifier:  # in probabilities of single precision, many would be equal
            several = scores.shape[1] > 2
            scores = scores.double().softmax(1) if several else scores[:, 1:] - scores[:, :1]
        self._parts.append((scores.cpu(), there.cpu(), each.cpu()))

    def state(self) -> State:
        """Scores, labels and weights of all rows."""
        if not self._parts:
            return {}
        scores, there, weights = (torch.cat(part) for part in zip(*self._parts, strict=True))
        return {"scores": scores, "labels": there, "weights": weights}

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Count what another one has counted."""
        if state:
            self._parts.append((state["scores"], state["labels"], state["weights"]))

    def value(self, world: World) -> torch.Tensor:
        """The area, of all workers' rows; NaN if only one class was there."""
        states = [state for state in gather_objects(self.state(), world) if state]
        if not states:
            return torch.tensor(torch.nan)
        scores, there, weights = (
            torch.cat([state[name] for state in states]) for name in ("scores", "labels", "weights")
        )
        if scores.shape[1] == 1:
            return area(scores[:, 0], there.reshape(-1) == 1, weights)
        several = self._head.kind == "sigmoids"
        areas = [
            area(scores[:, k], there[:, k] == 1 if several else there == k, weights)
            for k in range(scores.shape[1])
        ]
        return torch.stack(areas).nanmean()


def area(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The share of pairs of a positive and a negative row in which the positive has the higher
    score; equal scores count half.

    >>> area(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]),
    ...      torch.ones(4, dtype=torch.float64)).item()
    0.75
    """
    _, places = scores.unique(return_inverse=True)
    length = int(places.max()) + 1 if len(places) else 0
    up = torch.zeros(length, dtype=torch.float64).index_add(0, places, weights * positive)
    down = torch.zeros(length, dtype=torch.float64).index_add(0, places, weights * ~positive)
    below = down.cumsum(0) - down
    pairs = up.sum() * down.sum()
    if pairs == 0:
        return torch.tensor(torch.nan, dtype=torch.float64)
    return (up * (below + down / 2)).sum() / pairs


class Determination:
    """R², the coefficient of determination; of several values, the mean over them."""

    def __init__(self, head: Head) -> None:
        del head  # any regression has one
        self._parts: State = {}

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Count a batch."""
        values = target.reshape(len(target), -1).double()
        errors = (output.detach().reshape(values.shape).double() - values).square()
        each = torch.ones(len(values)) if weights is None else weights
        each = each.double().to(values.device)[:, None]
        weight = each.sum()
        mean = (each * values).sum(0) / weight.clamp(min=1e-300)
        spread = (each * (values - mean).square()).sum(0)
        self.add_state(
            {
                "weight": weight.cpu(),
                "mean": mean.cpu(),
                "spread": spread.cpu(),
                "errors": (each * errors).sum(0).cpu(),
            }
        )

    def state(self) -> State:
        """Weight, mean, squares around the mean, and squared errors."""
        return dict(self._parts)

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Count what another one has counted."""
        self._parts = _joined([one for one in (self._parts, state) if one])

    def value(self, world: World) -> torch.Tensor:
        """R² over the rows of all workers."""
        whole = _joined([state for state in gather_objects(self._parts, world) if state])
        if not whole:
            return torch.tensor(torch.nan)
        errors, spread = whole["errors"], whole["spread"]
        constant = (errors == 0).double()  # of labels that are all alike, as scikit-learn has it
        return torch.where(spread > 0, 1 - errors / spread.clamp(min=1e-300), constant).mean()


def _joined(parts: Sequence[Mapping[str, Any]]) -> State:
    """Means and squares around them, put together (Chan's formula: no large sums cancel)."""
    if not parts:
        return {}
    whole = dict(parts[0])
    for part in parts[1:]:
        weight = whole["weight"] + part["weight"]
        share = part["weight"] / weight.clamp(min=1e-300)
        apart = part["mean"] - whole["mean"]
        whole["spread"] = (
            whole["spread"] + part["spread"] + apart.square() * whole["weight"] * share
        )
        whole["mean"] = whole["mean"] + apart * share
        whole["errors"] = whole["errors"] + part["errors"]
        whole["weight"] = weight
    return whole
