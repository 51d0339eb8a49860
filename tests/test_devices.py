"""Which device a worker gets; how many GPUs torch sees is told here, since there are none."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
import torch

import farandole
from farandole import devices
from farandole.devices import check_own_device, choose_device, idle_gpus
from farandole.errors import InputError, LaunchError


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let torch see so many GPUs."""

    def seen(count: int) -> None:
        monkeypatch.setattr(devices, "visible_gpus", lambda: count)

    return seen


@pytest.mark.parametrize(
    ("gpus", "local_rank", "local_size", "device"),
    [(0, 0, 1, "cpu"), (2, 1, 2, "cuda:1"), (1, 0, 2, "cpu"), (4, 0, 2, "cuda:0")],
)
def test_a_gpu_for_each_or_the_cpu_for_all(
    see: Callable[[int], None], gpus: int, local_rank: int, local_size: int, device: str
) -> None:
    see(gpus)
    assert choose_device("auto", (), local_rank, local_size) == device


@pytest.mark.parametrize("asked", ["auto", "cuda"])
@pytest.mark.parametrize(("address", "local_rank"), [("5", 0), ("7", 1)])
def test_the_gpu_that_was_granted(
    see: Callable[[int], None], asked: str, address: str, local_rank: int
) -> None:
    see(8)
    assert choose_device(asked, [address], local_rank, 2) == f"cuda:{address}"


def test_nothing_is_granted_to_who_wants_the_cpu(see: Callable[[int], None]) -> None:
    see(8)
    assert choose_device("cpu", ["5"]) == "cpu"


def test_one_device_by_its_number(see: Callable[[int], None]) -> None:
    see(4)
    assert choose_device("cuda:3") == "cuda:3"
    assert choose_device("cuda:3", ["3"]) == "cuda:3"


@pytest.mark.parametrize(
    ("gpus", "asked", "granted", "local_size", "words"),
    [
        (0, "auto", ["5"], 1, r"Spark granted GPU 5, but torch.cuda.is_available\(\) is False on"),
        (2, "cuda", ["5"], 1, "Spark granted GPU 5, but torch sees 2 GPUs on .*numbered from 0"),
        (2, "auto", ["GPU-1f"], 1, "Spark granted GPU GPU-1f, but .*discovery script"),
        (8, "cuda:1", ["5"], 1, "device='cuda:1', but Spark granted GPU 5"),
        (0, "cuda", [], 1, r"device='cuda', but torch.cuda.is_available\(\) is False"),
        (2, "cuda", [], 3, "3 workers are on .*torch sees 2 GPUs"),
        (2, "cuda:2", [], 1, "torch sees 2 GPUs"),
        (2, "cuda:1", [], 2, "2 workers are on .*the device is one"),
    ],
)
def test_what_cannot_be_had(
    see: Callable[[int], None],
    gpus: int,
    asked: str,
    granted: list[str],
    local_size: int,
    words: str,
) -> None:
    see(gpus)
    with pytest.raises(LaunchError, match=words) as caught:
        choose_device(asked, granted, 0, local_size)
    assert 'device="cpu"' in str(caught.value) or 'device="cuda"' in str(caught.value)


def test_gpus_that_are_left_alone_are_told(see: Callable[[int], None]) -> None:
    see(1)
    assert "has 1 GPUs, too few" in (idle_gpus("auto", "cpu") or "")
    assert idle_gpus("cpu", "cpu") is None
    see(0)
    assert idle_gpus("auto", "cpu") is None


def test_neighbours_need_different_gpus() -> None:
    check_own_device({0: "cuda:0", 1: "cuda:1", 2: "cpu", 3: "cpu"})
    with pytest.raises(LaunchError, match=r"Ranks 1 and 3 .* both given cuda:5"):
        check_own_device({1: "cuda:5", 2: "cuda:0", 3: "cuda:5"})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gpu_that_is_not_there_is_an_error_before_rows_are_read(workers: int) -> None:
    """On every engine without Spark: silence, and training on the CPU, was the answer."""
    table = pa.table({"x": [0.0, 1.0], "label": [1.0, 3.0]})
    with pytest.raises(LaunchError, match=r"device='cuda', but torch.cuda.is_available"):
        farandole.train(
            torch.nn.Linear(1, 1), table, loss="mse", device="cuda", num_workers=workers
        )


def test_a_device_of_another_name_is_refused() -> None:
    with pytest.raises(InputError, match='device must be "auto", "cpu", "cuda" or "cuda:N"'):
        farandole.run(int, num_workers=1, engine="local", device="gpu")
    with pytest.raises(InputError, match="cpus_per_worker must be a positive integer"):
        farandole.run(int, num_workers=1, engine="local", cpus_per_worker=0)


def test_cores_of_a_worker_are_its_threads() -> None:
    threads = farandole.run(torch.get_num_threads, num_workers=2, engine="local", cpus_per_worker=2)
    assert threads == [2, 2]
