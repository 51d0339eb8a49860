from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from tests.engines import traces
from torch import nn

import farandole
from farandole.engines import RayEngine, Task, ray_gang, resolve
from farandole.engines.interrupt import Interrupts
from farandole.engines.ray_resources import WorkerResources
from farandole.errors import InputError, NotEnoughSlots, WorkerLost
from farandole.testing import engine_contract as contract
from farandole.tuning import Float
from farandole.world import World

pytestmark = pytest.mark.integration


def leftovers(ray: Any) -> tuple[list[str], float]:
    """Give the placement groups and the CPUs that are still taken in this cluster."""
    groups = ray.util.placement_group_table().values()
    taken = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
    return [group["state"] for group in groups if group["state"] != "REMOVED"], taken


@pytest.fixture(autouse=True)
def _nothing_is_left(ray_cluster: Any) -> Iterator[None]:
    yield
    clean = traces.eventually(lambda: leftovers(ray_cluster) == ([], 0.0))
    assert clean, leftovers(ray_cluster)


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract(check: Callable[..., None], ray_cluster: Any) -> None:
    own = "listening", "workers", "files"
    before = {name: traces.traces()[name] for name in own}
    check(RayEngine(), 2)
    assert traces.eventually(lambda: {name: traces.traces()[name] for name in own} == before)


def test_too_few_places_are_counted(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_gang, "NOTICE_SECONDS", 0.1)
    with pytest.raises(
        NotEnoughSlots, match=r"9 workers .* 1 CPU, but .*: the cluster has places"
    ) as caught:
        farandole.run(os.getpid, num_workers=9, engine=RayEngine(start_timeout=1))
    assert (caught.value.wanted, caught.value.slots) == (9, 3)
    assert capsys.readouterr().err.count("still waiting for 9 places on Ray, each with 1 CPU") == 1


def test_a_core_for_a_data_set_is_waited_for_where_the_cluster_can_grow(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_gang, "_FREE_SECONDS", 0.1)
    others = ray_cluster.util.placement_group([{"CPU": 3}])
    assert others.wait(30)
    end = threading.Timer(2, ray_cluster.util.remove_placement_group, [others])
    end.start()
    ray_gang.check_free_core(ray_cluster, 3, WorkerResources(), Interrupts(), 60)
    assert end.finished.is_set()
    end.join()


def describe() -> tuple[int, int]:
    return farandole.current_world().rank, torch.get_num_threads()


def test_a_run_takes_all_places_and_a_worker_has_the_threads_of_its_cores(ray_cluster: Any) -> None:
    assert resolve("ray").name == "ray"
    assert farandole.run(describe, engine="ray") == [(0, 1), (1, 1), (2, 1)]
    assert farandole.run(describe, num_workers=1, cpus_per_worker=2, engine="ray") == [(0, 2)]


def killed_or_waiting() -> None:
    if farandole.current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_actor_is_named_with_its_process_and_node(ray_cluster: Any) -> None:
    with pytest.raises(WorkerLost, match=r"rank 1 .* \(pid \d+ on node [\d.]+\) .*killed"):
        farandole.run(killed_or_waiting, num_workers=2, engine="ray")


class DiesOnce(nn.Linear):
    """Kills its process at the 12th pass, unless that has been done before."""

    def __init__(self, mark: str) -> None:
        super().__init__(4, 1)
        self.mark, self.passes = mark, 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.passes == 12 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(rows)


def test_training_goes_on_from_its_checkpoint(ray_cluster: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(128, 4)).astype(np.float32)
    table = pa.table({"features": list(rows), "label": rows.sum(1)})

    def trained(mark: Path, **options: Any) -> torch.Tensor:
        torch.manual_seed(0)
        result = farandole.train(
            DiesOnce(str(mark)),
            table,
            loss="mse",
            epochs=3,
            batch_size=16,
            progress=False,
            allow_pickle=True,
            **options,
        )
        return torch.cat([p.detach().flatten() for p in result.network.parameters()])

    calm = tmp_path / "calm"
    calm.touch()
    seen: list[Any] = []
    again = trained(
        tmp_path / "died",
        num_workers=2,
        engine="ray",
        checkpoint_dir=tmp_path / "saved",
        checkpoint_steps=5,
        observer=seen.append,
    )
    assert any(type(event).__name__ == "WorkersRestarted" for event in seen)
    torch.testing.assert_close(again, trained(calm, engine="local"), atol=1e-6, rtol=0)


