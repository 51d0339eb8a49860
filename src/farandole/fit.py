"""train(): where engine, strategy, loop and data meet."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from torch import nn

from farandole import _spark
from farandole.artifact import Artifact, Signature
from farandole.data import Columns, Source, TableSource
from farandole.data.order import VIRTUAL_SHARDS
from farandole.data.source import ParquetSource, local_source, placed_rows, stream_source
from farandole.engines import Engine, InlineEngine, Task
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.launch import DEFAULT_TIMEOUT, check_workers, print_output
from farandole.parallel import Strategy
from farandole.parallel import resolve as resolve_strategy
from farandole.training.loop import DIVERGED, INTERRUPTED
from farandole.training.progress import Listening, Observer
from farandole.training.recipe import Recipe
from farandole.training.worker import Outcome, TrainingJob, load, work


@dataclass(frozen=True)
class TrainingResult:
    """A trained network, and how it came about.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0], "label": [0.0, 1.0]})
    >>> result = train(torch.nn.Linear(1, 1), table, loss="mse", epochs=2, progress=False)
    >>> result.reason, len(result.history), result.network.training
    ('all epochs done', 2, False)
    """

    network: nn.Module
    """A plain module on the CPU, ready to predict."""
    signature: Signature
    history: pd.DataFrame
    """One row an epoch: losses, metrics, learning rate, seconds, rows per second."""
    steps: pd.DataFrame
    """One row an update: epoch, learning rate, loss of the global batch."""
    seconds: dict[str, float]
    """What each phase took: read, ring-up, check, train (the slowest worker's)."""
    reason: str
    """Why training ended."""

    @property
    def predictor(self) -> Predictor:
        """Applies the network to pandas, Arrow or plain arrays."""
        return Predictor(self.network, self.signature)

    @property
    def artifact(self) -> Artifact:
        """What gets saved."""
        rows = [
            {str(k): float(v) for k, v in row.items()} for row in self.history.to_dict("records")
        ]
        return Artifact(self.network, self.signature, tuple(rows))

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, allow_pickle: bool = False
    ) -> None:
        """Write a folder of safetensors and JSON."""
        self.artifact.save(path, overwrite=overwrite, allow_pickle=allow_pickle)


def train(
    network: nn.Module,
    data: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] = "label",
    weight: str | None = None,
    validation: float | str | None = None,
    num_workers: int = 1,
    engine: str | Engine | None = None,
    strategy: str | Strategy = "allreduce",
    initial_weights: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
    progress: bool = True,
    observer: Observer | None = None,
    **recipe: Any,
) -> TrainingResult:
    """Train a network on a Spark DataFrame, a pandas DataFrame, an Arrow table or Parquet files.

    Args:
        network: any torch module. It is not changed: the result has its own.
        data: where the rows are. A path is read by the workers themselves.
        features: column(s) to feed; several are positional arguments of `forward`, or are joined
            if it takes only one. By default "features", else all columns that play no other part.
        label: column(s) to learn.
        weight: a column of row weights.
        validation: a fraction of the rows (chosen by the seed), or a boolean column that marks
            them.
        num_workers: how many workers share each batch.
        engine: "local", "spark" or an engine. By default a Spark DataFrame is trained on where
            it is, and all else on this machine.
        strategy: how workers share the work; "allreduce".
        initial_weights: what to start from: a state dict, a module, a result, or the path of a
            saved network.
        timeout: seconds that a worker waits for its peers.
        progress: show a progress bar (plain lines where there is no terminal).
        observer: is called with every event on the driver.
        **recipe: everything else that `farandole.training.Recipe` has: loss, optimizer,
            learning_rate, epochs, batch_size, shuffle, seed, metrics, schedule, patience …

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [1.0, 3.0, 5.0, 7.0]})
    >>> result = train(torch.nn.Linear(1, 1), table, features="x", loss="mse", optimizer="sgd",
    ...                learning_rate=0.1, epochs=200, batch_size=4, progress=False)
    >>> [round(value, 2) for value in result.predictor(table).prediction.tolist()]
    [1.0, 3.0, 5.0, 7.0]
    """
    check_workers(num_workers)
    if num_workers > VIRTUAL_SHARDS:
        raise InputError(f"num_workers can be at most {VIRTUAL_SHARDS}. Received: {num_workers}")
    chosen = make_recipe(recipe)
    if not isinstance(network, nn.Module):
        raise InputError(f"network must be a torch.nn.Module. Received: {type(network).__name__}")
    prepared = with_weights(copy.deepcopy(network).cpu(), initial_weights)
    plan = _Plan(network=prepared, recipe=chosen, strategy=resolve_strategy(strategy))
    with ExitStack() as stack:
        task, rows, runner, workers = plan.arrange(
            stack, data, features, label, weight, validation, num_workers, engine
        )
        handler = stack.enter_context(Listening(progress, observer, print_output))
        outcomes = runner.run(task, workers, rows=rows, timeout=timeout, on_message=handler)
    return _result(prepared, outcomes)


