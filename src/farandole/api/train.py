"""train(): checks its arguments, makes a TrainingJob, and runs it on an engine's workers."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

from torch import nn

from farandole.api.attempts import Attempts, RunLimits
from farandole.api.checkpoints import begin_checkpoints, plan_checkpoints
from farandole.api.initial_network import initial_network, network_for_rows
from farandole.api.keras_callbacks import CallbackHandler, check_callbacks
from farandole.api.keras_network import keras_features, keras_options
from farandole.api.result import TrainingResult, assemble
from farandole.api.run import DEFAULT_TIMEOUT, print_output
from farandole.api.strategy_choice import check_strategy, choose_strategy
from farandole.api.training_data import TrainingData, choose_columns
from farandole.arguments import check_flag, check_function
from farandole.data import Fold
from farandole.engines import DEFAULT_HEARTBEAT, Engine
from farandole.errors import InputError, suggestion
from farandole.keras_models import is_keras_model, require_torch_backend
from farandole.parallel import Strategy
from farandole.parallel import trace as tracing
from farandole.tracebacks import short_traceback
from farandole.training import (
    EventDispatcher,
    NetworkInputs,
    Observer,
    Recipe,
    StrategyChosen,
    TrainingJob,
    storage_for,
    try_network,
)


@short_traceback
def train(
    network: nn.Module | Callable[[NetworkInputs], nn.Module],
    data: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
    weight: str | None = None,
    validation: float | str | Fold | None = None,
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
    device: str = "auto",
    cpus_per_worker: int | None = None,
    progress: bool = True,
    observer: Observer | None = None,
    callbacks: Sequence[Any] | None = None,
    trace: str | os.PathLike[str] | None = None,
    allow_pickle: bool = False,
    **recipe: Any,
) -> TrainingResult:
    """Train a network on a DataFrame of Spark or pandas, an Arrow table, Parquet files or arrays.

    Args:
        network: any torch module. It is not changed: the result has its own. Or a function that
            makes one for the rows: it gets a `farandole.training.NetworkInputs`, with their width.
            Or a compiled Keras model: its optimizer, losses, metrics and loss weights are used,
            unless others are given, under Keras's names.
        data: where the rows are: a DataFrame, a table, a path, which the workers read themselves,
            or arrays: (X, y), which become the columns "features" and `label`, or a dict of them.
            Or in Ray: a `ray.data.Dataset`, or references to tables in its object store.
        features: column(s) to feed; several are positional arguments of `forward`, or are joined
            if it takes only one. By default "features", else all columns that play no other part.
        label: column(s) to learn; several make a head each, where the network has as many outputs.
            None: the loss gets the output and the features (`loss(output, *features)`), as
            auto-encoders and contrastive losses need it.
        weight: a column of row weights.
        validation: a fraction of the rows (chosen by the seed), a boolean column that marks them,
            or a `farandole.data.Fold`: the rows that have a number in a column.
        num_workers: how many workers share each batch.
        engine: "local", "spark", "ray" or an engine. By default a Spark DataFrame is trained on
            where it is, rows that Ray has are on Ray, and all else on this machine.
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
        device: where workers compute: "cpu", "cuda" (a GPU for each, the one that Spark granted
            where it manages them), "cuda:N" for a single worker, or "auto": GPUs if there is one
            for each worker, else the CPU.
        cpus_per_worker: cores of each worker; by default spark.task.cpus on Spark, else what there
            is, shared out.
        progress: show a progress bar (plain lines where there is no terminal).
        observer: is called with every event on the driver.
        callbacks: of a Keras model: Keras's own, which run on the driver between epochs.
        trace: a file for what every worker did and when, for `farandole explain --trace`.
        allow_pickle: it is all right if the result can be saved as a pickle only, which runs code
            when it is loaded. Else a warning says so, before training.
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
    limits = RunLimits(
        workers=num_workers,
        min_workers=num_workers if min_workers is None else min_workers,
        max_restarts=max_restarts,
        timeout=timeout,
        heartbeat=heartbeat,
        encrypt=encrypt,
        device=device,
        cpus=cpus_per_worker,
    )
    limits.check()
    check_flag("allow_pickle", allow_pickle)
    check_flag("progress", progress)
    if observer is not None:
        check_function("observer", observer)
    check_network(network)
    given = None
    if not isinstance(network, nn.Module):
        preliminary = unchecked_recipe(recipe)
        given = TrainingData.of(data, engine, preliminary, label)
        columns = choose_columns(given.source.schema(), features, label, weight, validation)
        network, given = network_for_rows(network, given, columns, preliminary.seed)
    recipe, frozen = keras_options(network, recipe)
    checked_recipe = make_recipe(recipe)
    check_callbacks(callbacks, network, checked_recipe)
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
    with ExitStack() as stack:
        given = given or TrainingData.of(data, engine, checked_recipe, label)
        schema = given.source.schema()
        features = keras_features(network, features, schema)
        columns = choose_columns(schema, features, label, weight, validation)
        if given.first is None:
            given = given.with_first_rows(columns, wait=is_keras_model(network))
        initial = initial_network(network, given, columns, checked_recipe, initial_weights, frozen)
        chosen, reason = choose_strategy(strategy, initial, checked_recipe, num_workers)
        given, workers = given.shared_by(num_workers, columns, stack)
        if workers != num_workers:
            check_strategy(chosen, initial, checked_recipe, workers)
        job = TrainingJob(
            network=initial,
            recipe=checked_recipe,
            columns=columns,
            source=given.source,
            storage=storage_for(initial, columns, given.source.schema()),
            strategy=chosen,
            validation=validation if isinstance(validation, float) else None,
            trace=trace is not None,
            checkpoints=plan,
        )
        handler = CallbackHandler(callbacks, initial, checked_recipe) if callbacks else None
        if handler is not None:
            job = replace(job, asks_driver=True, sends_weights=handler.need_weights)
        _try_first_rows(job, given, device, allow_pickle)
        dispatch = stack.enter_context(EventDispatcher(progress, observer, handler or print_output))
        if reason is not None:
            dispatch(0, StrategyChosen(strategy=repr(chosen), reason=reason))
        job = begin_checkpoints(job)
        attempts = Attempts(job, given, limits.of(workers), dispatch)
        outcomes = attempts.run()
        if handler is not None:
            outcomes = handler.finished(outcomes)
    result = assemble(
        initial,
        checked_recipe,
        outcomes,
        lost=attempts.lost_seconds,
        total=time.perf_counter() - start,
        has_checkpoint=plan is not None,
    )
    if trace is not None:
        tracing.write_trace(trace, chosen.name, [outcome.spans or [] for outcome in outcomes])
    return result


