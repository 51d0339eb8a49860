"""What a directory of checkpoints does, in each kind of place: a folder, and those of fsspec."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import LocalFileSystem
from safetensors.torch import load_file
from tests.checkpoint.snapshots import same, snapshot, write
from tests.checkpoint.test_manifest import signed

from farandole.checkpoint import CheckpointDirectory, Snapshot, local_store
from farandole.checkpoint.folder import SnapshotFiles
from farandole.checkpoint.local_store import LocalStore
from farandole.checkpoint.names import CheckpointName
from farandole.errors import CheckpointError, InputError, MissingPackage


class ArrowFiles(ArrowFSWrapper):
    """A folder as pyarrow sees it: the way that fsspec goes for HDFS."""

    protocol = "arrow"

    def __init__(self, **options: object) -> None:
        super().__init__(LocalFileSystem(), **options)


@pytest.fixture(params=["path", "file", "local", "arrow", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder as path and URL (ours), and through fsspec; and fsspec's own memory."""
    fsspec.register_implementation("arrow", ArrowFiles, clobber=True)
    folder = tmp_path / "some" / "folder"
    if request.param == "memory":
        yield f"memory:/{folder}"
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
    else:
        yield str(folder) if request.param == "path" else f"{request.param}://{folder}"


def test_a_snapshot_comes_back_bit_for_bit(url: str) -> None:
    directory = CheckpointDirectory(url)
    assert directory.load() is None
    assert directory.best() is None
    assert directory.names() == []
    directory.prepare()
    assert directory.load() is None
    assert directory.write(snapshot(7)) == "step-0000000007"
    assert same(directory.load(), snapshot(7))
    assert same(CheckpointDirectory(url).load(), snapshot(7))
    assert directory.names() == ["step-0000000007"]


def test_the_last_and_the_best_are_kept(url: str) -> None:
    directory = CheckpointDirectory(url, keep_last=2, keep_best=1)
    for update, score in enumerate([0.5, 0.2, 0.9, None, 0.3, float("nan")]):
        directory.write(snapshot(update), score=score)
    assert directory.names() == [f"step-000000000{update}" for update in (1, 4, 5)]
    assert same(directory.load(), snapshot(5))
    assert same(directory.best(), snapshot(1))


def test_the_best_may_be_the_highest(url: str) -> None:
    directory = CheckpointDirectory(url, keep_last=1, keep_best=2, higher_is_better=True)
    for update, score in enumerate([0.5, 0.9, 0.2, 0.7, 0.1]):
        directory.write(snapshot(update), score=score)
    assert directory.names() == [f"step-000000000{update}" for update in (1, 3, 4)]
    assert same(directory.best(), snapshot(1))


def test_the_same_update_again(url: str) -> None:
    directory = CheckpointDirectory(url, keep_last=2)
    write(directory, 3, 7)
    other = Snapshot(7, {"attempt": 2}, {})
    assert directory.write(other) == "step-0000000007-2"
    assert same(directory.load(), other)
    assert directory.names() == ["step-0000000003", "step-0000000007-2"]
    write(directory, 8)
    assert directory.names() == ["step-0000000007-2", "step-0000000008"]


def test_foreign_files_stay(url: str) -> None:
    directory = CheckpointDirectory(url, keep_last=1)
    directory.prepare()
    store = directory._store
    store.replace("notes.txt", "mine")
    store.replace("step-00000000099", "a file with almost such a name")
    write(directory, 1, 2)
    directory.prepare()
    assert directory.names() == ["step-0000000002"]
    if isinstance(store, LocalStore):
        assert sorted(os.listdir(directory.url)) == [
            "latest",
            "notes.txt",
            "step-0000000002",
            "step-00000000099",
        ]


def test_a_folder_without_manifest_does_not_count(url: str) -> None:
    directory = CheckpointDirectory(url)
    write(directory, 1)
    files = list(SnapshotFiles(snapshot(2), None).files())[:2]
    directory._store.write(CheckpointName(2), iter(files), 0)
    assert directory.names() == ["step-0000000001"]
    with pytest.warns(UserWarning, match=r"step-0000000002 .*manifest\.json is missing"):
        assert same(directory.load(), snapshot(1))
    assert directory.best() is None


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    write(directory, 7)
    folder = tmp_path / "step-0000000007"
    assert (tmp_path / "latest").read_text() == "step-0000000007\n"
    assert sorted(os.listdir(folder)) == ["manifest.json", "state.json", "state.safetensors"]
    assert torch.equal(
        load_file(folder / "state.safetensors")["network.weight"],
        snapshot(7).tensors["network.weight"],
    )
    assert pickle.loads(pickle.dumps(directory)).names() == directory.names()


@pytest.mark.parametrize("content", [None, "step-0000000001", "step-0000000099", "../..", "\0"])
def test_latest_is_for_people(tmp_path: Path, content: str | None) -> None:
    directory = CheckpointDirectory(tmp_path)
    write(directory, 1, 2)
    (tmp_path / "latest").unlink()
    if content is not None:
        (tmp_path / "latest").write_text(content)
    assert same(directory.load(), snapshot(2))


