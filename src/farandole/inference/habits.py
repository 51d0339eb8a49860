"""Habits of a network: how many rows it can take at once, and whether it writes to them."""

from __future__ import annotations

from torch import nn

from farandole.inference.onnx_file import OnnxNetwork
from farandole.networks import FIRST_ROWS as FIRST_ROWS
from farandole.networks import Gauge as NetworkGauge


class Gauge(NetworkGauge):
    """Looks at what the layers of a network give, a file of ONNX among them."""

    sealed = (*NetworkGauge.sealed, OnnxNetwork)


def may_write(network: nn.Module) -> bool:
    """Whether a network may change what it is given: one's own code may, and layers in place do.

    >>> may_write(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), may_write(nn.ReLU(inplace=True))
    (False, True)
    """
    return any(
        not type(module).__module__.startswith(_KNOWN) or getattr(module, "inplace", False)
        for module in network.modules()
    )


_KNOWN = ("torch.nn.modules.", "torch.ao.nn.", "farandole.networks.")
