"""Disks that are full or can't be written, power that is cut, writers that come too late."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.snapshots import same, snapshot

from farandole.checkpoint import CheckpointDirectory, local_store
from farandole.checkpoint.names import CheckpointName
from farandole.errors import CheckpointError


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small disk in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode != 0:
        pytest.skip(f"mounting isn't allowed here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=4m") as folder:
        yield folder


MEGABYTE = 2**18  # float32 values


def test_a_disk_without_room_is_not_filled(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CheckpointDirectory(small_disk)
    directory.prepare()
    directory.write(snapshot(1, size=MEGABYTE))
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    monkeypatch.setattr(os, "write", lambda *given: pytest.fail("began to write"))
    with pytest.raises(CheckpointError) as caught:
        directory.write(snapshot(2, size=4 * MEGABYTE))
    text = str(caught.value)
    assert text.startswith(
        f"Can't write checkpoints in '{small_disk}': No space left on device (4,"
    )
    assert f" bytes are needed, {free:,} are free). Make room" in text
    assert sorted(os.listdir(small_disk)) == ["latest", "step-0000000001"]
    assert same(directory.load(), snapshot(1, size=MEGABYTE))


def test_a_disk_that_fills_up_meanwhile(small_disk: Path) -> None:
    """Others take the room after it was looked for: the kernel says no in the middle."""
    directory = CheckpointDirectory(small_disk)
    directory.write(snapshot(1))

    state = snapshot(2, size=2 * MEGABYTE)
    look = local_store.LocalStore._check_space

    def and_then_it_fills(store: local_store.LocalStore, size: int) -> None:
        look(store, size)
        (small_disk / "others").write_bytes(b"\0" * 3 * 2**20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_store.LocalStore, "_check_space", and_then_it_fills)
        with pytest.raises(CheckpointError, match=r"No space left .* are needed, [\d,]+ are free"):
            directory.write(state)
    assert sorted(os.listdir(small_disk)) == ["latest", "others", "step-0000000001"]
    assert same(directory.load(), snapshot(1))
    (small_disk / "others").unlink()
    directory.write(state)
    assert same(directory.load(), state)


def test_a_full_disk_is_found_by_preparing(small_disk: Path) -> None:
    directory = CheckpointDirectory(small_disk)
    with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    with pytest.raises(CheckpointError, match=r"No space .* \(4,096 bytes are needed, 0 are free"):
        directory.prepare()
    assert os.listdir(small_disk) == ["others"]


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as folder:
        for place in (folder, folder / "deeper" / "still"):
            directory = CheckpointDirectory(place)
            for work in (directory.prepare, lambda d=directory: d.write(snapshot(1))):
                with pytest.raises(
                    CheckpointError, match=r"Read-only file system\. Choose a folder"
                ):
                    work()


def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """As a user without rights: root may write everywhere."""
    tmp_path.chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o755)
    told = as_nobody(CheckpointDirectory(tmp_path / "theirs").prepare)
    assert "Permission denied. Let the user that runs the workers write there" in told
    assert repr(str(tmp_path / "theirs")) in told


def as_nobody(work: Callable[[], Any]) -> str:
    """What somebody who owns nothing gets to hear."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            work()
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as told:
        return told.read()


@pytest.mark.parametrize("deeper", ["", "a", "a/b"])
def test_a_file_is_in_the_way(tmp_path: Path, deeper: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="choose another folder"):
        CheckpointDirectory(tmp_path / "file" / deeper).prepare()


def test_a_folder_is_in_the_way_of_latest(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(CheckpointError, match="There is a folder where a file should be"):
        CheckpointDirectory(tmp_path).write(snapshot(1))
    assert same(CheckpointDirectory(tmp_path).load(), snapshot(1))


def test_latest_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "precious")
    CheckpointDirectory(tmp_path / "runs").write(snapshot(1))
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "runs" / "latest").read_text() == "step-0000000001\n"


def test_preparing_cuts_off_a_writer_of_before(tmp_path: Path) -> None:
    """Its unfinished checkpoint never appears, not even in part, and it is told why."""
    directory = CheckpointDirectory(tmp_path)
    directory.write(snapshot(1))

    def files() -> Iterator[tuple[str, list[memoryview]]]:
        yield "state.json", [memoryview(b"{}")]
        CheckpointDirectory(tmp_path).prepare()
        yield "state.safetensors", [memoryview(b"late")]

    with pytest.raises(CheckpointError, match="has another run taken it over"):
        directory._store.write(CheckpointName(2), files(), 0)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-0000000001"]


