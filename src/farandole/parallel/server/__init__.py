"""Parameter servers, synchronous and asynchronous."""

from farandole.parallel.server.strategy import ParameterServer

__all__ = ["ParameterServer"]
