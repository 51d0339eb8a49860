"""A compiled Keras model → the options of a training: loss, optimizer, metrics, loss weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from farandole.errors import InputError
from farandole.keras_models.arguments import output_names
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.losses import KerasLoss
from farandole.keras_models.metrics import KerasMetric
from farandole.keras_models.optimizer import KerasOptimizerFactory

_OWN_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics", "compute_own_loss")
_NO_LOSS = (
    "The Keras model isn't compiled, so it has no loss. Call model.compile(optimizer=…, loss=…), "
    "or give loss=…"
)


def training_options(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a compiled model stands for; what is `given` counts more.

    Names are Keras's, as in `compile`: loss="sparse_categorical_crossentropy", optimizer="adam",
    metrics=["accuracy"]. An optimizer of torch's stays one.

    >>> keras = require_torch_backend()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
    >>> options = training_options(model, {"epochs": 3})
    >>> options["epochs"], options["learning_rate"], options["loss"].head
    (3, 0.5, 'identity')
    """
    _refuse_own_steps(model)
    compiled = dict(model._compile_config.config) if model.compiled else {}
    known = output_names(model) or ()
    names = known if len(known) > 1 else ()
    options = dict(given)
    options["loss"] = _losses(options.get("loss", compiled.get("loss")), names)
    weights = options.get("loss_weights", compiled.get("loss_weights"))
    options["loss_weights"] = _weights(weights, names)
    options["metrics"] = _metrics(options, compiled, names)
    options |= _optimizer(options, model)
    for name, fine in (("unfreeze_at", (None,)), ("cache_features", (None, False))):
        asked = options.pop(name, None)
        if asked not in fine:
            raise InputError(_REFUSED[name].format(given=asked))
    return options


def _refuse_own_steps(model: Any) -> None:
    keras = require_torch_backend()
    for name in _OWN_STEPS:
        own, theirs = getattr(type(model), name, None), getattr(keras.Model, name, None)
        if own is not theirs and not getattr(own, "__module__", "keras.").startswith("keras."):
            raise InputError(
                f"The Keras model {model.name!r} has a {name} of its own, which the training loop "
                "here would never call. Put the loss into loss=…, or into add_loss() inside of "
                "call()."
            )


def _by_output(what: str, value: Any, names: Sequence[str]) -> Any:
    """A list, with one for each output, as a dict by their names."""
    if not isinstance(value, list | tuple) or not names:
        return value
    if len(value) != len(names):
        raise InputError(
            f"{what} has {len(value)} entries for the {len(names)} outputs {', '.join(names)}."
        )
    return dict(zip(names, value, strict=True))


def _losses(loss: Any, names: Sequence[str]) -> Any:
    if loss is None:
        raise InputError(_NO_LOSS)
    if isinstance(loss, list | tuple) and len(loss) == 1:
        loss = loss[0]
    loss = _by_output("loss", loss, names)
    if isinstance(loss, Mapping):
        found = {str(k): _loss(one) for k, one in loss.items() if one is not None}
        if not names and len(found) == 1:
            return next(iter(found.values()))
        return found
    return {name: _loss(loss) for name in names} if names else _loss(loss)


def _loss(loss: Any) -> Any:
    """Keras's, but a loss of torch's stays what it is."""
    return loss if isinstance(loss, torch.nn.Module) else KerasLoss.of(loss)


def _weights(weights: Any, names: Sequence[str]) -> Any:
    weights = _by_output("loss_weights", weights, names)
    if isinstance(weights, list | tuple) and len(weights) == 1:
        weights = weights[0]
    if isinstance(weights, int | float) and weights != 1:
        raise InputError(
            f"loss_weights are for several outputs. Received: {weights!r} for a model with one: "
            "use another learning rate."
        )
    if not isinstance(weights, Mapping):
        if weights is None or weights == 1:
            return None
        raise InputError(
            f"loss_weights must be numbers by the names of outputs. Received: {weights!r}"
        )
    return {k: v for k, v in weights.items() if v is not None} or None


