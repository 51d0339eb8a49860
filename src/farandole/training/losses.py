"""Losses by name, torch class or callable, all reduced to one number a row.

A loss a row is what makes weights possible, and what makes N workers sum up to
exactly the mean that one worker would see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from farandole.arguments import check_dict, check_not_negative
from farandole.artifact import Head
from farandole.errors import InputError, suggestion
from farandole.keras_models import KerasLoss
from farandole.networks import chosen_output
from farandole.ragged import Ragged

Tensors = Sequence[torch.Tensor]
RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """What a loss implies for labels and predictions."""

    head: str | None
    """How outputs become predictions: see `farandole.artifact.signature.HEADS`. None: a function of
    the user's doesn't say."""
    row_loss: RowLoss
    keeps_shapes: bool = False
    """Whether the loss itself matches outputs and labels of different shapes, as Keras's do."""


CLASSES = ("softmax", "log_softmax", "probabilities")
"""Heads that choose one of several classes."""


def _functional(function: Callable[..., torch.Tensor], **options: Any) -> RowLoss:
    return lambda output, target: function(output, target, reduction="none", **options)


NAMES = {
    "cross_entropy": Kind("softmax", _functional(F.cross_entropy)),
    "nll": Kind("log_softmax", _functional(F.nll_loss)),
    "binary_cross_entropy": Kind("sigmoid", _functional(F.binary_cross_entropy_with_logits)),
    "mse": Kind("identity", _functional(F.mse_loss)),
    "mae": Kind("identity", _functional(F.l1_loss)),
    "huber": Kind("identity", _functional(F.huber_loss)),
    "smooth_l1": Kind("identity", _functional(F.smooth_l1_loss)),
    "poisson_nll": Kind("identity", _functional(F.poisson_nll_loss)),
}

_CLASSES: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "softmax",
    nn.NLLLoss: "log_softmax",
    nn.MultiMarginLoss: "softmax",
    nn.BCEWithLogitsLoss: "sigmoid",
    nn.MultiLabelSoftMarginLoss: "sigmoids",
    nn.MSELoss: "identity",
    nn.L1Loss: "identity",
    nn.HuberLoss: "identity",
    nn.SmoothL1Loss: "identity",
    nn.PoissonNLLLoss: "identity",
}
"""How outputs become predictions, by the class of a torch loss, also of one derived from it."""

_SYNONYMS: dict[Any, str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll",
    nn.BCEWithLogitsLoss: "binary_cross_entropy",
    F.cross_entropy: "cross_entropy",
    F.nll_loss: "nll",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy",
    F.mse_loss: "mse",
    F.l1_loss: "mae",
    F.huber_loss: "huber",
    F.smooth_l1_loss: "smooth_l1",
}


@dataclass(frozen=True)
class TrainedHead:
    """A head of the network, and the label that it learns."""

    head: Head
    target: int = 0
    """The number of the label; of several labels side by side, the first."""


