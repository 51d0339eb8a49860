"""One checkpoint, damaged in every way: it is named, and the one before it is used."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tests.checkpoint.snapshots import same, snapshot, write

from farandole.checkpoint import CheckpointDirectory


@pytest.fixture
def two(tmp_path: Path) -> CheckpointDirectory:
    directory = CheckpointDirectory(tmp_path / "kept", keep_last=2)
    write(directory, 1, 2)
    return directory


FILES = ["state.safetensors", "state.json", "manifest.json"]


def expect_the_one_before(directory: CheckpointDirectory, reason: str) -> None:
    with pytest.warns(UserWarning, match=f"step-0000000002 .*damaged.*{reason}") as caught:
        assert same(directory.load(), snapshot(1))
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit(two: CheckpointDirectory, file: str) -> None:
    path = Path(two.url) / "step-0000000002" / file
    whole = path.read_bytes()
    positions = {0, 7, 8, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 30)}
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << random.Random(position).randrange(8)
        path.write_bytes(flipped)
        expect_the_one_before(two, file)
    path.write_bytes(whole)
    assert same(two.load(), snapshot(2))


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_or_grown(two: CheckpointDirectory, file: str) -> None:
    path = Path(two.url) / "step-0000000002" / file
    whole = path.read_bytes()
    for length in (0, 1, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        expect_the_one_before(two, file)
    path.write_bytes(whole + b"\n")
    expect_the_one_before(two, file)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file(two: CheckpointDirectory, file: str) -> None:
    (Path(two.url) / "step-0000000002" / file).unlink()
    expect_the_one_before(two, f"{file} is missing")


def test_an_extra_file_does_no_harm(two: CheckpointDirectory) -> None:
    (Path(two.url) / "step-0000000002" / ".DS_Store").touch()
    assert same(two.load(), snapshot(2))
    write(two, 3, 4)
    assert two.names() == ["step-0000000003", "step-0000000004"]


@pytest.mark.parametrize("file", FILES)
def test_a_link_is_refused(two: CheckpointDirectory, file: str, tmp_path: Path) -> None:
    path = Path(two.url) / "step-0000000002" / file
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    expect_the_one_before(two, f"{file} is a symbolic link")


def test_a_linked_folder_is_refused_and_never_followed(
    two: CheckpointDirectory, tmp_path: Path
) -> None:
    path = Path(two.url) / "step-0000000002"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    expect_the_one_before(two, "is a symbolic link")
    write(two, 3, 4)
    assert two.names() == ["step-0000000003", "step-0000000004"]
    assert sorted(os.listdir(tmp_path / "elsewhere")) == sorted(FILES)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.timeout(20)
def test_a_pipe_does_not_hang(two: CheckpointDirectory, file: str) -> None:
    path = Path(two.url) / "step-0000000002" / file
    path.unlink()
    os.mkfifo(path)
    expect_the_one_before(two, f"{file} is no regular file")
    through = CheckpointDirectory(f"local://{two.url}")
    with pytest.warns(UserWarning, match="no regular file"):
        assert same(through.load(), snapshot(1))


def test_manifests_that_were_swapped(two: CheckpointDirectory) -> None:
    first, second = (Path(two.url) / f"step-000000000{n}" / "manifest.json" for n in (1, 2))
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    with pytest.warns(UserWarning, match="that of another checkpoint") as caught:
        assert two.load() is None
    assert len(caught) == 2


def test_a_copy_under_another_name(two: CheckpointDirectory) -> None:
    shutil.copytree(Path(two.url) / "step-0000000002", Path(two.url) / "step-0000000005")
    with pytest.warns(UserWarning, match="step-0000000005.*of update 2"):
        assert same(two.load(), snapshot(2))
