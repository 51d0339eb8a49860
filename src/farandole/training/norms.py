"""Norms: batch normalisation where there is too little to take statistics of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from farandole.parallel import SynchronizedBatchNorm


class Norms:
    """The normalisations of a network that learn statistics, each worker's for itself.

    Those over all workers see to it themselves that few rows do no harm, and need every worker.
    """

    def __init__(self, network: nn.Module) -> None:
        found = [module for module in network.modules() if isinstance(module, _NormBase)]
        self.are_joint = any(isinstance(norm, SynchronizedBatchNorm) for norm in found)
        self._norms = [] if self.are_joint else found

    @contextmanager
    def seeing_one(self, copies: int = 1) -> Iterator[None]:
        """For a pass with one row, be it there several times, or with none.

        One value has no statistics, and none has neither: those of the rows before it stand in. A
        single row may well have many: an image has pixels. So each norm looks for itself.

        >>> norm = nn.BatchNorm1d(3)
        >>> with Norms(norm).seeing_one():
        ...     _ = norm(torch.ones(1, 3))
        >>> int(norm.num_batches_tracked), norm.training
        (0, True)
        """

        def rest_if_single(norm: nn.Module, arguments: tuple[torch.Tensor]) -> None:
            assert isinstance(norm, _BatchNorm)
            norm.train(arguments[0].numel() > copies * norm.num_features)

        norms = [norm for norm in self._learning() if isinstance(norm, _BatchNorm)]
        hooks = [norm.register_forward_pre_hook(rest_if_single) for norm in norms]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for norm in norms:
                norm.train()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """For a pass whose rows are none to learn from."""
        norms = self._learning()
        for norm in norms:
            norm.eval()
        try:
            yield
        finally:
            for norm in norms:
                norm.train()

    def _learning(self) -> list[_NormBase]:
        return [norm for norm in self._norms if norm.training]
