"""One of two workers is killed in the middle of a fit, which ends as if nothing had happened.

python examples/a_worker_is_killed.py
"""

import os
import signal
import tempfile
from pathlib import Path

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import farandole

data = load_digits()
table = pd.DataFrame({"pixels": list((data.data / 16).astype("float32")), "label": data.target})
folder = Path(tempfile.mkdtemp())


class Fragile(nn.Sequential):
    """Kills its own process in the 40th step, if there is a file that says so."""

    steps = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        bomb = folder / "bomb"
        if self.training and self.steps == 40 and bomb.exists():
            bomb.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(pixels)


def train(**options):
    torch.manual_seed(0)
    network = Fragile(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    return farandole.train(
        network, table, features="pixels", num_workers=2, epochs=3, batch_size=64, **options
    )


undisturbed = train(progress=False)
(folder / "bomb").touch()
killed = train(checkpoint_dir=folder / "checkpoints", checkpoint_steps=10)

pairs = zip(undisturbed.network.parameters(), killed.network.parameters(), strict=True)
same = all(torch.equal(one, other) for one, other in pairs)
print(f"The weights are the same to the last bit: {same}")
