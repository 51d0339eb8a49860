"""The folder of one checkpoint: a snapshot as files, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farandole.arguments import check_integer
from farandole.checkpoint import document
from farandole.checkpoint.manifest import (
    DOCUMENT,
    SIZE_LIMIT,
    TENSORS,
    FileSum,
    Manifest,
    SummedStream,
    summed,
)
from farandole.checkpoint.names import CheckpointName
from farandole.checkpoint.snapshot import Snapshot
from farandole.checkpoint.store import MANIFEST, Damaged, Files, Store
from farandole.checkpoint.tensor_file import TensorFile, read_bytes, read_tensors

_MOST_UPDATES = 2**63 - 1


class SnapshotFiles:
    """A snapshot on its way into files; raises if something in it can't be written."""

    def __init__(self, snapshot: Snapshot, score: float | None) -> None:
        self._update = check_integer("update", snapshot.update, least=0, most=_MOST_UPDATES)
        self._score = None if score is None else float(score)
        self._document = document.encode(snapshot.document)
        self._tensors = TensorFile(snapshot.tensors)
        self.size = self._tensors.size + len(self._document)

    def files(self) -> Files:
        """Name and bytes of each file. The manifest is last: it has the sums of the others."""
        sums: dict[str, FileSum] = {}
        yield TENSORS, summed(sums, TENSORS, self._tensors.chunks())
        yield DOCUMENT, summed(sums, DOCUMENT, [memoryview(self._document)])
        manifest = Manifest(self._update, self._score, sums)
        yield MANIFEST, [memoryview(manifest.encode())]


def read_snapshot(store: Store, name: CheckpointName) -> Snapshot:
    """Read a checkpoint. Raises Damaged, or FileNotFoundError if it isn't there any more."""
    manifest = read_manifest(store, name)
    expected = manifest.files[DOCUMENT]
    with _open(store, name, DOCUMENT, expected) as stream:
        if expected.size > document.SIZE_LIMIT:
            raise Damaged(f"is longer than {document.SIZE_LIMIT:,} bytes")
        raw = read_bytes(stream, expected.size)
        stream.check()
        found = document.decode(raw)
    expected = manifest.files[TENSORS]
    with _open(store, name, TENSORS, expected) as stream:
        tensors = read_tensors(stream, expected.size)
        stream.check()
    return Snapshot(manifest.update, found, tensors)


def read_manifest(store: Store, name: CheckpointName) -> Manifest:
    """Read what a checkpoint says of itself, and hold it to that."""
    with _named(MANIFEST), store.open(str(name), MANIFEST) as file:
        if file.size > SIZE_LIMIT:
            raise Damaged(f"is longer than {SIZE_LIMIT:,} bytes")
        manifest = Manifest.decode(read_bytes(file.stream, file.size))
        if manifest.update != name.update:
            raise Damaged(f"is that of another checkpoint, of update {manifest.update}")
    return manifest


@contextmanager
def _open(
    store: Store, name: CheckpointName, file: str, expected: FileSum
) -> Iterator[SummedStream]:
    with _named(file), store.open(str(name), file) as stored:
        yield SummedStream(stored, expected)


@contextmanager
def _named(file: str) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{file} {error}") from error