def test_clocks_do_not_matter(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    write(directory, 1, 2)
    os.utime(tmp_path / "step-0000000001", (4e9, 4e9))
    os.utime(tmp_path / "step-0000000002", (0, 0))
    assert same(directory.load(), snapshot(2))
    write(directory, 3)
    assert directory.names() == ["step-0000000002", "step-0000000003"]


@pytest.fixture
def two(tmp_path: Path) -> CheckpointDirectory:
    directory = CheckpointDirectory(tmp_path / "kept", keep_last=2)
    write(directory, 1, 2)
    return directory


def test_all_are_damaged(two: CheckpointDirectory) -> None:
    for name in two.names():
        (Path(two.url) / name / "state.json").write_bytes(b"{}")
    with pytest.warns(UserWarning, match="state.json has 2 bytes instead of") as caught:
        assert two.load() is None
    assert "step-0000000002" in str(caught[0].message)
    assert "step-0000000001" in str(caught[1].message)


def test_the_best_is_damaged(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep_best=2)
    for update, score in enumerate([0.5, 0.1, 0.2]):
        directory.write(snapshot(update), score=score)
    (tmp_path / "step-0000000001" / "state.json").unlink()
    with pytest.warns(UserWarning, match="step-0000000001"):
        assert same(directory.best(), snapshot(2))


def test_going_on_from_before_a_damaged_one(two: CheckpointDirectory) -> None:
    """The damaged one has the larger number: the new one is kept and found all the same."""
    write(two, 9)
    path = Path(two.url) / "step-0000000009" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    once = CheckpointDirectory(two.url, keep_last=1)
    write(once, 5)
    with pytest.warns(UserWarning, match="step-0000000009"):
        assert same(once.load(), snapshot(5))
    write(once, 9)
    assert once.names() == ["step-0000000009-2"]
    assert same(once.load(), snapshot(9))


def test_another_version_is_neither_used_nor_deleted(two: CheckpointDirectory) -> None:
    path = Path(two.url) / "step-0000000002" / "manifest.json"
    path.write_bytes(signed(format=2, update=2))
    with pytest.raises(CheckpointError, match="format 2"):
        two.load()
    write(two, 3, 4, 5)
    assert two.names() == ["step-0000000002", "step-0000000004", "step-0000000005"]


@pytest.mark.parametrize("moment", ["open", "_open_regular"])
def test_deleted_while_it_is_read(
    two: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A newer one is written, and ours deleted, before its folder or a file in it is opened."""
    once = CheckpointDirectory(two.url, keep_last=1)
    owner: Any = LocalStore if moment == "open" else local_store
    real, turns = getattr(owner, moment), []

    def late(*given: Any) -> Any:
        if not turns:
            turns.append(given)
            write(once, 3)
        return real(*given)

    monkeypatch.setattr(owner, moment, late)
    assert same(two.load(), snapshot(3))
    assert turns


def test_a_thousand_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for update in range(1000):
        folder = tmp_path / f"step-{update:010d}"
        folder.mkdir()
        for name, chunks in SnapshotFiles(Snapshot(update, {}, {}), update / 7).files():
            (folder / name).write_bytes(b"".join(chunks))
    opened = []
    real = LocalStore.open

    def counted(store: LocalStore, folder: str, file: str) -> Any:
        opened.append(folder)
        return real(store, folder, file)

    monkeypatch.setattr(LocalStore, "open", counted)
    directory = CheckpointDirectory(tmp_path)
    found = directory.load()
    assert found is not None
    assert found.update == 999
    assert opened == ["step-0000000999"] * 3
    write(directory, 1000)
    assert directory.names() == ["step-0000000000", "step-0000000999", "step-0000001000"]
    assert len(os.listdir(tmp_path)) == 4


def test_nothing_is_unpickled(two: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", pytest.fail)
    seen = []
    watching = [True]
    sys.addaudithook(lambda event, _: watching and event == "pickle.find_class" and seen.append(1))
    assert same(two.load(), snapshot(2))
    watching.clear()
    assert seen == []


def test_a_bad_snapshot_leaves_nothing(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"document\['x'\]"):
        directory.write(Snapshot(1, {"x": object()}, {}))
    with pytest.raises(CheckpointError, match=r"tensors\['x'\]"):
        directory.write(Snapshot(1, {}, {"x": 3}))  # type: ignore[dict-item]
    with pytest.raises(InputError, match="update must be an integer"):
        directory.write(Snapshot(-1, {}, {}))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"url": ""}, "path or a URL"),
        ({"url": None}, "path or a URL. Received: None"),
        ({"keep_last": 0}, "keep_last must be a positive integer"),
        ({"keep_best": -1}, "keep_best"),
        ({"higher_is_better": 1}, "True or False"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        CheckpointDirectory(**{"url": tmp_path, **arguments})  # type: ignore[arg-type]


def test_constructing_touches_nothing(tmp_path: Path) -> None:
    CheckpointDirectory(tmp_path / "a")
    CheckpointDirectory("nosuch://bucket")
    assert os.listdir(tmp_path) == []


def test_fsspec_is_only_for_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    write(CheckpointDirectory(f"file://{tmp_path}"), 1)
    with pytest.raises(MissingPackage, match=r"farandole\[remote\]"):
        CheckpointDirectory("s3://bucket/x").prepare()


def test_no_warning_when_all_is_well(url: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        directory = CheckpointDirectory(url)
        directory.prepare()
        write(directory, 1, 2, 3, 4)
        directory.prepare()
        assert same(directory.load(), snapshot(4))


def test_who_sees_another_directory_is_told(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path / "mine")
    directory.prepare()
    directory.claim("a")
    directory.check_claimed("a")
    other_host = CheckpointDirectory(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="isn't the directory that the driver sees"):
        other_host.check_claimed("a")
    directory.claim("b")
    with pytest.raises(CheckpointError, match="Another run writes checkpoints"):
        directory.check_claimed("a")


def test_a_claim_through_a_url() -> None:
    directory = CheckpointDirectory("memory://claims")
    directory.prepare()
    directory.claim("a")
    directory.check_claimed("a")
