"""Heads: which output learns which label, and how each becomes a prediction.

A network with one output has one head without a name. With several, a head has the name of its
label column, or, where the network returns a dict, that of its output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farandole.artifact import Head
from farandole.data import Columns, Shard
from farandole.errors import InputError, suggestion
from farandole.keras_models import KerasLoss
from farandole.networks import named_outputs
from farandole.ragged import Ragged
from farandole.training.losses import CLASSES, Kind, Loss, TrainedHead

TASKS = ("auto", "classification", "binary", "multilabel", "regression")
Key = int | str


@dataclass(frozen=True)
class LabelFacts:
    """What tells classes from numbers in one label column."""

    shape: tuple[int | None, ...] = ()
    whole: bool = False
    """Whether all of its values are whole numbers, none of them negative."""
    least: float = -math.inf
    most: float = math.inf
    """The least and the greatest of them."""

    @classmethod
    def of(cls, shard: Shard, name: str) -> LabelFacts:
        """Those of a worker's rows."""
        values = shard.columns[name].numpy()
        if len(values) == 0:
            return cls(whole=True, least=math.inf, most=-math.inf)
        whole = bool((values == np.floor(values)).all() and (values >= 0).all())
        least, most = float(values.min()), float(values.max())
        return cls(tuple(values.shape[1:]), whole, least, most)

    @staticmethod
    def merged(facts: Sequence[LabelFacts]) -> LabelFacts:
        """Those of all workers."""
        filled = [one for one in facts if one.most > -math.inf] or list(facts)
        return replace(
            filled[0],
            whole=all(one.whole for one in filled),
            least=min(one.least for one in filled),
            most=max(one.most for one in filled),
        )


def check_task(task: Any) -> None:
    """Raise unless this is a task, or one for each head."""
    for one in task.values() if isinstance(task, Mapping) else [task]:
        if one not in TASKS:
            raise InputError(f"There is no task {one!r}. {suggestion(str(one), TASKS)}")


def trained_heads(
    loss: Loss, task: Any, output: Any, columns: Columns, facts: Mapping[str, LabelFacts]
) -> Loss:
    """The loss with the heads that the network turns out to have, by what it gives for zeros."""
    found = named_outputs(output)
    labels = columns.labels or columns.features
    wires = _named(loss, found, labels) if loss.names else _paired(loss, found, columns, labels)
    _check_names([name for name, _, _ in wires], loss, task)
    outputs = [found[wires[min(n, len(wires) - 1)][1]] for n in range(len(loss.parts))]
    loss = replace(loss, parts=tuple(map(_settled, loss.parts, outputs)))
    heads = []
    for number, (name, key, target) in enumerate(wires):
        part, about = loss.part_of(number), facts.get(labels[target], LabelFacts())
        asked = task.get(name, "auto") if isinstance(task, Mapping) else task
        kind = _kind(asked, _implied(part, found[key]), found[key], about, name)
        kind = _kind_in_keras(kind, part.head, name) if part and part.keeps_shapes else kind
        heads.append(TrainedHead(_head(name, key, kind, found[key]), target))
    is_wired = bool(heads[0].head.name) or found.keys() != {0}
    _check_shared(replace(loss, heads=tuple(heads)))
    return replace(loss, heads=tuple(heads), is_wired=is_wired, task_given=task != "auto")


def _named(loss: Loss, found: Mapping[Key, Any], labels: Sequence[str]) -> list[Any]:
    """(name, output, target) of heads that the loss names: outputs of the network, or labels."""
    names, keys = loss.names, list(found)
    if all(name in found for name in names):
        return [(name, name, _label_for(n, name, names, labels)) for n, name in enumerate(names)]
    unknown = [name for name in names if name not in labels]
    if unknown:
        known = [*labels, *(key for key in keys if isinstance(key, str))]
        raise InputError(
            f"loss has a head {unknown[0]!r}, which is neither a label column nor an output of the "
            f"network. {suggestion(unknown[0], known)}"
        )
    if len(keys) != len(labels):
        raise InputError(
            f"The network gives {len(keys)} outputs for {len(labels)} label columns: "
            f"{', '.join(labels)}. Let it return one for each, in their order or in a dict."
        )
    return [(name, keys[labels.index(name)], labels.index(name)) for name in names]


def _label_for(number: int, name: str, names: Sequence[str], labels: Sequence[str]) -> int:
    """The label of an output that has a name: of that name, the only one, or the so manieth."""
    if name in labels:
        return list(labels).index(name)
    if len(labels) == 1:
        return 0
    if len(labels) == len(names) and not set(names) & set(labels):
        return number
    raise InputError(
        f"Which of the label columns {', '.join(labels)} does the output {name!r} learn? Give "
        "outputs the names of their label columns."
    )


def _paired(
    loss: Loss, found: Mapping[Key, Any], columns: Columns, labels: Sequence[str]
) -> list[Any]:
    """(name, output, target) of heads where the loss has no names."""
    keys = list(found)
    if len(keys) == 1:
        return [("", keys[0], 0)]
    named = isinstance(keys[0], str)
    if columns.labels and named and all(label in found for label in labels):
        if len(labels) == 1:
            return [("", labels[0], 0)]
        return [(label, label, number) for number, label in enumerate(labels)]
    if columns.labels and len(keys) == len(labels):
        return [
            (key if named else label, key, number)
            for number, (key, label) in enumerate(zip(keys, labels, strict=True))
        ]
    if loss.callable is not None:  # it sees all of them, and the first is the prediction
        return [("", keys[0], 0)]
    advice = f' loss={{"{keys[0]}": …}} says which of them learns.' if named else ""
    raise InputError(
        f"The network gives {len(keys)} outputs for {len(labels)} label columns.{advice}"
    )


