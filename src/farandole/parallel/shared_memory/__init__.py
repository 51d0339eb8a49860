"""Sums through the memory that workers of one host share."""

from farandole.parallel.shared_memory.neighbours import join
from farandole.parallel.shared_memory.summation import SharedMemory

__all__ = ["SharedMemory", "join"]
