"""Networks whose parameters, gradients and optimizer state are split among workers."""

from farandole.parallel.sharded.strategy import Sharded

__all__ = ["Sharded"]
