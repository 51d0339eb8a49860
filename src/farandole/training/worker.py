"""What a worker does to train: load its rows, check them with the others, run the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import torch

from farandole.data import KeptTable, Shard, write_shard
from farandole.errors import InputError
from farandole.freed_memory import freed_memory_kept
from farandole.keras_models import KerasNetwork
from farandole.parallel import Span, trace
from farandole.training import events, preflight
from farandole.training.checkpointing import read_state
from farandole.training.context import TrainingContext, build_context
from farandole.training.feature_cache import cache_features
from farandole.training.freezing import learning_layers
from farandole.training.fullbatch import FullBatchLoop
from farandole.training.job import Outcome, TrainingJob, peak_memory
from farandole.training.loop import Loop
from farandole.training.precision import flush_denormals
from farandole.training.random_states import random_states_kept
from farandole.world import World


def load(job: TrainingJob, rank: int, size: int, fed: Iterator[pa.RecordBatch]) -> Shard:
    """Write this worker's rows to its shard."""
    if job.checkpoints is not None:
        job.checkpoints.directory.check_claimed(job.checkpoints.run)
    # torch.optim imports this on first use, which takes over a second: do it while rows arrive.
    threading.Thread(target=import_module, args=("torch._dynamo",), daemon=True).start()
    names = job.columns.names
    if isinstance(job.source, KeptTable):
        return job.source.shard(names, job.storage)
    return write_shard(job.source.batches(rank, size, names, fed), names, job.storage)


def work(job: TrainingJob, world: World, shard: Shard) -> Outcome:
    """Train together with the other workers."""
    start = time.perf_counter()
    spans: list[Span] | None = [] if job.trace else None
    # The caller's own random numbers stay as they were.
    with random_states_kept(), freed_memory_kept():
        torch.manual_seed(job.recipe.seed + world.rank)
        try:
            loop = prepare(job, world, shard)
        except InputError as error:
            shard.close()
            return Outcome(dict(world.seconds), input_error=error.with_traceback(None))
        except BaseException:
            shard.close()
            raise
        context, prepared = loop.context, time.perf_counter()
        try:
            with flush_denormals(), trace.recorded(spans):
                progress = loop.run()
                ended = time.perf_counter()
                state = context.sync.gather(context.whole_network)
        finally:
            shard.close()
            context.frozen.unfreeze()
            sent = context.sync.sent
            try:
                context.sync.close()
            finally:
                loop.close()  # after all that workers do together: it may wait for a slow disk
    caching = {"features": context.caching_seconds} if context.is_cached else {}
    checking = prepared - start - sum(caching.values())
    seconds = {**world.seconds, "check": checking, **caching, "train": ended - prepared}
    facts: Any = {"sent": sent, "memory": peak_memory(), "spans": spans}
    if not world.is_leader:
        return Outcome(seconds, **facts)
    context.emit(events.TrainingEnded(reason=progress.reason, seconds=ended - prepared))
    return Outcome(seconds, context.signature, state, progress, **facts)


def prepare(job: TrainingJob, world: World, shard: Shard) -> Loop | FullBatchLoop:
    """Check everything, build the context, and a loop on it."""
    trainable = preflight.check(job, world, shard)
    resumed = read_state(job.checkpoints)
    if resumed is not None:
        trainable.whole_network.load_state_dict(resumed["weights"])
    trainable = cache_features(trainable, job, world)
    for module in trainable.network.modules():
        if isinstance(module, KerasNetwork):
            module.set_rank(world.rank)
    sync = job.strategy.attach(trainable.network, world, trainable.example.arguments)
    try:
        context = build_context(job, world, trainable, sync)
        solver = job.recipe.solver()
        loop = Loop(context) if solver is None else FullBatchLoop(context, solver)
        _announce(context)
        if resumed is not None:
            loop.restore(resumed)
        return loop
    except InputError as error:
        input_error = error
    # Close it outside of `except`: inside, a strategy would take the error for this worker's
    # failure. But all workers have found the same error, and close together.
    sync.close()
    raise input_error


def _announce(context: TrainingContext) -> None:
    """The last checks and events before the first step."""
    rows, world, recipe = context.loader.total, context.world, context.recipe
    if rows == 0:
        raise InputError(
            f"All {context.validation_rows:,} rows are for validation: none is left to train on."
        )
    if context.job.held_out and not context.validates:
        message = "No row was chosen for validation, so there is none."
        context.emit(events.WarningIssued(message=message))
    if rows < world.size:
        idle = f"at least {world.size - rows} of them have nothing to do."
        message = f"There are {rows} rows for {world.size} workers: {idle}"
        context.emit(events.WarningIssued(message=message))
    network = context.whole_network
    learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
    updates = 1 if recipe.solver() else -(-context.loader.steps // recipe.accumulation)
    context.emit(
        events.TrainingStarted(
            rows=rows,
            validation_rows=context.validation_rows,
            workers=world.size,
            epochs=recipe.epochs,
            steps_per_epoch=updates,
            parameters=sum(p.numel() for p in network.parameters()),
            learning=learning if recipe.freeze else None,
            layers=tuple(learning_layers(network)) if recipe.freeze else (),
        )
    )
