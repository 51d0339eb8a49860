"""KerasMetric: a Keras metric by name, object or function, to be made on each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from farandole.errors import InputError, suggestion
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.packed import Packed

_AUTOMATIC = ("accuracy", "acc")
"""Names for the accuracy that suits the label."""
_NOT_ADDITIVE = ("PearsonCorrelation", "ConcordanceCorrelation")
"""Metrics whose values of two parts don't tell that of the whole."""


@dataclass(frozen=True)
class KerasMetric:
    """A Keras metric, without any state.

    >>> metric = KerasMetric.of("accuracy")
    >>> type(metric.made(torch.zeros(4, 3), torch.zeros(4))).__name__
    'SparseCategoricalAccuracy'
    >>> KerasMetric.of("mae").higher_is_better
    False
    """

    name: str
    """What it is called in the history."""
    packed: Packed | None
    """None: the accuracy that suits the label."""
    higher_is_better: bool | None
    is_weighted: bool = False
    """Whether rows count by their weights."""

    @classmethod
    def of(cls, metric: Any, *, weighted: bool = False) -> KerasMetric:
        """Take what `compile(metrics=[…])` takes."""
        if isinstance(metric, cls):
            return metric
        keras = require_torch_backend()
        if isinstance(metric, str) and metric.lower() in _AUTOMATIC:
            return cls(metric, None, True, weighted)
        try:
            made = keras.metrics.get(metric)
        except (ValueError, TypeError):
            made = None
        if made is None:
            known = [name for name in dir(keras.metrics) if not name.startswith("_")]
            advice = suggestion(str(metric), known) if isinstance(metric, str) else ""
            raise InputError(f"Keras has no metric {metric!r}. {advice}".rstrip())
        if type(made).__name__ in _NOT_ADDITIVE:
            raise InputError(
                f"The metric {type(made).__name__} of all rows can't be told from those of parts "
                "of them, which is how workers count. Work it out from predictions."
            )
        name = metric if isinstance(metric, str) else _name_of(made)
        return cls(name, Packed.of(made, "metric"), _direction(made), weighted)

    def made(self, output: torch.Tensor, target: torch.Tensor) -> Any:
        """A new Keras metric for such outputs and labels."""
        keras = require_torch_backend()
        made = self._accuracy(output, target) if self.packed is None else self.packed.made()
        if not isinstance(made, keras.metrics.Metric):
            made = keras.metrics.MeanMetricWrapper(made, name=self.name)
        return made

    def _accuracy(self, output: torch.Tensor, target: torch.Tensor) -> Any:
        """As Keras chooses it: by the last axis of outputs, and whether labels have it too."""
        keras = require_torch_backend()
        if output.shape[-1] == 1 or (output.dim() == 1 and target.dim() == 1):
            return keras.metrics.BinaryAccuracy(name=self.name)
        sparse = target.dim() < output.dim() or target.shape[-1] == 1
        kind = "SparseCategoricalAccuracy" if sparse else "CategoricalAccuracy"
        return getattr(keras.metrics, kind)(name=self.name)


def _name_of(metric: Any) -> str:
    """As Keras names it in logs: MyMetric, a function, is my_metric."""
    from keras.src.utils.naming import get_object_name

    return str(get_object_name(metric))


def _direction(metric: Any) -> bool | None:
    """Whether higher is better; None if the metric doesn't say."""
    return {"up": True, "down": False}.get(getattr(metric, "_direction", ""))
