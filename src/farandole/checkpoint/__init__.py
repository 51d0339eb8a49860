"""How the state of a training run gets to disk safely, and comes back."""

from farandole.checkpoint.directory import CheckpointDirectory
from farandole.checkpoint.snapshot import Snapshot
from farandole.checkpoint.tree import flatten, unflatten
from farandole.checkpoint.writer import CheckpointWriter

__all__ = ["CheckpointDirectory", "CheckpointWriter", "Snapshot", "flatten", "unflatten"]
