"""What is tuned: a function, or the training of a network."""

from __future__ import annotations

import copy
import inspect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from farandole import _spark
from farandole.api import TrainingResult, train
from farandole.data import Fold, KeptTable
from farandole.engines import Engine
from farandole.errors import InputError, suggestion
from farandole.training import (
    EpochEnded,
    Event,
    Recipe,
    StepEnded,
    TrainingStarted,
    seed_everything,
)
from farandole.tuning.reporting import (
    CurrentTrial,
    MetricNeverReported,
    TrialPruned,
    entered_trial,
)
from farandole.tuning.trial_run import VALUE, TrialRun

SIZE, LATENCY = "parameters", "latency"
"""Metrics of a network besides those of its history: its size, and milliseconds for one row."""
_LATENCY_CALLS = 30
NETWORK = "network"
"""An argument of a trial that takes the place of the network itself."""

_LOST = "a trial whose worker is lost runs again, once"
_NO_CHECKPOINTS = f"trials write no checkpoints; {_LOST}"
REFUSED_OPTIONS = {
    "checkpoint_dir": _NO_CHECKPOINTS,
    "checkpoint_steps": _NO_CHECKPOINTS,
    "checkpoint_minutes": _NO_CHECKPOINTS,
    "keep_last": _NO_CHECKPOINTS,
    "keep_best": _NO_CHECKPOINTS,
    "max_restarts": _LOST,
    "min_workers": _LOST,
    "num_workers": "tune has workers_per_trial",
    "engine": "tune has an engine of its own",
    "timeout": "tune has a timeout of its own",
    "heartbeat": "tune has a heartbeat of its own",
    "progress": "tune shows how far it has come",
    "trace": "trials write no trace",
    "observer": "the events of trials stay with their workers; tune shows how far it has come",
}
"""Options of `farandole.train` that a trial has no use for."""

TRAIN_OPTIONS = frozenset(
    {name for name in inspect.signature(train).parameters if name not in ("network", "data")}
    | {one.name for one in fields(Recipe)}
) - {"recipe", *REFUSED_OPTIONS}


class StopTraining(BaseException):
    """Ends a training from its observer: no other exception of an observer does."""


class MetricMissing(StopTraining):
    """The history has no such column."""


@dataclass(frozen=True)
class RunOutput:
    """What came out of a run that ended by itself."""

    values: Mapping[str, float]
    row_epochs: int = 0
    result: TrainingResult | None = None


@dataclass(frozen=True)
class FunctionObjective:
    """A function of a trial's arguments; it returns a number, or several by name or in order."""

    fn: Callable[..., Any]
    metrics: Sequence[str]

    def run(self, run: TrialRun, tables: Sequence[pa.Table], trial: CurrentTrial) -> RunOutput:
        """Call it; a `TrialPruned` passes."""
        seed_everything(run.seed + run.number)
        with entered_trial(trial):
            return RunOutput(as_values(self.fn(*tables, **run.arguments), self.metrics))


def as_values(found: Any, metrics: Sequence[str]) -> dict[str, float]:
    """What a function returned, by names.

    >>> as_values(0.5, ["loss"]), as_values((0.5, 3), ["loss", "size"])
    ({'value': 0.5}, {'loss': 0.5, 'size': 3.0})
    """
    if isinstance(found, Mapping):
        return {str(name): float(value) for name, value in found.items() if _is_number(value)}
    if isinstance(found, tuple | list):
        if len(found) != len(metrics):
            raise InputError(
                f"The function returned {len(found)} values for {len(metrics)} metrics."
            )
        return {name: float(value) for name, value in zip(metrics, found, strict=True)}
    if not _is_number(found):
        raise InputError(
            "The function should return a number, or several in a dict or a tuple. It returned: "
            f"{found!r}"
        )
    return {VALUE: float(found)}


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and isinstance(value, int | float | np.number | np.ndarray)


