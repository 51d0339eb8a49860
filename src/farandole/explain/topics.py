"""The topics of `farandole explain`: what each shows, and the function that shows it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import InputError, suggestion
from farandole.explain.activations import explain_activations
from farandole.explain.depth import explain_depth


@dataclass(frozen=True)
class Topic:
    """Something worth a picture.

    >>> TOPICS["depth"].picture
    'depth.png'
    """

    about: str
    picture: str
    show: Callable[[Path], None]
    """Prints what there is to read, and draws into the file it is given."""


TOPICS: dict[str, Topic] = {
    "activations": Topic(
        "what stands between two layers: nine functions, and how steep they are",
        "activations.png",
        explain_activations,
    ),
    "depth": Topic(
        "why gradients vanish and explode in deep networks, and what helps",
        "depth.png",
        explain_depth,
    ),
}
"""What can be explained, by name."""


def explain(topic: str, folder: str | os.PathLike[str] = ".") -> Path:
    """Print and draw a topic, and give the path of the picture.

    Args:
        topic: one of `TOPICS`.
        folder: where the picture goes; it is made if there is none.

    >>> explain("deepth")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no topic 'deepth'. Did you mean 'depth'?
    """
    if topic not in TOPICS:
        raise InputError(f"There is no topic {topic!r}. {suggestion(topic, TOPICS)}")
    path = Path(folder) / TOPICS[topic].picture
    TOPICS[topic].show(path)
    return path
