"""train(): checks its arguments, makes a TrainingJob, and runs it on an engine's workers."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import pyarrow as pa
from torch import nn
from torch.nn.parameter import is_lazy

from farandole import _spark
from farandole.api.attempts import Attempts
from farandole.api.checkpoints import plan_checkpoints
from farandole.api.result import TrainingResult, assemble
from farandole.api.run import DEFAULT_TIMEOUT, print_output
from farandole.api.strategy_choice import check_strategy, choose_strategy
from farandole.arguments import check_flag, check_integer, check_seconds
from farandole.artifact import load_weights
from farandole.data import (
    VIRTUAL_SHARDS,
    Columns,
    ParquetSource,
    Placement,
    Source,
    TableSource,
    local_source,
    stream_source,
)
from farandole.engines import DEFAULT_HEARTBEAT, Engine, InlineEngine, SparkEngine
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError, suggestion
from farandole.parallel import Strategy
from farandole.parallel import trace as tracing
from farandole.training import (
    EventDispatcher,
    Observer,
    Recipe,
    StrategyChosen,
    TrainingJob,
    check_full_batch,
    check_layers,
    storage_for,
)


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
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_minutes: float | None = None,
    keep_last: int = 2,
    keep_best: int = 0,
    max_restarts: int = 3,
    min_workers: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    heartbeat: float = DEFAULT_HEARTBEAT,
    encrypt: bool = False,
    progress: bool = True,
    observer: Observer | None = None,
    trace: str | os.PathLike[str] | None = None,
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
        strategy: how workers share the work: "allreduce", "ring", "parameter-server",
            "local-sgd", "diloco", "naive", "pipeline", "sharded", "auto", or an object of
            `farandole.parallel` with options of its own.
        initial_weights: what to start from: a state dict, a module, a result, or the path of a
            saved network.
        checkpoint_dir: a folder, or a URL that fsspec knows, that all workers reach. The same call
            with the same folder goes on from the last checkpoint there.
        checkpoint_steps: updates from one checkpoint to the next.
        checkpoint_minutes: minutes from one to the next; 5, where neither is given.
        keep_last: how many checkpoints are kept.
        keep_best: of how many of the best epochs the checkpoints are kept besides.
        max_restarts: how often workers begin again after some were lost, without progress.
        min_workers: with how many to go on where lost ones don't come back; by default with no
            fewer than `num_workers`.
        timeout: seconds that a worker waits for its peers in a step. Reading rows, checking and
            validating may take longer.
        heartbeat: seconds after which a worker that is stopped, locked up or out of reach is given
            up, with a `WorkerLost` that names it. One that is merely slow is waited for.
        encrypt: encrypt what workers send each other and the driver, with TLS. Workers of one host
            still sum gradients in the memory that they share.
        progress: show a progress bar (plain lines where there is no terminal).
        observer: is called with every event on the driver.
        trace: a file for what every worker did and when, for `farandole explain --trace`.
        **recipe: everything else that `farandole.training.Recipe` has: loss, optimizer,
            learning_rate, epochs, batch_size, shuffle, seed, metrics, schedule, patience …

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [1.0, 3.0, 5.0, 7.0]})
    >>> result = train(torch.nn.Linear(1, 1), table, features="x", loss="mse", optimizer="sgd",
    ...                learning_rate=0.1, epochs=200, batch_size=4, progress=False)
    >>> [round(value, 2) for value in result.predictor(table).prediction.tolist()]
    [1.0, 3.0, 5.0, 7.0]
    """
    start = time.perf_counter()
    check_seconds("timeout", timeout)
    _check_workers(num_workers, min_workers)
    check_integer("max_restarts", max_restarts, least=0)
    check_seconds("heartbeat", heartbeat)
    check_flag("encrypt", encrypt)
    if not isinstance(network, nn.Module):
        raise InputError(f"network must be a torch.nn.Module. Received: {type(network).__name__}")
    checked_recipe = make_recipe(recipe)
    check_layers(network, checked_recipe)
    if checked_recipe.solver() is not None:
        check_full_batch(network, checked_recipe.freeze)
    initial = load_weights(copy.deepcopy(network).cpu(), initial_weights)
    chosen, reason = choose_strategy(strategy, initial, checked_recipe, num_workers)
    if trace is not None:
        tracing.check_writable(trace)
    plan = plan_checkpoints(
        checkpoint_dir,
        steps=checkpoint_steps,
        minutes=checkpoint_minutes,
        keep_last=keep_last,
        keep_best=keep_best,
        recipe=checked_recipe,
    )
    runner = resolve_engine(engine or ("spark" if _spark.is_dataframe(data) else "local"))
    with ExitStack() as stack:
        frame = _frame_to_feed(data, runner)
        source = _make_source(frame, data, checked_recipe)
        columns = choose_columns(source.schema(), features, label, weight, validation)
        workers = num_workers
        if frame is None:
            workers = _limit_workers(_known_count(source), num_workers)
            runner, source = _read_locally(runner, source, columns, workers, stack)
        if workers != num_workers:  # fewer rows than workers
            check_strategy(chosen, initial, checked_recipe, workers)
        job = TrainingJob(
            network=initial,
            recipe=checked_recipe,
            columns=columns,
            source=source,
            storage=storage_for(initial, columns, source.schema()),
            strategy=chosen,
            validation=validation if isinstance(validation, float) else None,
            trace=trace is not None,
            checkpoints=plan,
        )
        _check_result_size(initial, runner)
        dispatch = stack.enter_context(EventDispatcher(progress, observer, print_output))
        if reason is not None:
            dispatch(0, StrategyChosen(strategy=repr(chosen), reason=reason))
        attempts = Attempts(
            job=job,
            engine=runner,
            frame=frame,
            workers=workers,
            min_workers=min(min_workers or workers, workers),
            max_restarts=max_restarts,
            timeout=timeout,
            heartbeat=heartbeat,
            encrypt=encrypt,
            dispatch=dispatch,
        )
        outcomes = attempts.run()
    result = assemble(initial, checked_recipe, outcomes, time.perf_counter() - start)
    if trace is not None:
        tracing.write_trace(trace, chosen.name, [outcome.spans or [] for outcome in outcomes])
    return result