class Training:
    """A training to tune: a network, and what of `farandole.train` stays the same for all trials.

    Args:
        network: a module; or, to tune the network itself, a class of modules or a function: the
            arguments in the space that `farandole.train` doesn't have are theirs. A function gets
            a `farandole.training.NetworkInputs` first. A space may have "network" too: a list of
            any of these, of which a trial trains one.
        **options: of `farandole.train`.

    >>> from farandole.networks import MLP
    >>> Training(lambda inputs, hidden: MLP([inputs.width, *hidden, 10]), epochs=5, validation=0.2)
    Training(<lambda>, epochs=5, validation=0.2)
    """

    def __init__(self, network: Any, **options: Any) -> None:
        if not callable(network):
            raise InputError(
                "network must be a torch.nn.Module, a class of them or a function that makes one. "
                f"Received: {type(network).__name__}"
            )
        for name in options:
            _refuse(name)
            if name not in TRAIN_OPTIONS:
                raise InputError(
                    f"There is no option {name!r}. {suggestion(name, sorted(TRAIN_OPTIONS))}"
                )
        self.network = network
        self.options = options
        self.names: Mapping[str, str] = {}
        """What else options may be called in a space, with their own names."""

    def with_options(self, **options: Any) -> Training:
        """The same, with more options."""
        return Training(self.network, **{**self.options, **options}).with_names(self.names)

    def with_names(self, names: Mapping[str, str]) -> Training:
        """The same, with other names for options in a space."""
        self.names = dict(names)
        return self

    def named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a trial, by the options' own names."""
        return {self.names.get(name, name): value for name, value in arguments.items()}

    def __repr__(self) -> str:
        name = getattr(self.network, "__name__", type(self.network).__name__)
        return f"Training({', '.join([name, *(f'{k}={v!r}' for k, v in self.options.items())])})"

    def check_names(self, names: Sequence[str]) -> None:
        """Raise for an argument that neither `train` nor the network has."""
        # A network that the space has may take any argument.
        chooses = NETWORK in [self.names.get(name, name) for name in names]
        own = None if chooses else network_arguments(self.network)
        for name in names:
            _refuse(self.names.get(name, name))
            if self.names.get(name, name) in TRAIN_OPTIONS or own is None or name in own:
                continue
            hint = suggestion(name, [*own, *sorted(self.names or TRAIN_OPTIONS)])
            if isinstance(self.network, nn.Module):
                raise InputError(
                    f"The space has {name!r}, which is no option of training. {hint} The network "
                    "is a module: give its class, or a function that makes it, to tune arguments "
                    "of its own."
                )
            raise InputError(
                f"The space has {name!r}, which is neither an argument of "
                f"{getattr(self.network, '__name__', 'the network')} nor an option of training. "
                f"{hint}"
            )

    def made(self, arguments: Mapping[str, Any]) -> Any:
        """What `train` takes as the network of a trial."""
        known = TRAIN_OPTIONS | {NETWORK}
        own = {name: value for name, value in arguments.items() if name not in known}
        network = arguments.get(NETWORK, self.network)
        if isinstance(network, nn.Module):
            return network
        if isinstance(network, type):
            return partial(_built, network, own)
        return partial(network, **own)


def _refuse(name: str) -> None:
    if name in REFUSED_OPTIONS:
        raise InputError(f"{name} can't be an option of trials: {REFUSED_OPTIONS[name]}.")


def _built(network: type[nn.Module], own: Mapping[str, Any], inputs: Any) -> nn.Module:
    return network(**own)


def network_arguments(network: Any) -> list[str] | None:
    """The arguments of a network's class or function; None: any."""
    if isinstance(network, nn.Module):
        return []
    parameters = list(inspect.signature(network).parameters.values())
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    names = [one.name for one in parameters]
    return names if isinstance(network, type) else names[1:]


