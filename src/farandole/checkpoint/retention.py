"""Which checkpoints can go: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from farandole.checkpoint.names import CheckpointName


class Candidate(NamedTuple):
    """A checkpoint that is there; one with a damaged manifest counts for nothing."""

    name: CheckpointName
    whole: bool
    score: float | None = None


def by_score(candidates: Sequence[Candidate], higher_is_better: bool) -> list[Candidate]:
    """Those that have a score, the best first; of equals, the one that came first.

    >>> found = [Candidate(CheckpointName(n), True, s) for n, s in [(1, 0.5), (2, 0.1), (3, 0.1)]]
    >>> [one.name.update for one in by_score(found, higher_is_better=False)]
    [2, 3, 1]
    """
    scored = [
        (-one.score if higher_is_better else one.score, one)
        for one in candidates
        if one.whole and one.score is not None and not math.isnan(one.score)
    ]
    return [one for _, one in sorted(scored, key=lambda pair: (pair[0], pair[1].name))]


def dispensable(
    candidates: Sequence[Candidate],
    written: CheckpointName,
    *,
    keep_last: int,
    keep_best: int,
    higher_is_better: bool,
) -> list[CheckpointName]:
    """What can be deleted now that one more has been written.

    Those after it are nobody's business here: they are damaged, or another writer's. It will pass
    them, and then they count like others. Of one update only the last turn counts.

    >>> found = [Candidate(CheckpointName(n), True, s) for n, s in [(1, 0.1), (2, 0.5), (3, 0.4)]]
    >>> dispensable(found, CheckpointName(3), keep_last=1, keep_best=1, higher_is_better=False)
    [CheckpointName(update=2, turn=1)]
    """
    past = [one for one in candidates if one.name <= written]
    whole = {one.name.update: one for one in sorted(past) if one.whole}
    last = sorted(whole.values())[-keep_last:]
    best = by_score(list(whole.values()), higher_is_better)[:keep_best]
    kept = {written, *(one.name for one in (*last, *best))}
    return [one.name for one in past if one.name not in kept]
