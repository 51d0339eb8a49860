from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.engines import fork_client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")


def a_file_of_the_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(fork_client, "__file__", str(folder / "engines" / "x.py"))
    (folder / "new.py").write_text("changed = True")


@pytest.mark.parametrize(
    "change",
    [
        lambda patch, _: patch.setenv("PYTHONOPTIMIZE", "1"),
        lambda patch, _: patch.setenv("TORCH_LOGS", "+dynamo"),
        lambda patch, _: patch.setenv("CUDA_VISIBLE_DEVICES", "1"),
        lambda patch, _: patch.setattr(sys, "executable", "/another/python"),
        lambda patch, _: patch.setattr(os, "sched_getaffinity", lambda _: {63}),
        lambda patch, folder: patch.setattr(sys, "path", [*sys.path, str(folder)]),
        a_file_of_the_package,
    ],
)
def test_what_a_process_reads_once_asks_for_another_server(
    change: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = fork_client._settings()
    change(monkeypatch, tmp_path)
    assert fork_client._settings() != before


def test_the_umask_asks_for_another_server() -> None:
    before = fork_client._settings()
    old = os.umask(0o123)
    try:
        assert fork_client._settings() != before
    finally:
        os.umask(old)
    assert fork_client._settings() == before


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TMPDIR", "MY_OWN"])
def test_what_a_worker_takes_over_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fork_client._settings()
    monkeypatch.setenv(name, "7")
    assert fork_client._settings() == before


def test_the_users_folders_are_not_on_the_servers_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, here = tmp_path / "script", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    main = sys.modules["__main__"]  # a lane of tests has no file
    monkeypatch.setattr(main, "__file__", str(script / "main.py"), raising=False)
    monkeypatch.setattr(sys, "path", ["", str(script), str(here), *sys.path])
    path = fork_client._library_path()
    assert not {"", str(script), str(here)} & set(path)
    library = str(Path(fork_client.__file__).parent.parent.parent)
    monkeypatch.setattr(sys, "path", [library])
    monkeypatch.chdir(library)  # somebody runs the library from its own folder
    assert fork_client._library_path() == [library]


def test_the_current_folder_may_be_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    monkeypatch.setattr(sys, "path", ["", "/a/library"])
    assert fork_client._library_path() == ["/a/library"]


def test_other_systems_have_fresh_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fork_client.ready_server() is None


def test_a_server_that_can_not_be_started_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda *_: pair)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        fork_client.ForkServer(None)
    assert [one.fileno() for one in pair] == [-1, -1]


def test_a_worker_that_nobody_waits_for_has_ended() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()  # the server was killed
    with ours, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as zombie:
        assert zombie.stdin is not None
        worker = fork_client.ForkedProcess(zombie.pid, zombie.stdin, ours)
        assert worker.poll() is None
        zombie.stdin.close()
        assert worker.wait(60) == 255
