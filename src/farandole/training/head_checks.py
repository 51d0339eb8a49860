"""What is found out about a network's heads with the first rows, before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from farandole.data import Columns, Shard
from farandole.errors import InputError
from farandole.networks import evaluation_mode
from farandole.parallel import gather_objects
from farandole.training import events
from farandole.training.batches import Batcher
from farandole.training.heads import LabelFacts, looks_binary
from farandole.training.losses import Loss
from farandole.training.metrics import HeadMetrics
from farandole.training.passes import NetworkPasses, make_passes
from farandole.training.recipe import Recipe
from farandole.training.tally import try_metrics
from farandole.world import World


def label_facts(
    loss: Loss, task: Any, columns: Columns, shard: Shard, world: World
) -> dict[str, LabelFacts]:
    """What labels look like, where neither loss nor task say what they are."""
    unknown = loss.callable is not None or any(part.head is None for part in loss.parts)
    if not unknown or not (task == "auto" or isinstance(task, Mapping)):
        return {}
    mine = {name: LabelFacts.of(shard, name) for name in columns.labels if name in shard.columns}
    found = gather_objects(mine, world)
    return {
        name: LabelFacts.merged([one[name] for one in found if name in one])
        for name in columns.labels
        if any(name in one for one in found)
    }


def with_class_numbers(batcher: Batcher, network: nn.Module, recipe: Recipe, world: World) -> Loss:
    """The loss; of a function that takes classes as whole numbers only, one that gets them so.

    Labels come as they are, and those of Spark are doubles, also where they are classes.
    """
    loss = batcher.loss
    guessed = loss.callable is not None or any(part.head is None for part in loss.parts)
    if loss.task_given or not guessed or not any(one.head.is_classifier for one in loss.heads):
        return loss
    counted = replace(loss, task_given=True)
    mine = not _takes(loss, batcher, network, recipe, world) and _takes(
        counted, batcher, network, recipe, world
    )
    return counted if any(gather_objects(mine, world)) else loss


def _takes(loss: Loss, batcher: Batcher, network: nn.Module, recipe: Recipe, world: World) -> bool:
    """Whether the loss can be computed of the first rows."""
    rows = torch.arange(min(len(batcher.shard), _COMPARED_ROWS))
    passes = make_passes(network, loss, recipe, world)
    try:
        with evaluation_mode(network), torch.no_grad():
            passes.forward(replace(batcher, loss=loss)(rows))
    except InputError:  # which is told soon
        return True
    except Exception:
        return False
    return True


def warn_if_binary(loss: Loss, facts: Mapping[str, LabelFacts], world: World) -> None:
    """Say so where a single yes or no may have been meant, and a number is learned."""
    if world.is_leader and looks_binary(loss, facts):
        message = (
            "The loss is a function, the network has one output, and all labels are 0 or 1: taken "
            'as a regression. task="binary" says that the output is a score of the second class '
            '(of a Keras model: its probability), task="regression" that it is a number.'
        )
        world.link.tell(events.WarningIssued(message=message))


def warn_if_batchwise(
    recipe: Recipe, batcher: Batcher, passes: NetworkPasses, network: nn.Module, world: World
) -> None:
    """Say so if the loss of some rows isn't the mean over their halves: it compares rows."""
    rows = min(len(batcher.shard), _COMPARED_ROWS) // 2 * 2
    if recipe.loss_scope == "batch" or world.size == 1 or not world.is_leader or rows < 4:
        return
    # Keras's own are looked at too: its dice is one number, its circle compares embeddings.
    tried = [one.head is None or one.keeps_shapes for one in batcher.loss.parts]
    if batcher.loss.callable is None and not any(tried):
        return
    halves = [slice(0, rows // 2), slice(rows // 2, rows), slice(0, rows)]
    try:
        with evaluation_mode(network), torch.no_grad():
            one, other, both = (float(passes.forward(batcher(some))[1]) for some in halves)
    except Exception:  # a user's own loss may refuse few rows for reasons of its own
        return
    if abs(one + other - both) > 1e-3 * max(abs(both), 1e-6):
        message = (
            "The loss of a batch is not the mean of its parts' losses, so it compares rows, and "
            f"each of {world.size} workers sees only its own: the result depends on their number. "
            'loss_scope="batch" lets the loss see the rows of all workers.'
        )
        world.link.tell(events.WarningIssued(message=message))


_TRIED_ROWS = 3
"""How many rows metrics are tried with."""
_COMPARED_ROWS = 16
"""How many rows tell whether a loss compares rows."""


def check_metrics(
    scored: Sequence[HeadMetrics],
    batcher: Batcher,
    passes: NetworkPasses,
    network: nn.Module,
    world: World,
) -> None:
    """Raise, on all workers alike, for a metric that can't count the first rows."""
    if not any(one.metrics for one in scored):
        return
    problem, known = "", len(batcher.shard)
    if known:  # with fewer rows than some metrics need, they repeat
        batch = batcher(torch.arange(_TRIED_ROWS) % known)
        with evaluation_mode(network), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a few rows may be all of one class
            with passes.autocast():
                output = network(*batch.arguments)
            problem = try_metrics(scored, batcher.loss, output, batch.targets)
    for found in gather_objects(problem, world):
        if found:
            raise InputError(found)