@dataclass(frozen=True)
class TrainingObjective:
    """Trains a network with the arguments of a trial."""

    training: Training
    metrics: Sequence[str]
    features: tuple[str, ...] | None = None
    fold_column: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        run: TrialRun,
        data: Any,
        trial: CurrentTrial | None,
        *,
        engine: str | Engine,
        num_workers: int = 1,
        **more: Any,
    ) -> RunOutput:
        """Train; if the driver says so, end with a `TrialPruned`."""
        observer = _Observer(trial, self.metrics[0])
        run = replace(run, arguments=self.training.named(run.arguments))
        options = {**self._options(run), **more}
        options |= {"engine": engine, "num_workers": num_workers, "observer": observer}
        try:
            result = train(self.training.made(run.arguments), data, **options)
        except MetricMissing as missing:
            raise MetricNeverReported(str(missing)) from None
        except StopTraining:
            stopped = TrialPruned(f"trial {run.number} was stopped")
            stopped.row_epochs = observer.row_epochs
            raise stopped from None
        values = history_values(result, recipe_of(options))
        if LATENCY in self.metrics and trial is not None:
            values[LATENCY] = latency(result, data)
        return RunOutput(values, observer.row_epochs, result)

    def _options(self, run: TrialRun) -> dict[str, Any]:
        given = {name: value for name, value in run.arguments.items() if name in TRAIN_OPTIONS}
        options: dict[str, Any] = {"seed": run.seed, "progress": False, "max_restarts": 0}
        options["allow_pickle"] = True  # of hundreds of networks, one is saved, if any
        options |= {**self.training.options, **self.options, **given}
        if options.get("callbacks"):  # each trial's remember what they have seen
            options["callbacks"] = copy.deepcopy(options["callbacks"])
        if self.features is not None:
            options["features"] = self.features
        if run.fold is not None and self.fold_column is not None:
            options["validation"] = Fold(self.fold_column, run.fold)
        if run.initial is not None:
            options["initial_weights"] = run.initial
        return options


class _Observer:
    """Reports the metric after each epoch, and ends the training when it is told to."""

    def __init__(self, trial: CurrentTrial | None, metric: str) -> None:
        self._trial = trial
        self._metric = metric
        self._rows = self._epochs = 0
        self.row_epochs = 0

    def __call__(self, event: Event) -> None:
        """Ask the driver whether to go on, a few times a second and after each epoch."""
        stops = False
        if isinstance(event, TrainingStarted):
            self._rows, self._epochs = event.rows, event.epochs
        elif isinstance(event, EpochEnded):
            self.row_epochs += self._rows
            value = event.row.get(self._metric)
            if value is None and self._trial is not None and self._metric not in (SIZE, LATENCY):
                raise MetricMissing(
                    f"metric={self._metric!r} was never reported: the history has "
                    f"{', '.join(event.row)}. Name one of those."
                )
            last = event.epoch == self._epochs
            if self._trial is not None:
                stops = self._trial.report(value, event.epoch, is_last=last)
        elif isinstance(event, StepEnded) and self._trial is not None:
            stops = self._trial.report(None, None)
        if stops:
            raise StopTraining


def history_values(result: TrainingResult, recipe: Recipe) -> dict[str, float]:
    """The metrics of the epoch whose weights the network has, and its size."""
    history = result.history
    best: Any = history.index[-1]
    if recipe.patience is not None and recipe.restore_best:
        from farandole.training import prefers_high_scores

        has_validation = "validation_loss" in history
        monitor = recipe.monitor or ("validation_loss" if has_validation else "train_loss")
        up = prefers_high_scores(recipe)
        best = history[monitor].idxmax() if up else history[monitor].idxmin()
    size = sum(parameter.numel() for parameter in result.network.parameters())
    row = {str(name): float(value) for name, value in history.loc[best].to_dict().items()}
    return {**row, SIZE: float(size)}


def recipe_of(options: Mapping[str, Any]) -> Recipe:
    """The recipe among the options of `train`."""
    return Recipe(**{one.name: options[one.name] for one in fields(Recipe) if one.name in options})


def latency(result: TrainingResult, data: Any) -> float:
    """Milliseconds that one row takes, by the median of some calls."""
    if _spark.is_dataframe(data):
        row = data.limit(1).toArrow()
    else:
        row = (data.table if isinstance(data, KeptTable) else data).slice(0, 1)
    predictor = result.predictor
    times = []
    for _ in range(_LATENCY_CALLS):
        start = time.perf_counter()
        predictor(row)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)