@dataclass(frozen=True)
class _Plan:
    """What is known before the data is looked at."""

    network: nn.Module
    recipe: Recipe
    strategy: Strategy

    def arrange(
        self,
        stack: ExitStack,
        data: Any,
        features: str | Sequence[str] | None,
        label: str | Sequence[str],
        weight: str | None,
        validation: float | str | None,
        num_workers: int,
        engine: str | Engine | None,
    ) -> tuple[Task, Any, Engine, int]:
        """Decide where to train, and what every worker is told."""
        runner = resolve_engine(engine or ("spark" if _spark.is_dataframe(data) else "local"))
        data = _moved(data, runner)
        if _spark.is_dataframe(data):
            source: Source = stream_source(data)
        else:
            source = local_source(data, shuffle=self.recipe.shuffle)
        most = _most_workers(source)
        columns = choose_columns(source.schema(), features, label, weight, validation)
        rows = None
        if _spark.is_dataframe(data):
            rows = placed_rows(data, columns, num_workers, shuffle=self.recipe.shuffle)
        else:
            num_workers = _at_most(most, num_workers)
        if runner.name == "local" and num_workers == 1:
            runner = InlineEngine()
        elif runner.name == "local" and isinstance(source, TableSource):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farandole-"))
            narrow = TableSource(source.table.select(list(columns.names)), source.placement)
            source = narrow.mapped(os.path.join(folder, "table.arrow"))
        fraction = validation if isinstance(validation, float) else None
        job = TrainingJob(self.network, self.recipe, columns, source, self.strategy, fraction)
        task = Task(load=partial(load, job), work=partial(work, job), stoppable=True)
        return task, rows, runner, num_workers


def make_recipe(options: dict[str, Any]) -> Recipe:
    """A checked recipe; an unknown name gets a suggestion.

    >>> make_recipe({"epoch": 3})
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no option 'epoch'. Did you mean 'epochs'?
    """
    known = [field.name for field in fields(Recipe)]
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
            raise InputError(f"There is no option {name!r}. {hint}")
    recipe = Recipe(**options)
    recipe.check()
    return recipe


def choose_columns(
    schema: pa.Schema,
    features: str | Sequence[str] | None,
    label: str | Sequence[str],
    weight: str | None,
    validation: float | str | None,
) -> Columns:
    """The part that each column plays, checked against the schema."""
    fraction = isinstance(validation, float) and 0 < validation < 1
    if not (validation is None or isinstance(validation, str) or fraction):
        raise InputError(
            f"validation must be a fraction between 0 and 1, or a column. Received: {validation!r}"
        )
    labels = (label,) if isinstance(label, str) else tuple(label)
    marker = validation if isinstance(validation, str) else None
    if features is None:
        taken = {*labels, weight, marker}
        others = tuple(name for name in schema.names if name not in taken)
        features = ("features",) if "features" in schema.names else others
    names = (features,) if isinstance(features, str) else tuple(features)
    if not names:
        raise InputError("There is no feature column: every column plays another part.")
    columns = Columns(names, labels, weight, marker)
    columns.check(schema)
    return columns


def with_weights(network: nn.Module, weights: Any) -> nn.Module:
    """The network, with given weights in place of its own."""
    if weights is None:
        return network
    if isinstance(weights, str | os.PathLike):
        return Artifact.load(weights, network=network).network.train()
    if hasattr(weights, "network") and not isinstance(weights, nn.Module):
        weights = weights.network
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    try:
        network.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise InputError(f"initial_weights don't fit the network: {error}") from error
    return network


