"""Batch normalisation over the rows of all workers, applied to a network from outside.

torch's own SyncBatchNorm does this on GPUs only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.keras_models import KerasNetwork
from farandole.world import World


def convert_sync_batch_norm(network: nn.Module, world: World) -> nn.Module:
    """The network with every batch normalisation replaced by one over all workers.

    Weights and their names stay the same, so that a trained state fits the network as it was.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> type(convert_sync_batch_norm(network, World(size=2))[1]).__name__
    'SynchronizedBatchNorm'
    >>> type(convert_sync_batch_norm(nn.BatchNorm1d(3), World(size=1))).__name__
    'BatchNorm1d'
    """
    if world.size == 1:
        return network
    for module in network.modules():
        if isinstance(module, KerasNetwork):
            module.synchronize_batch_norm(_SumOfAll.apply)
    return _replaced(network, {})


def _replaced(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    """The module with its norms replaced; one that is used in two places stays one."""
    if isinstance(module, _BatchNorm) and not isinstance(module, SynchronizedBatchNorm):
        return known.setdefault(id(module), SynchronizedBatchNorm.like(module))
    for name, child in module._modules.items():
        if child is not None:
            setattr(module, name, _replaced(child, known))
    return module


class SynchronizedBatchNorm(_BatchNorm):
    """Batch normalisation whose mean and variance are those of the global batch.

    Every worker has to take part in each training step, if need be with no rows at all.
    """

    @classmethod
    def like(cls, norm: _BatchNorm) -> SynchronizedBatchNorm:
        """One that shares the parameters and buffers of an ordinary one."""
        made = cls(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        made.weight, made.bias = norm.weight, norm.bias
        made.running_mean, made.running_var = norm.running_mean, norm.running_var
        made.num_batches_tracked = norm.num_batches_tracked
        return made.train(norm.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise each channel, the second axis."""
        if not self.training:
            return super().forward(input)
        channels = self.num_features
        others = [axis for axis in range(input.dim()) if axis != 1]
        count = torch.tensor([input.numel() / channels], dtype=torch.float64, device=input.device)
        wide = input.double()  # before squaring: far from zero, the variance is in the last digits
        mine = [wide.sum(others), wide.square().sum(others)]
        sums: torch.Tensor = _SumOfAll.apply(torch.cat([*mine, count]))  # type: ignore[no-untyped-call]
        total = float(sums[-1].detach())
        mean = sums[:channels] / max(total, 1.0)
        variance = (sums[channels:-1] / max(total, 1.0) - mean.square()).clamp(min=0)
        if total > 1:
            self._learn(mean.detach(), variance.detach(), total)
        elif self.running_mean is not None and self.running_var is not None:
            # One row has no statistics: those of the rows before it stand in.
            mean, variance = self.running_mean.double(), self.running_var.double()
        shape = [channels if axis == 1 else 1 for axis in range(input.dim())]
        scale = (variance + self.eps).rsqrt()
        centre = mean.to(input.dtype).view(shape)
        normal: torch.Tensor = (input - centre) * scale.to(input.dtype).view(shape)
        weight, bias = self._parameters["weight"], self._parameters["bias"]  # either may be None
        if weight is not None:
            normal = normal * weight.view(shape)
        return normal if bias is None else normal + bias.view(shape)

    def _learn(self, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
        """Move the running statistics towards this batch's, as torch does."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = self.momentum
        if share is None:
            share = 1 / float(self.num_batches_tracked)
        with torch.no_grad():
            unbiased = variance * total / (total - 1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of axes will do."""


class _SumOfAll(torch.autograd.Function):
    """A sum over workers. What each puts in counts in all their losses, so gradients add up too."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed
