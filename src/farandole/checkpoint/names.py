"""The names of checkpoints: `step-0000001234`, and `step-0000001234-2` if there was one already."""

from __future__ import annotations

import re
from typing import NamedTuple

_PATTERN = re.compile(r"step-(\d{10,19})(?:-(\d{1,9}))?", re.ASCII)


class CheckpointName(NamedTuple):
    """A checkpoint's number, and its turn among those of the same number; sorted, oldest first.

    A checkpoint is never overwritten: whoever writes the same update again takes the next turn.

    >>> str(CheckpointName(1234)), str(CheckpointName(1234, 2))
    ('step-0000001234', 'step-0000001234-2')
    """

    update: int
    turn: int = 1

    def __str__(self) -> str:
        return f"step-{self.update:010d}" + (f"-{self.turn}" if self.turn > 1 else "")

    def next(self) -> CheckpointName:
        """The name to try if this one is taken."""
        return self._replace(turn=self.turn + 1)

    @classmethod
    def parse(cls, text: str) -> CheckpointName | None:
        """Read a folder's name; None if it isn't a checkpoint's.

        >>> CheckpointName.parse("step-0000000007"), CheckpointName.parse("step-7")
        (CheckpointName(update=7, turn=1), None)
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        found = cls(int(match[1]), int(match[2] or 1))
        return found if str(found) == text else None
