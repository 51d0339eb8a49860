"""A driver to be killed: trains with checkpoints in a folder, and writes the weights there.

python -m tests.faults.driver_script FOLDER [SECONDS_A_PASS]

A file FOLDER/fault is what happens to a worker, once: its text is the kind.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.faults.ledger import Fault, Ledger, network, table

import farandole
from farandole.engines import LocalEngine
from farandole.training import TrainingResumed, WorkersRestarted


class Slow(Ledger):
    """A ledger that takes its time."""

    seconds = 0.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds if self.training else 0)
        return super().forward(rows)


def main(folder: Path, seconds: float = 0.0) -> str:
    """Train, or go on with it, and give the reason why it ended."""
    net = network(folder / "ledger")
    marker = folder / "fault"
    fault = Fault(str(marker), 8, marker.read_text()) if marker.exists() else None
    net[0] = slow = Slow(folder / "ledger", fault)
    slow.seconds = seconds

    def note(event: object) -> None:
        if isinstance(event, TrainingResumed):
            (folder / "resumed").write_text(str(event.update))
        if isinstance(event, WorkersRestarted):
            (folder / "restarted").write_text(event.reason)

    result = farandole.train(
        net,
        table(),
        epochs=3,
        batch_size=48,
        learning_rate=0.01,
        seed=3,
        num_workers=2,
        engine=LocalEngine(threads=1),
        checkpoint_dir=folder / "checkpoints",
        checkpoint_steps=2,
        observer=note,
    )
    save_file(result.network.state_dict(), folder / "weights.safetensors")
    return result.reason


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), *map(float, sys.argv[2:])))
