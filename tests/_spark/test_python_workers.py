from __future__ import annotations

import pytest

from farandole import devices
from farandole._spark import python_workers
from farandole.errors import LaunchError


def test_the_way_out() -> None:
    assert python_workers._outgoing_address("127.0.0.1") == "127.0.0.1"
    assert python_workers._outgoing_address("no-such-host.invalid") == "127.0.0.1"


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark granted GPU 5 to the task that runs here."""
    monkeypatch.setattr(python_workers, "granted_gpus", lambda context: ("5",))


def test_a_task_computes_on_the_gpu_that_spark_granted(
    granted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    assert python_workers.task_device("auto") == "cuda:5"
    assert python_workers.task_device("cpu") == "cpu"


def test_a_granted_gpu_that_torch_cannot_see_is_missed_aloud(
    granted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 0)
    with pytest.raises(LaunchError, match=r'Spark granted GPU 5, but .* or set device="cpu"'):
        python_workers.task_device("auto")
    assert python_workers.task_device("cpu") == "cpu"


def test_a_task_without_a_grant_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    assert python_workers.task_device("auto") == "cpu"
    assert python_workers.task_device("cuda") == "cuda:0"
