"""Losses by name, torch class or callable, all reduced to one number a row.

A loss a row is what makes weights possible, and what makes N workers sum up to
exactly the mean that one worker would see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from farandole.errors import InputError, suggestion

Tensors = Sequence[torch.Tensor]
RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """What a loss implies for labels and predictions."""

    head: str
    """How outputs become predictions: see `farandole.artifact.signature.HEADS`."""
    row_loss: RowLoss

    @property
    def takes_classes(self) -> bool:
        """Whether labels are class numbers."""
        return self.head in ("softmax", "log_softmax")


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
class Loss:
    """The loss of a network: one part for each target, or one callable that takes them all."""

    parts: tuple[Kind, ...] = ()
    callable: Callable[..., torch.Tensor] | None = None

    @property
    def head(self) -> str:
        """How the (first) output becomes a prediction."""
        return self.parts[0].head if self.parts else "identity"

    def kind_of(self, target: int) -> Kind | None:
        """What the loss implies for one target; None for a callable, which may do as it likes."""
        if not self.parts:
            return None
        return self.parts[min(target, len(self.parts) - 1)]

    def rows(self, output: Any, targets: Tensors) -> torch.Tensor:
        """The loss of each row, or, from a callable that gives but one number, of all of them."""
        if self.callable is not None:
            value = self.callable(output, *targets)
            if value.dim() and len(value) != len(targets[0]):
                raise InputError(
                    f"The loss gives {len(value)} values for {len(targets[0])} rows: it must "
                    "return their mean, or one value a row."
                )
            return value if value.dim() == 0 else _by_row(value)
        outputs, aligned = align(output, targets)
        if len(self.parts) not in (1, len(outputs)):
            raise InputError(
                f"There are {len(self.parts)} losses for {len(outputs)} outputs of the network."
            )
        parts = self.parts * (len(outputs) if len(self.parts) == 1 else 1)
        losses = [
            _by_row(part.row_loss(*_matched(o, t)))
            for part, o, t in zip(parts, outputs, aligned, strict=True)
        ]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0)


def resolve(loss: Any) -> Loss:
    """The loss that a name, a torch loss, a callable or a list of those stands for.

    >>> resolve("mse").rows(torch.tensor([[1.0], [2.0]]), [torch.tensor([0.0, 0.0])]).tolist()
    [1.0, 4.0]
    """
    if isinstance(loss, list | tuple):
        parts = [resolve(part) for part in loss]
        if not parts or any(part.callable for part in parts):
            raise InputError("A list of losses takes names and torch losses only.")
        return Loss(tuple(kind for part in parts for kind in part.parts))
    if isinstance(loss, str):
        if loss not in NAMES:
            raise InputError(f"There is no loss {loss!r}. {suggestion(loss, NAMES)}")
        return Loss((NAMES[loss],))
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        return Loss((_from_module(loss),))
    if isinstance(loss, Hashable) and loss in _SYNONYMS:
        return Loss((NAMES[_SYNONYMS[loss]],))
    if callable(loss):
        return Loss(callable=loss)
    raise InputError(f"loss must be a name or a callable. Received: loss={loss!r}")


def class_weights_of(loss: Any) -> list[float] | None:
    """The class weights inside a torch loss: they belong to the rows, to be averaged with them."""
    if not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) or loss.weight is None:
        return None
    weights: list[float] = loss.weight.tolist()
    return weights


def _from_module(loss: nn.Module) -> Kind:
    _refuse_unlike(loss)
    bare = copy.deepcopy(loss)
    bare.reduction = "none"  # type: ignore[assignment]
    if class_weights_of(bare) is not None:
        bare.weight = None  # type: ignore[assignment]
    name = _SYNONYMS.get(type(loss))
    return Kind(NAMES[name].head if name else "identity", bare)


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


def _without_ones(tensor: torch.Tensor) -> list[int]:
    """The shape, but for what may be dropped or added without another order of the values."""
    return [len(tensor), *(size for size in tensor.shape[1:] if size != 1)]


def _by_row(loss: torch.Tensor) -> torch.Tensor:
    return loss.reshape(len(loss), -1).mean(1) if loss.dim() > 1 else loss