def check_network(network: Any) -> None:
    """Raise unless it is a module, a Keras model on torch, or a function."""
    if is_keras_model(network):
        require_torch_backend()
    elif not isinstance(network, nn.Module) and not callable(network):
        raise InputError(
            "network must be a torch.nn.Module, or a function that makes one. Received: "
            f"{type(network).__name__}"
        )


def _try_first_rows(job: TrainingJob, given: TrainingData, device: str, allow_pickle: bool) -> None:
    """Raise before all rows are read, if the network can't take them; say what is doubtful."""
    tried = None if given.first is None else try_network(job, given.first.batch, device)
    if tried is None:
        return
    doubts = list(tried.doubts)
    why = "" if allow_pickle else tried.why_unsaveable()
    if why:
        doubts.append(
            f"{type(job.network).__name__} {why}: once trained, it can be saved as a pickle only. "
            "Use such layers, or say that a pickle is what you want: allow_pickle=True, of an "
            "estimator allowPickle=True. Those who load it then have to trust you, since a pickle "
            "runs code."
        )
    for doubt in doubts:
        warnings.warn(doubt, UserWarning, stacklevel=4)


def make_recipe(options: Mapping[str, Any]) -> Recipe:
    """A checked recipe; an unknown name gets a suggestion.

    >>> make_recipe({"epoch": 3})
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no option 'epoch'. Did you mean 'epochs'?
    """
    recipe = unchecked_recipe(options)
    recipe.check()
    return recipe


def unchecked_recipe(options: Mapping[str, Any]) -> Recipe:
    """A recipe of which only names and the seed are checked.

    A function that makes a network needs no more, and its loss and optimizer may be Keras's own.
    """
    known = [field.name for field in fields(Recipe)]
    for name in options:
        if name not in known:
            own = [name for name in inspect.signature(train).parameters if name != "recipe"]
            raise InputError(f"There is no option {name!r}. {suggestion(name, [*known, *own])}")
    Recipe(seed=options.get("seed", Recipe.seed)).check()
    return Recipe(**options)
