"""The topics of `farandole explain`: what each shows, and the function that shows it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.errors import InputError, suggestion
from farandole.explain.activations import explain_activations
from farandole.explain.backprop import explain_backprop
from farandole.explain.depth import explain_depth
from farandole.explain.parameter_server import explain_parameter_server
from farandole.explain.pipeline import explain_pipeline
from farandole.explain.ring import explain_ring
from farandole.explain.sharding import explain_sharding
from farandole.explain.trace_page import explain_trace


@dataclass(frozen=True)
class Topic:
    """Something worth a page or a picture.

    >>> TOPICS["ring"].file, TOPICS["ring"].options
    ('ring.html', ('workers', 'values', 'trace', 'steps'))
    """

    about: str
    file: str
    """What is written: a page (.html) or a picture (.png)."""
    show: Callable[..., None]
    """Prints what there is to read, and draws into the file it is given."""
    is_recorded: bool = False
    """Whether a real run's trace can be drawn instead."""

    @property
    def options(self) -> tuple[str, ...]:
        """What can be chosen."""
        own = _options(self.show)
        return (*own, *_options(explain_trace)) if self.is_recorded else own


TOPICS: dict[str, Topic] = {
    "ring": Topic(
        "ring all-reduce: who holds which sum, step by step", "ring.html", explain_ring, True
    ),
    "parameter-server": Topic(
        "pushes and pulls, and the traffic at the server",
        "parameter-server.html",
        explain_parameter_server,
        True,
    ),
    "pipeline": Topic(
        "stages that work at the same time, and their bubbles",
        "pipeline.html",
        explain_pipeline,
        True,
    ),
    "sharding": Topic(
        "ZeRO 1 to 3: who keeps what, and how a layer is gathered",
        "sharding.html",
        explain_sharding,
        True,
    ),
    "backprop": Topic(
        "a linear regression as a graph, with values and gradients",
        "backprop.html",
        explain_backprop,
    ),
    "activations": Topic(
        "what stands between two layers: nine functions, and how steep they are",
        "activations.html",
        explain_activations,
    ),
    "depth": Topic(
        "why gradients vanish and explode in deep networks, and what helps",
        "depth.png",
        explain_depth,
    ),
}
"""What can be explained, by name."""


def explain(topic: str, folder: str | os.PathLike[str] = ".", **options: Any) -> Path:
    """Print and draw a topic, and give the path of the page or picture.

    Args:
        topic: one of `TOPICS`.
        folder: where it goes; it is made if there is none.
        **options: what the topic lets you choose: see `Topic.options`.

    >>> explain("deepth")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no topic 'deepth'. Did you mean 'depth'?
    """
    if topic not in TOPICS:
        raise InputError(f"There is no topic {topic!r}. {suggestion(topic, TOPICS)}")
    chosen = TOPICS[topic]
    show = explain_trace if chosen.is_recorded and "trace" in options else chosen.show
    _check_options(topic, options, _options(show))
    path = Path(folder) / chosen.file
    show(path, **options)
    return path


def _options(show: Callable[..., None]) -> tuple[str, ...]:
    """What a function takes besides the path."""
    return tuple(inspect.signature(show).parameters)[1:]


def _check_options(topic: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name in known:
            continue
        if "trace" in known:
            words = "With a trace only 'steps' can be chosen: the rest is in the file."
        elif name == "steps" and "steps" in TOPICS[topic].options:
            words = "It goes with a trace."
        else:
            words = suggestion(name, known) if known else "There is nothing to choose."
        raise InputError(f"{topic} has no option {name!r}. {words}")