def _moved(data: Any, engine: Engine) -> Any:
    """Rows in a form that the engine can give to its workers."""
    if engine.name == "spark" and not _spark.is_dataframe(data) and not _is_path(data):
        table = local_source(data, shuffle=True)
        assert isinstance(table, TableSource)
        return _spark.require_session().createDataFrame(table.table)
    if engine.name != "spark" and _spark.is_dataframe(data):
        return data.toArrow()
    return data


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def _most_workers(source: Source) -> int | None:
    """As many as there are rows, where that is known; raises if there are none."""
    if not isinstance(source, TableSource | ParquetSource):
        return None
    rows = source.count()
    if rows == 0:
        raise InputError("There are no rows to train on: the data set is empty.")
    return rows


def _at_most(rows: int | None, num_workers: int) -> int:
    """No more workers than rows."""
    if rows is None or rows >= num_workers:
        return num_workers
    warnings.warn(
        f"There are {rows} rows for {num_workers} workers: training on {rows}.",
        UserWarning,
        stacklevel=4,
    )
    return rows


def _result(network: nn.Module, outcomes: list[Outcome]) -> TrainingResult:
    leader = outcomes[0]
    progress = leader.progress
    if progress.reason == INTERRUPTED and not progress.history:
        raise KeyboardInterrupt
    assert leader.signature is not None
    assert leader.state is not None
    if progress.reason in (INTERRUPTED, DIVERGED):
        warnings.warn(
            f"Training ended after epoch {len(progress.history)}: {progress.reason}. The network "
            "is that of the last finished epoch.",
            UserWarning,
            stacklevel=3,
        )
    trained = copy.deepcopy(network)
    trained.load_state_dict(leader.state)
    trained.zero_grad(set_to_none=True)
    seconds = {
        phase: max(outcome.seconds.get(phase, 0.0) for outcome in outcomes)
        for phase in leader.seconds
    }
    history = pd.DataFrame(progress.history)
    if len(history):
        history["epoch"] = history["epoch"].astype(int)
    steps = pd.DataFrame(progress.steps, columns=["epoch", "learning_rate", "loss"])
    return TrainingResult(
        trained.eval(), leader.signature, history, steps, seconds, progress.reason
    )


def find_learning_rate(
    network: nn.Module,
    data: Any,
    *,
    lowest: float = 1e-6,
    highest: float = 1.0,
    steps: int = 100,
    **options: Any,
) -> pd.DataFrame:
    """Try learning rates from `lowest` to `highest`, one update each, and record the loss.

    Returns a DataFrame with columns learning_rate, loss and smooth_loss; its attribute
    `attrs["suggestion"]` is the rate at which the smoothed loss falls fastest.

    Args:
        network: the network to try on; it is not changed.
        data: as for `train`.
        lowest: the first learning rate.
        highest: the last one.
        steps: how many updates.
        **options: as for `train`.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [1.0, 3.0, 5.0, 7.0]})
    >>> found = find_learning_rate(torch.nn.Linear(1, 1), table, loss="mse", optimizer="sgd",
    ...                            steps=50, batch_size=4)
    >>> 1e-4 < found.attrs["suggestion"] < 1
    True
    """
    if not (0 < lowest < highest and steps > 1):
        raise InputError(
            "0 < lowest < highest and more than one step are needed. "
            f"Received: {lowest=}, {highest=}, {steps=}"
        )
    ramp = partial(_ramp, growth=(highest / lowest) ** (1 / max(steps - 1, 1)))
    result = train(
        network,
        data,
        **{
            "progress": False,
            **options,
            "learning_rate": lowest,
            "schedule": ramp,
            "schedule_per": "step",
            "max_steps": steps,
            "epochs": steps,
            "stop_on_nan": False,
        },
    )
    found = result.steps.drop(columns="epoch")
    found["smooth_loss"] = found["loss"].ewm(span=10).mean()
    slope = found["smooth_loss"].diff()
    found.attrs["suggestion"] = float(found["learning_rate"][slope.idxmin()])
    return found


def _ramp(optimizer: torch.optim.Optimizer, growth: float) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, growth)