def _metrics(options: Mapping[str, Any], compiled: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Those of `compile`, weighted ones among them; or those that were given instead."""
    if options.get("metrics") is not None:
        return _of_heads(options["metrics"], names, weighted=False)
    plain = _of_heads(compiled.get("metrics"), names, weighted=False)
    weighted = _of_heads(compiled.get("weighted_metrics"), names, weighted=True)
    if isinstance(plain, Mapping):
        return {name: _together(plain[name], weighted[name]) for name in plain}
    return _together(plain, weighted)


def _together(plain: Sequence[Any], weighted: Sequence[Any]) -> list[Any]:
    """All of them; a weighted one that has a plain one's name gets another, as in Keras."""
    taken = {one.name for one in plain if isinstance(one, KerasMetric)}
    renamed = [
        replace(one, name=f"weighted_{one.name}")
        if isinstance(one, KerasMetric) and one.name in taken
        else one
        for one in weighted
    ]
    return [*plain, *renamed]


def _of_heads(metrics: Any, names: Sequence[str], *, weighted: bool) -> Any:
    def several(value: Any) -> list[Any]:
        listed = [] if value is None else value if isinstance(value, list | tuple) else [value]
        flat = [one for part in listed for one in (part if isinstance(part, list) else [part])]
        return _numbered([_metric(one, weighted) for one in flat if one is not None])

    if not names:
        if isinstance(metrics, Mapping):
            metrics = [one for part in metrics.values() for one in several(part)]
        return several(metrics)
    if isinstance(metrics, list | tuple) and not _is_by_output(metrics, names):
        raise InputError(
            f"Which of the outputs {', '.join(names)} are the metrics {metrics!r} for? "
            f'metrics={{"{names[0]}": […]}} says so.'
        )
    by_name = _by_output("metrics", metrics, names) or {}
    unknown = [name for name in by_name if name not in names]
    if unknown:
        raise InputError(f"metrics has no output {unknown[0]!r}: {', '.join(names)}.")
    return {name: several(by_name.get(name)) for name in names}


def _numbered(metrics: Sequence[Any]) -> list[Any]:
    """With names of their own: of two that have one name, Keras calls the second name_1."""
    found: list[Any] = []
    for one in metrics:
        taken = {other.name for other in found if isinstance(other, KerasMetric)}
        if isinstance(one, KerasMetric) and one.name in taken:
            free = next(n for n in count(1) if f"{one.name}_{n}" not in taken)
            one = replace(one, name=f"{one.name}_{free}")
        found.append(one)
    return found


def _is_by_output(metrics: Sequence[Any], names: Sequence[str]) -> bool:
    return len(metrics) == len(names)


def _metric(metric: Any, weighted: bool) -> Any:
    """Keras's, but a torchmetrics object stays what it is."""
    return metric if hasattr(metric, "merge_state") else KerasMetric.of(metric, weighted=weighted)


def _optimizer(options: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The optimizer, and the learning rate that it begins with."""
    keras = require_torch_backend()
    own = model.optimizer if model.compiled else "adam"
    wanted = options.get("optimizer", own)
    if _is_torchs(wanted):
        _refuse_constraints(model)
        return {"optimizer": wanted}
    if isinstance(own, keras.optimizers.LossScaleOptimizer):
        wanted = own  # a model in float16: Keras would scale the loss for any other one too
    further = dict(options.get("optimizer_options") or {})
    if "learning_rate" in options:
        further["learning_rate"] = options["learning_rate"]
    factory = KerasOptimizerFactory.of(wanted, further)
    if factory.has_schedule and (options.get("schedule") or options.get("warmup")):
        raise InputError(
            f"{factory.name} has a schedule of its own. Received: a schedule or warmup besides. "
            "Leave one of them out, or give learning_rate=…, which replaces Keras's schedule."
        )
    for name in ("learning_rates", "accumulation"):
        if options.get(name) not in (None, 1):
            raise InputError(_REFUSED[name].format(given=options[name]))
    return {"optimizer": factory, "learning_rate": factory.learning_rate, "optimizer_options": {}}


def _refuse_constraints(model: Any) -> None:
    """Raise where weights have to stay within bounds: Keras's optimizers alone see to that."""
    for layer in model._flatten_layers():
        asked = [name for name, one in vars(layer).items() if name.endswith("_constraint") and one]
        asked += [one.name for one in layer._trainable_variables if one.constraint is not None]
        if layer.trainable and asked:
            raise InputError(
                f"The layer {layer.name!r} has a constraint ({asked[0]}), which only an optimizer "
                'of Keras\'s keeps. Use one, such as optimizer="adam" or keras.optimizers.AdamW().'
            )


_REFUSED = {
    "unfreeze_at": "Keras's layers stay frozen for all epochs of a training. Received: "
    "unfreeze_at={given!r}. Train twice: freeze=[…] first, then from the weights of that.",
    "cache_features": "Features of Keras's frozen layers aren't cached. Received: "
    "cache_features={given!r}. Leave it out; farandole.features gives them as columns.",
    "learning_rates": "A Keras optimizer has one learning rate for all layers. Received: "
    "learning_rates={given!r}. Use an optimizer of torch's: optimizer=torch.optim.AdamW.",
    "accumulation": "With a Keras optimizer, it accumulates gradients itself: give it "
    "gradient_accumulation_steps. Received: accumulation={given!r}",
}


def _is_torchs(optimizer: Any) -> bool:
    """Whether an optimizer is torch's, a solver, or a function that makes one of parameters."""
    keras = require_torch_backend()
    if inspect.isclass(optimizer):
        return issubclass(optimizer, torch.optim.Optimizer)
    known = isinstance(optimizer, str | Mapping | keras.optimizers.Optimizer)
    if isinstance(optimizer, str):
        return not hasattr(keras.optimizers, _class_name(optimizer))
    return not known


def _class_name(name: str) -> str:
    keras = require_torch_backend()
    kinds = {one.lower(): one for one in dir(keras.optimizers)}
    return kinds.get(name.lower(), "no such optimizer")
