"""Batch normalization in passes with too few rows for statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from farandole.keras_models import KerasNetwork
from farandole.parallel import SynchronizedBatchNorm


class BatchNorms:
    """The layers of a network that keep running statistics, each worker its own.

    Synchronized ones are left alone: they handle small batches themselves, and need every worker.
    """

    def __init__(self, network: nn.Module) -> None:
        found = [module for module in network.modules() if isinstance(module, _NormBase)]
        self._keras = [one for one in network.modules() if isinstance(one, KerasNetwork)]
        self.need_placeholder = any(one.synchronizes for one in self._keras)
        """Whether a worker without rows has to make up some, which count for nothing."""
        ours = any(isinstance(norm, SynchronizedBatchNorm) for norm in found)
        self.are_synchronized = ours or self.need_placeholder
        self._norms = [] if self.are_synchronized else found

    @contextmanager
    def counting(self, rows: int) -> Iterator[None]:
        """For a pass over so many rows; of none, there are rows that count for nothing."""
        for one in self._keras:
            one.counts_rows = rows > 0
        yield

    @contextmanager
    def single_row(self, copies: int = 1) -> Iterator[None]:
        """For a pass with one row, which may be repeated `copies` times, or with none.

        One value has no variance, so the running statistics are used instead. A single row may
        have many values for each channel, such as the pixels of an image. So each layer decides by
        the input that it gets.

        >>> norm = nn.BatchNorm1d(3)
        >>> with BatchNorms(norm).single_row():
        ...     _ = norm(torch.ones(1, 3))
        >>> int(norm.num_batches_tracked), norm.training
        (0, True)
        """

        def set_mode(norm: nn.Module, arguments: tuple[torch.Tensor]) -> None:
            assert isinstance(norm, _BatchNorm)
            norm.train(arguments[0].numel() > copies * norm.num_features)

        norms = [norm for norm in self._in_training() if isinstance(norm, _BatchNorm)]
        hooks = [norm.register_forward_pre_hook(set_mode) for norm in norms]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for norm in norms:
                norm.train()

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """For a pass whose rows must not change the running statistics."""
        norms: list[nn.Module] = [*self._in_training(), *(k for k in self._keras if k.training)]
        for norm in norms:
            norm.eval()
        try:
            yield
        finally:
            for norm in norms:
                norm.train()

    def _in_training(self) -> list[_NormBase]:
        return [norm for norm in self._norms if norm.training]
