"""A figure of matplotlib's that is only ever a file: no window, no backend to choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import MissingPackage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by all eyes, and in grey too (Okabe and Ito).
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#9A9A9A"


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches.

    >>> figure = new_figure(4, 3)
    >>> len(figure.axes)
    0
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> None:
    """Leave out the lines that say nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, and the folders that lead to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