@dataclass(frozen=True)
class Loss:
    """The loss of a network: one part for each head, or one callable that takes them all."""

    parts: tuple[Kind, ...] = ()
    callable: Callable[..., torch.Tensor] | None = None
    names: tuple[str, ...] = ()
    """The heads that `parts` are for, where they were named."""
    weights: tuple[tuple[str, float], ...] = ()
    """What the loss of a head counts, by its name; 1 for all others."""
    heads: tuple[TrainedHead, ...] = ()
    """What the network turned out to have: see `farandole.training.heads`."""
    is_wired: bool = False
    """Whether outputs are looked up by head; else the only output is what the network gives."""
    task_given: bool = False
    """Whether the user has said what kind of task the heads have."""
    per_rows: bool = False
    """Whether the mean of weighted losses is over rows, as Keras has it, not over their weights."""

    @property
    def head(self) -> str | None:
        """How the (first) output becomes a prediction; None if the loss alone doesn't tell."""
        return self.parts[0].head if self.parts else None

    def part_of(self, number: int) -> Kind | None:
        """The part for a head, by its number; None of a callable that takes them all."""
        return self.parts[min(number, len(self.parts) - 1)] if self.parts else None

    def kind_of(self, target: int) -> Kind | None:
        """What the loss implies for one target; None for a callable, which may do as it likes."""
        heads = [number for number, one in enumerate(self.heads) if one.target == target]
        kind = self.part_of(heads[0] if heads else target)
        return None if kind is None or kind.head is None else kind

    def label_kind(self, target: int, *, inferred: bool = False) -> str | None:
        """What one label is, as a word of `HEADS`: what the loss implies, else what the task says.

        None where neither does; with `inferred`, what was made of label and output counts too.
        """
        kind = self.kind_of(target)
        if kind is not None:
            return kind.head
        if not (self.task_given or inferred):
            return None
        return next((one.head.kind for one in self.heads if one.target == target), None)

    def pairs(self, output: Any, targets: Tensors) -> list[tuple[Any, Any]]:
        """For each head, its output and the label that it learns."""
        if len(targets) == 1 and isinstance(output, torch.Tensor):  # the usual case, in every step
            return [(output, targets[0])]
        if self.is_wired and len(self.heads) == 1:
            output = chosen_output(output, self.heads[0].head.output)
        if not self.is_wired or len(self.heads) == 1:
            return list(zip(*align(output, targets), strict=True))
        return [(chosen_output(output, h.head.output), targets[h.target]) for h in self.heads]

    def rows(
        self, output: Any, targets: Tensors, by_head: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The loss of each row, or, from a callable that gives but one number, of all of them.

        Those of several heads are put into `by_head`, too.
        """
        if self.callable is not None:
            return _checked(self.callable(output, *targets), targets)
        pairs = self.pairs(output, targets)
        if len(self.parts) not in (1, len(pairs)):
            raise InputError(
                f"There are {len(self.parts)} losses for {len(pairs)} outputs of the network."
            )
        if len(pairs) == 1 and not self.weights:
            return self.head_rows(0, *pairs[0])
        found = [self.head_rows(number, *pair) for number, pair in enumerate(pairs)]
        if by_head is not None:
            by_head += [one.detach() for one in found]
        if any(one.dim() == 0 for one in found):
            found = [one.mean() for one in found]
        return torch.stack([one * self.weight_of(n) for n, one in enumerate(found)]).sum(0)

    def head_rows(self, number: int, output: Any, target: Any) -> torch.Tensor:
        """The loss of one head, by its number, for each row; or of all of them."""
        part = self.parts[min(number, len(self.parts) - 1)]
        if part.keeps_shapes:
            return _by_row(part.row_loss(output, target))
        if isinstance(target, Ragged):
            check_same_sizes(output, target)
            losses = part.row_loss(*_matched(output.values, target.values))
            return row_means(losses, target)
        if part.head is None:
            return _checked(part.row_loss(output, target), [target])
        if part.head in CLASSES:
            _refuse_fractions_at_positions(output, target)
        return _by_row(part.row_loss(*_matched(output, target)))

    def weight_of(self, number: int) -> float:
        """What the loss of a head counts, by its number."""
        name = self.heads[number].head.name if self.heads else ""
        return dict(self.weights).get(name, 1.0)


def resolve(loss: Any, weights: Any = None) -> Loss:
    """The loss that a name, a torch loss, a callable, a list or a dict of those stands for.

    >>> resolve("mse").rows(torch.tensor([[1.0], [2.0]]), [torch.tensor([0.0, 0.0])]).tolist()
    [1.0, 4.0]
    >>> resolve({"digit": "cross_entropy", "size": "mse"}, {"size": 0.1}).names
    ('digit', 'size')
    """
    found = _resolve(loss)
    if weights is None:
        return found
    check_dict("loss_weights", weights, "heads and weights", {"digit": 1.0})
    for name, weight in weights.items():
        check_not_negative(f"loss_weights[{name!r}]", weight)
        if found.names and name not in found.names:
            raise InputError(
                f"loss_weights has no head {name!r} to weight. {suggestion(name, found.names)}"
            )
    if found.callable is not None:
        raise InputError(
            "loss_weights are for a loss of each head. Received: a function that takes all outputs "
            'at once, which can weight them itself; or give loss={"head": …}.'
        )
    return replace(found, weights=tuple((str(k), float(v)) for k, v in weights.items()))


def _resolve(loss: Any) -> Loss:
    if isinstance(loss, Mapping):
        return _of_heads(loss)
    if isinstance(loss, list | tuple):
        for one in loss:
            _refuse_class_weights(one)
        parts = [_resolve(part) for part in loss]
        if not parts or any(part.callable for part in parts):
            raise InputError(
                "A list of losses takes names and torch losses only. Functions go into a dict: "
                'loss={"label column": function}.'
            )
        return Loss(tuple(kind for part in parts for kind in part.parts))
    if isinstance(loss, str):
        if loss not in NAMES:
            raise InputError(f"There is no loss {loss!r}. {suggestion(loss, NAMES)}")
        return Loss((NAMES[loss],))
    if isinstance(loss, KerasLoss):
        kind = Kind(loss.head, loss, keeps_shapes=True)
        return Loss((kind,), per_rows=loss.per_rows)
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        return Loss((_from_module(loss),))
    if isinstance(loss, Hashable) and loss in _SYNONYMS:
        return Loss((NAMES[_SYNONYMS[loss]],))
    if callable(loss):
        return Loss(callable=loss)
    raise InputError(f"loss must be a name or a callable. Received: loss={loss!r}")


def _refuse_class_weights(loss: Any) -> None:
    """Weights of classes become weights of rows, which all heads share."""
    if class_weights_of(loss) is not None:
        raise InputError(
            f"{type(loss).__name__} has class weights, which are for a network with one head. Use "
            "a function for that head: lambda output, target: cross_entropy(output, target, …)."
        )


def _of_heads(losses: Mapping[Any, Any]) -> Loss:
    """One loss for each head, by its name."""
    if not losses:
        raise InputError('A dict of losses needs a loss for each head: loss={"digit": "mse"}.')
    parts = []
    for name, one in losses.items():
        if isinstance(one, Mapping | list | tuple):
            raise InputError(f"The head {name!r} takes one loss. Received: {one!r}")
        _refuse_class_weights(one)
        found = _resolve(one)
        parts.append(Kind(None, found.callable) if found.callable else found.parts[0])
    per_rows = {one.per_rows for one in losses.values() if isinstance(one, KerasLoss)}
    if len(per_rows) > 1:
        raise InputError(
            "The losses of all heads need one way to average weighted rows. Received: some with "
            'reduction="mean_with_sample_weight", and some without.'
        )
    return Loss(tuple(parts), names=tuple(map(str, losses)), per_rows=True in per_rows)


def class_weights_of(loss: Any) -> list[float] | None:
    """The class weights inside a torch loss: they belong to the rows, to be averaged with them."""
    known = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if not known or loss.weight is None or not _is_plain(loss):
        return None
    weights: list[float] = loss.weight.tolist()
    return weights


def _is_plain(loss: nn.Module) -> bool:
    """Whether a loss is one of torch's: one derived from it may use its options as it likes."""
    return type(loss).__module__.startswith("torch.nn.")


def _from_module(loss: nn.Module) -> Kind:
    _refuse_unlike(loss)
    bare = copy.deepcopy(loss)
    bare.reduction = "none"  # type: ignore[assignment]
    if class_weights_of(bare) is not None:
        bare.weight = None  # type: ignore[assignment]
    heads = [head for kind, head in _CLASSES.items() if isinstance(loss, kind)]
    if heads or _is_plain(loss):
        return Kind(heads[0] if heads else "identity", bare)
    return Kind(None, bare)


def _refuse_unlike(loss: nn.Module) -> None:
    """Raise for options that a mean over the rows of a batch can't honour."""
    name = type(loss).__name__
    if loss.reduction not in ("mean", "none"):
        raise InputError(
            f"{name} has reduction={loss.reduction!r}, but a batch's loss is the mean over its "
            'rows. Use reduction="mean" and another learning rate, or a callable of your own.'
        )
    if getattr(loss, "ignore_index", -100) != -100:
        raise InputError(
            f"{name} has ignore_index={loss.ignore_index}. Drop those rows, or give them the "
            "weight 0 in a weight column."
        )
    if getattr(loss, "label_smoothing", 0.0) and class_weights_of(loss) is not None:
        raise InputError(f"{name} has class weights and label_smoothing: only one at a time.")


def _checked(value: torch.Tensor, targets: Tensors) -> torch.Tensor:
    """What a function of the user's gives: a value for each row, or one for all."""
    first: Any = targets[0] if targets else None
    if isinstance(first, Mapping):  # the features, of a network that takes them by name
        first = next(iter(first.values()), None)
    if value.dim() and first is not None and len(value) != len(first):
        raise InputError(
            f"The loss gives {len(value)} values for {len(first)} rows: it must return their mean, "
            "or one value a row."
        )
    return value if value.dim() == 0 else _by_row(value)


def check_same_sizes(output: Any, target: Ragged) -> None:
    """Raise unless there is an output for each element of rows that differ in length."""
    if not isinstance(output, Ragged):
        raise InputError(
            "Labels differ in length, so the network has to return its outputs as Ragged(values, "
            f"sizes), with the sizes of its input. It returns a {type(output).__name__}."
        )
    if not torch.equal(output.sizes, target.sizes):
        raise InputError(
            f"The network gives outputs for {len(output.values)} elements where there are "
            f"{len(target.values)} labels: each row needs as many labels as it has elements."
        )


def row_means(values: torch.Tensor, like: Ragged) -> torch.Tensor:
    """The mean over the elements of each row; 0 for a row without any."""
    flat = values.reshape(len(values), -1).mean(1) if values.dim() > 1 else values
    sums = flat.new_zeros(len(like)).index_add(0, like.owners, flat)
    return sums / like.lengths.clamp(min=1)


def align(output: Any, targets: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Pair outputs with targets: a network with one output takes several targets side by side."""
    outputs = list(output) if isinstance(output, tuple | list) else [output]
    if len(outputs) == 1 and len(targets) > 1:
        joined = torch.cat([target.reshape(len(target), -1) for target in targets], dim=1)
        return outputs, [joined]
    if len(outputs) != len(targets):
        raise InputError(
            f"The network gives {len(outputs)} outputs for {len(targets)} label columns."
        )
    return outputs, list(targets)


def _matched(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 1) against (n,) would broadcast to (n, n), silently."""
    if target.is_floating_point() and output.shape != target.shape:
        if _without_ones(output) != _without_ones(target):
            raise InputError(
                f"The network gives {tuple(output.shape[1:])} values a row where the label has "
                f"{tuple(target.shape[1:])}."
            )
        output = output.reshape(target.shape)
    return output, target


def _refuse_fractions_at_positions(output: torch.Tensor, target: torch.Tensor) -> None:
    """Raise for class numbers at positions that come as floating-point numbers."""
    several = output.dim() > 2 and target.shape[1:] == output.shape[2:]
    if several and target.is_floating_point():
        raise InputError(
            "Labels that are a class for each position have to be whole numbers, and these are "
            'floating-point ones. Cast them: df["label"].cast("array<int>").'
        )


def _without_ones(tensor: torch.Tensor) -> list[int]:
    """The shape, but for what may be dropped or added without another order of the values."""
    return [len(tensor), *(size for size in tensor.shape[1:] if size != 1)]


def _by_row(loss: torch.Tensor) -> torch.Tensor:
    return loss.reshape(len(loss), -1).mean(1) if loss.dim() > 1 else loss