def _check_workers(num_workers: int, min_workers: int | None) -> None:
    check_integer("num_workers", num_workers)
    if num_workers > VIRTUAL_SHARDS:
        raise InputError(f"num_workers can be at most {VIRTUAL_SHARDS}. Received: {num_workers}")
    if min_workers is None:
        return
    check_integer("min_workers", min_workers)
    if min_workers > num_workers:
        raise InputError(
            f"min_workers can be at most num_workers, {num_workers}. Received: {min_workers}"
        )


def _frame_to_feed(data: Any, engine: Engine) -> Any:
    """The Spark DataFrame whose rows the engine feeds to workers; None: they read them themselves.

    A table goes to Spark's workers as a DataFrame; a DataFrame comes to local ones as a table.
    """
    if engine.name != "spark" or isinstance(data, str | os.PathLike):
        return None
    if _spark.is_dataframe(data):
        return data
    table = local_source(data, shuffle=True)
    assert isinstance(table, TableSource)
    return _spark.require_session().createDataFrame(table.table)


def _make_source(frame: Any, data: Any, recipe: Recipe) -> Source:
    """Where workers get their rows from."""
    if frame is not None:
        solver = recipe.solver()
        blocks = solver is not None and solver.block_size is not None
        return stream_source(frame, Placement.PARTITIONS if blocks else Placement.STRIPES)
    local = data.toArrow() if _spark.is_dataframe(data) else data
    source = local_source(local, shuffle=recipe.shuffle)
    if _known_count(source) == 0:
        raise InputError("There are no rows to train on: the data set is empty.")
    return source


def _read_locally(
    engine: Engine, source: Source, columns: Columns, workers: int, stack: ExitStack
) -> tuple[Engine, Source]:
    """Engine and source for workers that read rows themselves: a table becomes a mapped file."""
    if engine.name != "local":
        return engine, source
    if workers == 1:
        return InlineEngine(), source
    if isinstance(source, TableSource):
        narrow = TableSource(source.table.select(list(columns.names)), source.placement)
        source = stack.enter_context(narrow.mapped())
    return engine, source


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
            raise InputError(f"There is no option {name!r}. {suggestion(name, known)}")
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


def _known_count(source: Source) -> int | None:
    """How many rows there are, where that is known before reading them."""
    return source.count() if isinstance(source, TableSource | ParquetSource) else None


def _check_result_size(network: nn.Module, engine: Engine) -> None:
    """Raise if the trained network is larger than Spark's limit of a result."""
    limit = _spark.max_result_bytes(engine.session) if isinstance(engine, SparkEngine) else None
    size = sum(t.nbytes for t in network.state_dict().values() if not is_lazy(t))
    if limit is not None and size > limit:
        raise InputError(
            f"The network has {size / 1e9:.1f} GB of weights, but spark.driver.maxResultSize is "
            f"{limit / 1e9:.1f} GB: raise it when the session is made."
        )


def _limit_workers(rows: int | None, num_workers: int) -> int:
    """No more workers than rows."""
    if rows is None or rows >= num_workers:
        return num_workers
    warnings.warn(
        f"There are {rows} rows for {num_workers} workers: training on {rows}.",
        UserWarning,
        stacklevel=3,
    )
    return rows
