"""A worker that the kernel kills for lack of memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LIMIT = 1_500_000_000
"""Of driver, fork server and two workers together."""


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with little memory: its file of processes."""
    for parent, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", parent, f"farandole-{tmp_path.name}")
        try:
            group.mkdir()
            (group / limit).write_text(str(LIMIT))
        except OSError:
            continue
        yield group / "cgroup.procs"
        group.rmdir()
        return
    pytest.skip("to make a control group takes rights that this process doesn't have")


def train(folder: Path, group: Path | None) -> dict[str, torch.Tensor]:
    (folder / "ledger").mkdir(parents=True)
    if group is not None:
        (folder / "fault").write_text("grow")
    enter = "true" if group is None else f"echo $$ > {group}"
    command = f'{enter} && exec "{sys.executable}" -m tests.faults.driver_script "{folder}"'
    subprocess.run(["sh", "-c", command], check=True, timeout=170, cwd=ROOT)
    return load_file(folder / "weights.safetensors")


@pytest.mark.laboratory
@pytest.mark.fault("the kernel kills a worker for lack of memory", "said so; to the last bit")
def test_the_kernels_killer_is_named_and_training_goes_on(
    tmp_path: Path, memory_group: Path
) -> None:
    disturbed = train(tmp_path / "disturbed", memory_group)
    reason = (tmp_path / "disturbed" / "restarted").read_text()
    assert "the kernel killed its process for lack of memory" in reason
    undisturbed = train(tmp_path / "undisturbed", None)
    assert all(torch.equal(disturbed[name], undisturbed[name]) for name in undisturbed)
