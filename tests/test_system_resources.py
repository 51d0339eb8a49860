from __future__ import annotations

import os
from pathlib import Path

import pytest

from farandole.system_resources import available_memory, usable_cores


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemFree: 100 kB\nMemAvailable: 5000 kB\n")
    (tmp_path / "own").write_text("0::/job/task\n")
    (tmp_path / "job" / "task").mkdir(parents=True)
    return tmp_path


def free(machine: Path) -> float:
    return available_memory(machine / "meminfo", machine, machine / "own")


def test_the_cache_of_files_is_available(machine: Path) -> None:
    assert free(machine) == 5000 * 1024


def test_the_limit_of_a_container_counts(machine: Path) -> None:
    (machine / "job" / "task" / "memory.max").write_text("max\n")
    (machine / "job" / "memory.max").write_text("1000000\n")
    (machine / "job" / "memory.current").write_text("900000\n")
    (machine / "job" / "memory.stat").write_text("anon 1\ninactive_file 300000\n")
    assert free(machine) == 400_000


def test_cores_that_this_process_may_not_run_on_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cores() == 2


@pytest.mark.parametrize(("count", "cores"), [(64, 64), (None, 1)])
def test_where_there_is_no_affinity_the_machine_counts(
    count: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores() == cores
