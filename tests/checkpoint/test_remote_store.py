"""A file system that fails, at each of its calls in turn. It is a real one of fsspec otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.checkpoint.snapshots import same, snapshot

from farandole.checkpoint import CheckpointDirectory
from farandole.checkpoint.folder import read_snapshot
from farandole.checkpoint.names import CheckpointName
from farandole.errors import CheckpointError

URL = "flaky://bucket/runs/1"


class FlakyFileSystem(MemoryFileSystem):
    """Fails at the n-th call: once, or (as if it were cut off) from then on."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    fails_at: int | None = None
    for_good = False
    calls = 0

    @classmethod
    def call(cls) -> None:
        cls.calls += 1
        late = cls.fails_at is not None and cls.calls >= cls.fails_at
        if late and (cls.for_good or cls.calls == cls.fails_at):
            raise ConnectionError("the cable was pulled: flaky://me:secret@host")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("flaky://"))

    def rm(self, path: str, recursive: bool = False, **options: Any) -> None:
        """File by file, as object stores do; the manifest would come last."""
        for file in sorted(self.find(path), reverse=True):
            self.rm_file(file)
        super().rm(path, recursive=recursive, **options)

    def open(self, path: str, mode: str = "rb", **options: Any) -> FlakyFile:
        self.call()
        return FlakyFile(super().open(path, mode, **options))


def _failing(name: str) -> Any:
    def method(self: FlakyFileSystem, *given: Any, **options: Any) -> Any:
        self.call()
        return getattr(MemoryFileSystem, name)(self, *given, **options)

    return method


for _name in ("mkdir", "ls", "info", "pipe_file", "rm_file"):
    setattr(FlakyFileSystem, _name, _failing(_name))


class FlakyFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: memoryview) -> int:
        try:
            FlakyFileSystem.call()
        except ConnectionError:
            self._file.write(content[: len(content) // 2])
            raise
        return int(self._file.write(content))

    def read(self, size: int) -> bytes:
        FlakyFileSystem.call()
        return bytes(self._file.read(size))

    def __enter__(self) -> FlakyFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()
        FlakyFileSystem.call()


@pytest.fixture(autouse=True)
def flaky() -> Iterator[type[FlakyFileSystem]]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    heal()
    yield FlakyFileSystem
    heal()
    FlakyFileSystem.store.clear()
    FlakyFileSystem.pseudo_dirs[:] = [""]


def heal() -> None:
    FlakyFileSystem.fails_at, FlakyFileSystem.for_good = None, False


def calls_of(work: Any) -> int:
    FlakyFileSystem.calls = 0
    work()
    return FlakyFileSystem.calls


def directory() -> CheckpointDirectory:
    return CheckpointDirectory(URL, keep_last=1)


def fresh() -> None:
    """One good checkpoint, which the next one makes dispensable."""
    heal()
    FlakyFileSystem.store.clear()
    FlakyFileSystem.pseudo_dirs[:] = ["", "/bucket", "/bucket/runs"]
    directory().prepare()
    directory().write(snapshot(1))


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_writing_fails_at_every_call(flaky: type[FlakyFileSystem], for_good: bool) -> None:
    fresh()
    count = calls_of(lambda: directory().write(snapshot(2)))
    assert count > 20
    outcomes = set()
    for number in range(1, count + 1):
        fresh()
        flaky.fails_at, flaky.for_good, flaky.calls = number, for_good, 0
        outcomes.add(outcome())
        heal()
        check_that_nothing_is_lost()
    assert outcomes == {"raised", "warned", "deferred"}


def outcome() -> str:
    """What a write that fails somewhere says.

    An error; or a warning, if only deleting failed; or nothing, if it couldn't be told whether an
    old one is to be deleted: the next write will.
    """
    told = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            directory().write(snapshot(2))
        except CheckpointError as error:
            told = str(error)
    assert "secret" not in told
    assert "the cable was pulled" in told or not told
    return "raised" if told else "warned" if caught else "deferred"


def check_that_nothing_is_lost() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a half-written one may be there, and is named
        found = directory().load()
    directory().prepare()
    again = directory().load()  # a warning would be an error now
    assert found is not None
    assert again is not None
    assert same(found, snapshot(found.update))
    assert same(again, snapshot(found.update))
    assert found.update in (1, 2)
    for name in directory().names():  # no half-deleted one passes for a checkpoint
        read_snapshot(directory()._store, CheckpointName.parse(name) or pytest.fail(name))
    directory().write(snapshot(3))
    assert directory().names() == ["step-0000000003"]


def test_reading_fails_at_every_call(flaky: type[FlakyFileSystem]) -> None:
    """A storage that can't be reached is no damage: nothing older is taken for the newest."""
    fresh()
    count = calls_of(directory().load)
    for number in range(1, count + 1):
        flaky.fails_at, flaky.calls = number, 0
        with pytest.raises(CheckpointError, match="the cable was pulled"):
            directory().load()
        heal()
    assert same(directory().load(), snapshot(1))


def test_preparing_fails_at_every_call(flaky: type[FlakyFileSystem]) -> None:
    fresh()
    count = calls_of(directory().prepare)
    for number in range(1, count + 1):
        flaky.fails_at, flaky.calls = number, 0
        with pytest.raises(CheckpointError, match=r"flaky://bucket/runs/1.*can be reached"):
            directory().prepare()
        heal()
        assert same(directory().load(), snapshot(1))


class BucketFileSystem(FlakyFileSystem):
    """Like an object store: buckets are made by mkdir only, and never by writing a file."""

    protocol = "bucket"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("bucket://"))

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        if "/" in path.strip("/") and not create_parents:
            raise FileNotFoundError("The specified bucket does not exist")
        pytest.fail(f"made the bucket {path}")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")


@pytest.mark.parametrize("url", ["bucket://nosuch", "bucket://nosuch/runs", "bucket://nosuch/a/b"])
def test_a_bucket_is_not_made(url: str) -> None:
    fsspec.register_implementation("bucket", BucketFileSystem, clobber=True)
    with pytest.raises(CheckpointError, match=r"bucket does not exist.*Is there such a bucket"):
        CheckpointDirectory(url).prepare()


@pytest.mark.parametrize(
    ("url", "reason"),
    [("nosuch://bucket/x", "nosuch"), ("nosuch://me:secret@host/x", "nosuch://…@host/x")],
)
def test_a_scheme_that_nobody_has(url: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as caught:
        CheckpointDirectory(url).prepare()
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(CheckpointDirectory(url))
