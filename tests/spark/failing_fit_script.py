"""A driver whose fit fails in its workers, in a line of this file; its error ends the process:

python failing_fit_script.py [LEVEL OF SPARK'S LOG]
"""

import sys

import torch

from farandole import _spark
from farandole.spark import TorchEstimator


class Brittle(torch.nn.Linear):
    """Is good for some batches: those that it is tried with."""

    calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 20:
            raise ZeroDivisionError("the user's own fault")
        return super().forward(rows)


session = _spark.local_session("failing")
session.sparkContext.setLogLevel(sys.argv[1] if len(sys.argv) > 1 else "WARN")
data = [([1.0, 2.0], 0), ([2.0, 1.0], 1)] * 8
rows = session.createDataFrame(data, "features array<double>, label int")
estimator = TorchEstimator(network=Brittle(2, 2), epochs=9, batchSize=2, numWorkers=2)
estimator.setParams(progress=False).fit(rows)