def tell_and_wait(world: World, state: object) -> str:
    world.link.tell("up")
    while not world.link.stop_requested():
        time.sleep(0.01)
    return "in order"


@pytest.mark.parametrize("stoppable", [True, False])
def test_ctrl_c(stoppable: bool, ray_cluster: Any) -> None:
    up: set[int] = set()

    def interrupt_when_up(rank: int, message: object) -> None:
        up.add(rank)
        if len(up) == 2:
            up.clear()
            os.kill(os.getpid(), signal.SIGINT)

    task = Task(load=lambda *_: None, work=tell_and_wait, stoppable=stoppable)
    options: Any = {"timeout": 60, "on_message": interrupt_when_up}
    if stoppable:
        assert RayEngine().run(task, 2, **options) == ["in order", "in order"]
    else:
        with pytest.raises(KeyboardInterrupt):
            RayEngine().run(task, 2, **options)


def test_a_cancelled_task_takes_its_workers_along(ray_cluster: Any, tmp_path: Path) -> None:
    mark = tmp_path / "running"

    def sleep() -> None:
        mark.touch()
        time.sleep(300)

    @ray_cluster.remote(num_cpus=0, max_retries=0)
    def job() -> None:
        farandole.run(sleep, num_workers=2, engine="ray")

    call = job.remote()
    assert traces.eventually(mark.exists)
    ray_cluster.cancel(call)
    with pytest.raises(
        (ray_cluster.exceptions.TaskCancelledError, ray_cluster.exceptions.RayTaskError)
    ):
        ray_cluster.get(call, timeout=60)


def test_many_trials_and_a_study(ray_cluster: Any) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0]})
    trials = farandole.run_many(
        lambda data, by: data["x"].to_numpy().sum() * by,
        [{"by": 2}, {"by": 3}],
        data=table,
        num_workers=2,
        engine="ray",
        progress=False,
    )
    assert trials.values == [12.0, 18.0]
    study = farandole.tune(
        lambda x: (x - 2) ** 2,
        {"x": Float(-9, 9)},
        trials=6,
        parallelism=2,
        engine="ray",
        progress=False,
    )
    assert study.counts["complete"] == 6


STRATEGIES = ["ring", "parameter-server", "local-sgd", "pipeline", "sharded"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_give_what_they_give_on_local_processes(strategy: str, ray_cluster: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    table = pa.table({"features": list(rows), "label": rows.sum(1)})

    def trained(engine: str) -> torch.Tensor:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        options: Any = {"loss": "mse", "epochs": 2, "batch_size": 16, "progress": False}
        result = farandole.train(
            network, table, num_workers=2, engine=engine, strategy=strategy, **options
        )
        return torch.cat([each.detach().flatten() for each in result.network.parameters()])

    torch.testing.assert_close(trained("ray"), trained("local"), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "CLOSE"},
        {"resources": {"CPU": 1}},
        {"resources": {"a": 0}},
        {"resources": {"a": True}},
    ],
)
def test_options_that_can_t_be(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        RayEngine(**options)


def test_ray_client_is_refused(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "is_initialized", lambda: False)
    with pytest.raises(InputError, match="workers can't reach this process"):
        farandole.run(os.getpid, num_workers=1, engine=RayEngine("ray://host:10001"))


def test_another_address_than_the_one_in_use_is_refused(ray_cluster: Any) -> None:
    with pytest.raises(InputError, match=r"connected to Ray at .*ray\.shutdown"):
        farandole.run(os.getpid, num_workers=1, engine=RayEngine("10.0.0.1:6379"))