def test_leftovers_are_removed_and_what_looks_alike_is_not(tmp_path: Path) -> None:
    random = "0123456789abcdef"
    ours = [f".step-0000000001.tmp-{random}", f".step-0000000001-2.deleted-{random}"]
    ours += [f".{ours[0][1:]}.deleted-{random}"]
    others = [".step-1", ".git", f"step-0000000001.tmp-{random}", ".step-0000000001.tmp-mine"]
    for name in ours + others:
        (tmp_path / name / "inside").mkdir(parents=True)
    (tmp_path / f".latest.tmp-{random}").touch()
    (tmp_path / f".probe.tmp-{random}").touch()
    CheckpointDirectory(tmp_path).prepare()
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_everyone_may_read_what_the_umask_lets(tmp_path: Path) -> None:
    CheckpointDirectory(tmp_path).write(snapshot(1))
    mask = os.umask(0)
    os.umask(mask)
    folder = tmp_path / "step-0000000001"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o666 & ~mask}


def test_a_folder_that_cannot_be_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems refuse it, and need no such thing. A disk's error is an error."""
    real = os.fsync

    def refused(number: int, code: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(code, os.strerror(code))
        real(number)

    monkeypatch.setattr(os, "fsync", lambda number: refused(number, errno.EINVAL))
    CheckpointDirectory(tmp_path).write(snapshot(1))
    monkeypatch.setattr(os, "fsync", lambda number: refused(number, errno.EIO))
    with pytest.raises(CheckpointError, match="Input/output error"):
        CheckpointDirectory(tmp_path).write(snapshot(2))


class Disk:
    """What a disk has after a power cut: what was flushed, by the numbers of files and folders.

    Content that wasn't flushed is lost. Names that weren't may be there or not, so there are two
    ways in which a folder can look.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        for folder, _, files in os.walk(root):
            self.flushed(Path(folder))
            for file in files:
                self.flushed(Path(folder) / file)

    def flushed(self, path: Path) -> None:
        number = path.stat().st_ino
        if path.is_dir():
            self.names[number] = {one.name: one.lstat().st_ino for one in path.iterdir()}
        else:
            self.content[number] = path.read_bytes()

    def after_power_cut(self, target: Path, names_survive: bool) -> None:
        shutil.rmtree(target, ignore_errors=True)
        current = {}
        for folder, folders, files in os.walk(self.root):
            path = Path(folder)
            numbers = {name: (path / name).lstat().st_ino for name in [*folders, *files]}
            current[path.stat().st_ino] = numbers
        names = {**self.names, **current} if names_survive else self.names
        self._build(target, self.root.stat().st_ino, names, {*self.names, *current})

    def _build(
        self, target: Path, number: int, names: dict[int, dict[str, int]], folders: set[int]
    ) -> None:
        target.mkdir()
        for name, inner in names.get(number, {}).items():
            if inner in folders:
                self._build(target / name, inner, names, folders)
            else:
                (target / name).write_bytes(self.content.get(inner, b""))


def test_power_is_cut_after_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one or the new one is whole on the disk, at any time; after the end, the new one."""
    root, image = tmp_path / "root", tmp_path / "image"
    directory = CheckpointDirectory(root, keep_last=1)
    directory.write(snapshot(1))
    disk, found = Disk(root), []

    def look() -> None:
        for names_survive in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                for name, real in originals.items():
                    patch.setattr(os, name, real)
                disk.after_power_cut(image, names_survive)
                after = CheckpointDirectory(image).load()  # a damaged one would be an error
                assert after is not None
                assert same(after, snapshot(after.update))
                found.append(after.update)

    def watched(name: str, real: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            result = real(*given, **options)
            if name == "fsync":
                disk.flushed(Path(os.readlink(f"/proc/self/fd/{given[0]}")))
            look()
            return result

        return call

    calls = ("write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")
    originals = {name: getattr(os, name) for name in calls}
    for name, real in originals.items():
        monkeypatch.setattr(os, name, watched(name, real))
    directory.write(snapshot(2))
    monkeypatch.undo()
    assert len(found) > 30
    assert set(found) == {1, 2}
    assert found[-2:] == [2, 2]
