"""Whether what a training would give can be saved: asked without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.api.dry_run import dry_run
from farandole.engines import Engine
from farandole.errors import ArtifactError, InputError
from farandole.tracebacks import short_traceback


@short_traceback
def check_saveable(
    network: Any,
    data: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
    engine: str | Engine | None = None,
    **recipe: Any,
) -> None:
    """Raise if the network that `train` would give could be saved as a pickle only.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0], "label": [0.0, 1.0]})
    >>> check_saveable(torch.nn.Linear(1, 1), table, loss="mse")
    """
    found = dry_run(network, data, features=features, label=label, engine=engine, **recipe)
    if found is None:
        raise InputError("There is no row to try the network with.")
    why = found.why_unsaveable()
    if why:
        raise ArtifactError(
            f"{type(found.network).__name__} {why}. Use such layers, or save it with "
            "allow_pickle=True "
            "if those who load it trust you: loading a pickle runs code."
        )
