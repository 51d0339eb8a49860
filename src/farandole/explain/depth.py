"""explain depth: why gradients vanish and explode in deep networks, and what helps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from farandole.explain import depth_picture, picture
from farandole.explain.depth_study import FULL, DepthPlan, study_depth
from farandole.explain.variants import VARIANTS


def explain_depth(path: Path, plan: DepthPlan = FULL) -> None:
    """Train shallow and deep networks, print what became of them, and draw their gradients.

    Args:
        path: where the picture goes.
        plan: how much to measure.
    """
    from rich.console import Console

    picture.new_figure(1, 1)  # without matplotlib, say so now and not in a minute
    console = Console()
    study = study_depth(plan, tell=console.print)
    depth_picture.draw(study.gradients, study.summary, path)
    console.print(_as_text(study.summary))
    for name, variant in VARIANTS.items():
        console.print(f"[bold]{name}[/bold]: {variant.shows}")


def _as_text(summary: pd.DataFrame) -> Any:
    from rich.table import Table

    text = Table(title="Gradients of the first step, and what a few epochs of training reach")
    text.add_column("variant", no_wrap=True)
    for name in ("hidden layers", "first layer", "last layer", "first / last", "loss", "accuracy"):
        text.add_column(name, justify="right")
    name = ""
    for row in summary.to_dict("records"):
        if row["variant"] != name:
            text.add_section()
        lost = math.isnan(row["loss"])
        text.add_row(
            "" if row["variant"] == name else row["variant"],
            str(row["depth"]),
            *(f"{row[norm]:.0e}" for norm in ("first", "last", "ratio")),
            *(("NaN", "–") if lost else (f"{row['loss']:.3g}", f"{row['accuracy']:.2f}")),
        )
        name = row["variant"]
    return text
