"""TrainingResult: a trained network, its history and timings."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.inference import Predictor
from farandole.training import INTERRUPTED, UNFINISHED, Outcome, Recipe, describe_row


@dataclass(frozen=True)
class TrainingResult:
    """A trained network, its history and timings.

    >>> import farandole, pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0], "label": [0.0, 1.0]})
    >>> result = farandole.train(torch.nn.Linear(1, 1), table, loss="mse", epochs=2, progress=False)
    >>> result.reason, len(result.history), result.network.training
    ('all epochs done', 2, False)
    """

    network: nn.Module
    """A plain module on the CPU, ready to predict."""
    signature: Signature
    history: pd.DataFrame
    """One row an epoch: losses, metrics, learning rate, seconds, rows per second."""
    steps: pd.DataFrame
    """One row an update: epoch, learning rate, loss of the global batch."""
    seconds: dict[str, float]
    """What each phase took: read, ring-up, check, train (the slowest worker's, and of the last
    attempt), restarts (attempts before that one, if there were any), and the total."""
    reason: str
    """Why training ended."""
    workers: pd.DataFrame
    """One row a worker: bytes it sent to others, its process's peak memory, seconds of training."""

    @property
    def predictor(self) -> Predictor:
        """Applies the network to pandas, Arrow or plain arrays."""
        return Predictor(self.network, self.signature)

    @property
    def artifact(self) -> Artifact:
        """What gets saved."""
        rows = [
            {str(k): float(v) for k, v in row.items()} for row in self.history.to_dict("records")
        ]
        return Artifact(self.network, self.signature, tuple(rows))

    def __repr__(self) -> str:
        last = "" if self.history.empty else f", {describe_row(self.artifact.history[-1])}"
        return f"TrainingResult({len(self.history)} epochs{last}; {self.reason})"

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, allow_pickle: bool = False
    ) -> None:
        """Write a folder of safetensors and JSON."""
        self.artifact.save(path, overwrite=overwrite, allow_pickle=allow_pickle)


def history_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A history as a table; epochs, stored as numbers like the rest, are whole ones.

    >>> history_frame([{"epoch": 1.0, "train_loss": 0.5}])
       epoch  train_loss
    0      1         0.5
    """
    frame = pd.DataFrame(list(rows))
    if len(frame):
        frame["epoch"] = frame["epoch"].astype(int)
    return frame


def assemble(
    network: nn.Module,
    recipe: Recipe,
    outcomes: Sequence[Outcome],
    *,
    lost: float,
    total: float,
    has_checkpoint: bool = False,
) -> TrainingResult:
    """Put together the outcomes of all workers; rank 0 has the network."""
    leader = outcomes[0]
    if leader.input_error is not None:
        raise leader.input_error
    progress = leader.progress
    if progress.reason == INTERRUPTED and not progress.history:
        raise KeyboardInterrupt
    assert leader.signature is not None
    assert leader.state is not None
    if progress.reason in UNFINISHED:
        kept = "best" if recipe.patience and recipe.restore_best else "last finished"
        goes_on = " The same call goes on from the checkpoint." if has_checkpoint else ""
        warnings.warn(
            f"Training ended after epoch {len(progress.history)}: {progress.reason}. The network "
            f"is that of the {kept} epoch.{goes_on}",
            UserWarning,
            stacklevel=4,
        )
    trained = copy.deepcopy(network)
    trained.load_state_dict(leader.state)
    trained.zero_grad(set_to_none=True)
    seconds = {
        phase: max(outcome.seconds.get(phase, 0.0) for outcome in outcomes)
        for phase in leader.seconds
    }
    seconds |= {"restarts": lost} if lost else {}
    seconds["total"] = total
    history = history_frame(progress.history)
    steps = pd.DataFrame(progress.steps, columns=["epoch", "learning_rate", "loss"])
    workers = pd.DataFrame(
        {
            "rank": range(len(outcomes)),
            "sent_bytes": [outcome.sent for outcome in outcomes],
            "peak_memory": [outcome.memory for outcome in outcomes],
            "train_seconds": [outcome.seconds.get("train", 0.0) for outcome in outcomes],
        }
    )
    return TrainingResult(
        trained.eval(), leader.signature, history, steps, seconds, progress.reason, workers
    )
