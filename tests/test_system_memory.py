from __future__ import annotations

from pathlib import Path

import pytest

from farandole.system_memory import available_memory


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
