"""Sums through the memory that workers of one host share."""

from farandole.parallel.shared_memory.host_rendezvous import join_host
from farandole.parallel.shared_memory.summation import SharedMemorySummation

__all__ = ["SharedMemorySummation", "join_host"]
