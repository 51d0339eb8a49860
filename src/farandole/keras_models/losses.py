"""KerasLoss: a Keras loss as one number a row, which is what workers can add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from farandole.errors import InputError, suggestion
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.packed import Packed

_AUTOMATIC = ("crossentropy", "ce")
"""Names for the cross-entropy that suits the label."""
_HEADS = {
    "SparseCategoricalCrossentropy": ("softmax", "probabilities"),
    "CategoricalCrossentropy": ("softmax", "probabilities"),
    "CategoricalFocalCrossentropy": ("softmax", "probabilities"),
    "BinaryCrossentropy": ("sigmoid", "probability"),
    "BinaryFocalCrossentropy": ("sigmoid", "probability"),
}
"""How outputs become predictions, by the class of a loss: from logits, and from probabilities."""
_PER_ROWS = ("sum_over_batch_size", "mean")
_PER_WEIGHTS = "mean_with_sample_weight"


@dataclass(frozen=True)
class KerasLoss:
    """A Keras loss: a name, an object or a function of (labels, outputs).

    Called with outputs and labels, it gives the loss of each row.

    >>> loss = KerasLoss.of("mse")
    >>> loss(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])).tolist()
    [1.0, 9.0]
    >>> KerasLoss.of("sparse_categorical_crossentropy").head
    'probabilities'
    """

    packed: Packed | None
    """None: the cross-entropy that suits the label."""
    head: str | None
    """How outputs become predictions; None: a function of the user's doesn't say."""
    per_rows: bool = True
    """Whether weighted losses are divided by the number of rows; else by the sum of weights."""

    @classmethod
    def of(cls, loss: Any) -> KerasLoss:
        """Take what `compile(loss=…)` takes for one output."""
        if isinstance(loss, cls):
            return loss
        keras = require_torch_backend()
        if isinstance(loss, str) and loss.lower() in _AUTOMATIC:
            return cls(None, "probabilities")
        try:
            made = keras.losses.get(loss)
        except (ValueError, TypeError):
            made = None
        if made is None:
            known = [name for name in dir(keras.losses) if name[0].islower()]
            advice = suggestion(str(loss), known) if isinstance(loss, str) else ""
            raise InputError(f"Keras has no loss {loss!r}. {advice}".rstrip())
        if not isinstance(made, keras.losses.Loss):
            return cls(Packed.of(made, "loss"), _head_of_function(made))
        return cls(Packed.of(made, "loss"), _head(made), _is_per_rows(made))

    def __call__(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """The loss of each row, or of each of its positions."""
        if getattr(output, "_keras_mask", None) is not None and output.dim() > 2:
            raise InputError(
                "The model's outputs have a mask (mask_zero=True, or Masking): Keras divides their "
                "loss by the positions of a batch that count, so it is no mean over rows. Drop the "
                "mask before the last layer, or give the label column weights."
            )
        if output.dtype in (torch.float16, torch.bfloat16):
            output = output.float()  # as Keras does: sums of rows need more digits
        function = self._automatic(output, target) if self.packed is None else self._function
        try:
            values = function(target, output)
        except ValueError as error:  # of Keras's own functions, which compare shapes
            advice = _advice(function, output, target)
            if not advice:
                raise
            raise InputError(f"{advice} Keras says: {error}") from error
        return self._counted(values)

    def _counted(self, values: torch.Tensor) -> torch.Tensor:
        """The losses, of which some may not count: Keras takes the mean of the others."""
        mask = getattr(values, "_keras_mask", None)
        if mask is None:
            return values
        if not self.per_rows:
            raise InputError(
                "The loss leaves out some rows (it has a mask), which a mean by weights can't "
                f'follow. Use reduction="{_PER_ROWS[0]}".'
            )
        counts = mask.to(values.dtype)
        counted: torch.Tensor = values * counts * (counts.numel() / counts.sum().clamp(min=1))
        return counted

    @property
    def _function(self) -> Any:
        found = self.__dict__.get("_made")
        if found is None:
            assert self.packed is not None
            found = _matched(self.packed.made())
            object.__setattr__(self, "_made", found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    def _automatic(self, output: torch.Tensor, target: torch.Tensor) -> Any:
        keras = require_torch_backend()
        if output.shape[-1] == 1:
            return _matched(keras.losses.binary_crossentropy)
        if target.dim() < output.dim():
            return _matched(keras.losses.sparse_categorical_crossentropy)
        return _matched(keras.losses.categorical_crossentropy)


def _advice(function: Any, output: torch.Tensor, target: torch.Tensor) -> str:
    """What to do with labels that another cross-entropy wants."""
    name = getattr(getattr(getattr(function, "__self__", None), "fn", None), "__name__", "")
    classes, is_number = output.shape[-1], target.dim() < output.dim()
    if name == "sparse_categorical_crossentropy" and target.shape == output.shape:
        return (
            f"The labels have {classes} numbers a row, as if they were one-hot. Use "
            "categorical_crossentropy, or a label column with the number of the class."
        )
    if name.startswith("categorical") and is_number:
        return (
            "The labels are numbers of classes. Use sparse_categorical_crossentropy, or give "
            f"{classes} numbers a row (one-hot)."
        )
    if name.startswith("binary") and is_number and classes > 1:
        return (
            f"The model has {classes} outputs, and the labels one number a row. Use "
            'sparse_categorical_crossentropy, or one output: Dense(1, activation="sigmoid").'
        )
    return ""


def _matched(loss: Any) -> Any:
    """A loss's own function of labels and outputs, whose shapes are matched: (n,) and (n, 1)."""
    from keras.src.losses.losses import LossFunctionWrapper, squeeze_or_expand_to_same_rank

    if isinstance(loss, LossFunctionWrapper) or not hasattr(loss, "call"):
        wrapped: Any = loss if hasattr(loss, "call") else LossFunctionWrapper(loss)
        return wrapped.call
    kind = getattr(torch, loss.dtype)

    def called(target: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """A class of the user's leaves types to Loss.__call__, and shapes to who gives them."""
        pair = squeeze_or_expand_to_same_rank(target.to(kind), output.to(kind))
        found: torch.Tensor = loss.call(*pair)
        return found

    return called


def _head(loss: Any) -> str | None:
    names = [kind.__name__ for kind in type(loss).__mro__]
    known = next((_HEADS[name] for name in names if name in _HEADS), None)
    if known is None:
        is_keras = type(loss).__module__.startswith("keras.")
        return "identity" if is_keras and "LossFunctionWrapper" not in names[:1] else None
    return known[0] if loss.get_config().get("from_logits") else known[1]


def _head_of_function(function: Any) -> str | None:
    """What the function of a loss of Keras's own says; of a user's function nothing is known."""
    keras = require_torch_backend()
    if not getattr(function, "__module__", "").startswith("keras."):
        return None
    name = function.__name__.replace("_", "")
    kinds = {one.lower(): heads[1] for one, heads in _HEADS.items()}
    return kinds.get(name, "identity") if hasattr(keras.losses, function.__name__) else None


def _is_per_rows(loss: Any) -> bool:
    if loss.reduction in _PER_ROWS:
        return True
    if loss.reduction == _PER_WEIGHTS:
        return False
    raise InputError(
        f"The loss {type(loss).__name__} has reduction={loss.reduction!r}, but the loss of a batch "
        f'is a mean over its rows. Use reduction="{_PER_ROWS[0]}", and another learning rate.'
    )