def _check_names(names: Sequence[str], loss: Loss, task: Any) -> None:
    given = {"loss_weights": [name for name, _ in loss.weights]}
    given["task"] = list(task) if isinstance(task, Mapping) else []
    for option, heads in given.items():
        for head in heads:
            if head not in names:
                known = ", ".join(names) if names != [""] else "only one, which has no name"
                raise InputError(f"{option} has no head {head!r}. The network's heads: {known}.")
    if any("." in name or "`" in name for name in names):
        raise InputError(
            f"Heads become columns, whose names have no dots or backquotes. Received: {names}"
        )


def _check_shared(loss: Loss) -> None:
    """Raise for a label that one head takes as classes and another one as numbers."""
    for one in loss.heads:
        first = next(other for other in loss.heads if other.target == one.target)
        if (one.head.kind in CLASSES) != (first.head.kind in CLASSES):
            raise InputError(
                f"The heads {first.head.name!r} and {one.head.name!r} learn one label, the one as "
                "classes and the other as numbers: give each a column of its own."
            )


def _settled(part: Kind, output: Any) -> Kind:
    """Keras's loss="crossentropy" is for classes, or, with a single output, for yes or no."""
    is_automatic = isinstance(part.row_loss, KerasLoss) and part.row_loss.packed is None
    return replace(part, head="probability") if is_automatic and output.shape[-1] == 1 else part


def _implied(part: Kind | None, output: Any) -> str | None:
    """What a loss says of its head: Keras has classes of positions last, which stay as they are."""
    if part is None:
        return None
    is_flat = isinstance(output, Ragged) or math.prod(output.shape[1:-1]) == 1
    if part.keeps_shapes:
        if not is_flat:
            return "identity"
        if part.head == "probability" and math.prod(output.shape[1:]) > 1:
            return "identity"  # those of several answers of yes or no
    return part.head


def _kind(task: str, implied: str | None, output: Any, about: LabelFacts, name: str) -> str:
    """How an output becomes a prediction: by the task, the loss, or label and output."""
    width = _width(output)
    if task in ("regression", "multilabel") and implied in CLASSES:
        of = f" of {name!r}" if name else ""
        fitting = "mse" if task == "regression" else "binary_cross_entropy"
        raise InputError(
            f"task={task!r}, but the loss{of} is for one class a row. Use loss={fitting!r}, or "
            "task='classification'."
        )
    if task == "regression":
        return "identity"
    if task == "multilabel":
        return "sigmoids" if width > 1 else "sigmoid"
    if task == "binary" and width > 2:
        of = f" in {name!r}" if name else ""
        raise InputError(
            f"task='binary' needs a network with one or two outputs{of}. Received: {width}. Use "
            "task='classification' for several classes, task='multilabel' for several answers of "
            "yes or no."
        )
    if task != "auto":
        return "sigmoid" if width == 1 else implied if implied in CLASSES else "softmax"
    if implied == "sigmoid" and not isinstance(output, Ragged):
        return "sigmoids" if output.dim() > 1 and math.prod(output.shape[1:]) > 1 else "sigmoid"
    return implied or _guessed(output, about)


def _kind_in_keras(kind: str, implied: str | None, name: str) -> str:
    """The same of a Keras loss: unless it takes logits, outputs are probabilities already."""
    if implied in ("softmax", "sigmoid"):
        return kind
    if kind == "sigmoids":
        of = f" of {name!r}" if name else ""
        raise InputError(
            f"task='multilabel' takes outputs before the sigmoid, but the Keras loss{of} takes "
            "probabilities. Give it from_logits=True and the last layer no activation, or leave "
            "task out: then predictions are what the model gives, the probabilities."
        )
    return {"sigmoid": "probability", "softmax": "probabilities"}.get(kind, kind)


def _guessed(output: Any, about: LabelFacts) -> str:
    """Of a function of the user's: classes, if labels are whole numbers below the outputs.

    There is one a row, or, of outputs (rows, classes, positions), one for each position.
    """
    width = _width(output)
    positions = () if isinstance(output, Ragged) else tuple(output.shape[2:])
    classes = about.shape == positions and about.whole and about.most < width
    return "softmax" if classes and width > 1 else "identity"


def looks_binary(loss: Loss, facts: Mapping[str, LabelFacts]) -> bool:
    """Whether a function of the user's may have been meant for a single yes or no."""
    one = loss.heads[0]
    about = next(iter(facts.values()), LabelFacts())
    guessed = loss.part_of(0) is None or loss.head is None
    plain = one.head.kind == "identity" and one.head.outputs == 1
    yes_or_no = about.whole and (about.least, about.most) == (0, 1)
    return guessed and plain and yes_or_no and not loss.task_given


def _width(output: Any) -> int:
    values = output.values if isinstance(output, Ragged) else output
    return int(values.shape[1]) if values.dim() > 1 else 1


def _head(name: str, key: Key, kind: str, output: Any) -> Head:
    if isinstance(output, Ragged):
        if kind not in CLASSES or output.axes != 1:
            raise InputError(
                "Outputs that differ in length are for a class at each position, with a loss for "
                f"classes and rows that vary along one axis. Received: {output.axes} axes, "
                f"taken as {kind!r}."
            )
        return Head(name=name, output=key, kind=kind, outputs=_width(output), positions=(None,))
    positions: tuple[int, ...] = ()
    width = math.prod(output.shape[1:])
    if kind in CLASSES:
        width, positions = _width(output), tuple(output.shape[2:])
    return Head(name=name, output=key, kind=kind, outputs=width, positions=positions)
