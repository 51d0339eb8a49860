"""A directory of checkpoints: written whole, checked when read, and only some of them kept.

step-0000001234/
    state.json         the document
    state.safetensors  the tensors
    manifest.json      sizes and sums of both, and of itself
latest                 the name of the last one written; for people, since reading goes by number
run                    which run uses the directory now
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from farandole.arguments import check_flag, check_integer
from farandole.checkpoint.folder import SnapshotFiles, read_manifest, read_snapshot
from farandole.checkpoint.local_store import LocalStore
from farandole.checkpoint.names import CheckpointName
from farandole.checkpoint.remote_store import RemoteStore
from farandole.checkpoint.retention import Candidate, by_score, dispensable
from farandole.checkpoint.snapshot import Snapshot
from farandole.checkpoint.store import MANIFEST, Damaged, Store
from farandole.errors import CheckpointError, InputError

_LATEST, _RUN = "latest", "run"


class CheckpointDirectory:
    """Where a training run keeps its checkpoints.

    Args:
        url: a folder, or any URL that fsspec knows.
        keep_last: how many of the last checkpoints are kept.
        keep_best: how many of those with the best score are kept besides.
        higher_is_better: whether a score should grow.
        run: the name under which it was claimed; a writer that it was taken from gets an error.

    >>> import tempfile, torch
    >>> directory = CheckpointDirectory(tempfile.mkdtemp())
    >>> directory.prepare()
    >>> directory.write(Snapshot(10, {"epoch": 2}, {"weight": torch.zeros(2)}), score=0.5)
    'step-0000000010'
    >>> directory.load().document
    {'epoch': 2}
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        higher_is_better: bool = False,
        run: str | None = None,
    ) -> None:
        self.url = _absolute(url)
        self.keep_last = check_integer("keep_last", keep_last)
        self.keep_best = check_integer("keep_best", keep_best, least=0)
        self.higher_is_better = check_flag("higher_is_better", higher_is_better)
        self.run = run

    def prepare(self) -> None:
        """Make the directory, prove that it can be written, and remove what killed writers left.

        For who is about to write: another writer's unfinished checkpoint fails by it.
        """
        self._store.prepare()

    def claim(self, run: str) -> None:
        """Say which run uses the directory from now on, by a name that no other one has."""
        self._store.replace(_RUN, f"{run}\n")

    def check_claimed(self, run: str) -> None:
        """Raise unless that run uses the directory, and this process sees the same one."""
        found = (self._store.read(_RUN) or "").strip()
        if found == run:
            return
        place = self._store.place
        if found:
            raise CheckpointError(
                f"Another run writes checkpoints to {place!r} now. Each training needs a directory "
                "of its own."
            )
        raise CheckpointError(
            f"{place!r} on {socket.gethostname()} isn't the directory that the driver sees. "
            "Checkpoints need one that all workers reach: a folder that is mounted on every host, "
            "or a URL such as s3:// or hdfs://."
        )

    def write(self, snapshot: Snapshot, *, score: float | None = None) -> str:
        """Write a checkpoint, delete those that need not be kept, and give its name.

        It is there whole or not at all, whatever happens in between. If there is one of the same
        update, that one stays as it is until the new one is there.
        """
        if self.run is not None:
            self.check_claimed(self.run)
        folder = SnapshotFiles(snapshot, score)
        store = self._store
        name = store.write(_free_name(store, snapshot.update), folder.files(), folder.size)
        store.replace(_LATEST, f"{name}\n")
        self._retain(store, name)
        return str(name)

    def load(self, *, warn: bool = True) -> Snapshot | None:
        """The newest checkpoint that is whole; None if there is none.

        One that is damaged is named in a warning, if you want that, and the one before it is used;
        before the first is the start. Storage that can't be reached is another matter, and raises.
        """
        return self._first_whole(lambda store: reversed(_found(store)), warn)

    def best(self) -> Snapshot | None:
        """The checkpoint of the best score that is kept and whole; None if there is none."""

        def best_first(store: Store) -> list[CheckpointName]:
            candidates = [_candidate(store, name) for name in _found(store)]
            return [one.name for one in by_score(candidates, self.higher_is_better)]

        return self._first_whole(best_first)

    def names(self) -> list[str]:
        """The checkpoints that are there, oldest first; whether they are whole, reading tells."""
        store = self._store
        return [str(name) for name in _found(store) if store.has(str(name), MANIFEST)]

    def __repr__(self) -> str:
        return f"CheckpointDirectory({self._store.place!r})"

    @property
    def _store(self) -> Store:
        return RemoteStore(self.url) if _is_remote(self.url) else LocalStore(self.url)

    def _first_whole(
        self, order: Callable[[Store], Iterable[CheckpointName]], warn: bool = True
    ) -> Snapshot | None:
        """Read one after the other, with a warning for each that is damaged."""
        store = self._store
        gone: set[CheckpointName] = set()
        while (name := next((one for one in order(store) if one not in gone), None)) is not None:
            gone.add(name)
            try:
                return read_snapshot(store, name)
            except FileNotFoundError:  # deleted by who wrote a newer one: look again
                continue
            except Damaged as error:
                if not warn:
                    continue
                warnings.warn(
                    f"The checkpoint {name} in {store.place!r} is damaged, and not used: {error}.",
                    UserWarning,
                    stacklevel=3,
                )
        return None

    def _retain(self, store: Store, written: CheckpointName) -> None:
        """Delete what need not be kept; if that fails, the new one is still there."""
        try:
            for name in dispensable(
                _judgeable(store),
                written,
                keep_last=self.keep_last,
                keep_best=self.keep_best,
                higher_is_better=self.higher_is_better,
            ):
                store.delete(str(name))
        except CheckpointError as error:
            warnings.warn(str(error), UserWarning, stacklevel=3)


def _absolute(url: str | os.PathLike[str]) -> str:
    """The URL; a path as an absolute one, since workers may have another current folder."""
    text: Any = os.fspath(url) if hasattr(url, "__fspath__") else url
    if not isinstance(text, str) or not text:
        raise InputError(f"A checkpoint directory must be a path or a URL. Received: {url!r}")
    path = text.removeprefix("file://")  # the same folder, but flushed as fsspec can't
    return path if _is_remote(path) else os.path.abspath(os.path.expanduser(path))


def _is_remote(url: str) -> bool:
    return "://" in url or "::" in url


def _found(store: Store) -> list[CheckpointName]:
    """The checkpoints that are there, whole or not; oldest first, by their numbers."""
    names = (CheckpointName.parse(folder) for folder in store.folders())
    return sorted(name for name in names if name is not None)


def _free_name(store: Store, update: int) -> CheckpointName:
    taken = [name for name in _found(store) if name.update == update]
    return max(taken).next() if taken else CheckpointName(update)


def _judgeable(store: Store) -> list[Candidate]:
    """All but those that can't be read now, or are of another version: they are left alone."""
    found = []
    for name in _found(store):
        with suppress(CheckpointError):
            found.append(_candidate(store, name))
    return found


def _candidate(store: Store, name: CheckpointName) -> Candidate:
    try:
        return Candidate(name, True, read_manifest(store, name).score)
    except (Damaged, FileNotFoundError):
        return Candidate(name, False)
