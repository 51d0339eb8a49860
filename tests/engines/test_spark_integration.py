from __future__ import annotations

import base64
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from tests.engines import traces

import farandole
from farandole.engines import SparkEngine, Task, resolve
from farandole.engines import spark as spark_engine
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.encryption import Credentials
from farandole.engines.failure import Failure
from farandole.errors import InputError, LaunchError, NotEnoughSlots, WorkerFailed, WorkerLost
from farandole.testing import engine_contract as contract
from farandole.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True, scope="module")
def _workers_that_have_started(spark: SparkSession) -> None:
    """Start Spark's Python workers: some tests time what comes after, whichever is the first."""
    farandole.run(os.getpid, num_workers=2, engine="spark")


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract(spark: SparkSession, check: Callable[..., None]) -> None:
    before = traces.traces()
    check(SparkEngine(spark), 2)
    assert traces.eventually(lambda: traces.traces() == before), (before, traces.traces())


@pytest.mark.fault("too few slots", "NotEnoughSlots, at once")
def test_more_workers_than_slots_is_said_at_once(spark: SparkSession) -> None:
    start = time.monotonic()
    with pytest.raises(NotEnoughSlots, match="5 workers were asked for, but only 2") as caught:
        farandole.run(os.getpid, num_workers=5)
    assert time.monotonic() - start < 30
    assert (caught.value.wanted, caught.value.slots) == (5, 2)


def speak(word: str) -> tuple[int, float, set[str]]:
    world = farandole.current_world()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(word)
    return world.rank, total.item(), traces.hosts(traces.listening())


def test_a_run_takes_the_active_session(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resolve(None).name == "spark"
    results = farandole.run(speak, (), {"word": "hello"}, num_workers=2)
    assert [result[:2] for result in results] == [(0, 2.0), (1, 2.0)]
    assert results[0][2] == {"127.0.0.1"}
    assert results[1][2] <= {"127.0.0.1"}
    shown = capfd.readouterr().out
    assert "[rank 0] hello\n" in shown
    assert "[rank 1] hello\n" in shown


def test_workers_are_reused_and_keep_nothing(spark: SparkSession) -> None:
    def count() -> tuple[int, int, int]:
        import psutil

        process = psutil.Process()
        return process.pid, process.num_fds(), process.num_threads()

    first = farandole.run(count, num_workers=2)
    for _ in range(5):
        last = farandole.run(count, num_workers=2)
    assert {pid for pid, *_ in first} == {pid for pid, *_ in last}
    # A process that is rank 0 for the first time keeps two files from then on; a leak keeps more
    # of them every time.
    grown = np.array(last)[:, 1:] - np.array(first)[:, 1:]
    assert (grown < 4).all(), grown


def end_by_sigterm(world: World, state: object) -> tuple[int, bool]:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    return os.getpid(), world.link.preempted()


def test_a_worker_sees_sigterm_and_its_process_is_used_again(spark: SparkSession) -> None:
    task = Task(load=lambda *_: None, work=end_by_sigterm, stoppable=True)
    results = SparkEngine(spark).run(task, 2, timeout=60, on_message=contract.Heard())
    assert [seen for _, seen in results] == [False, True]
    after = farandole.run(lambda: (os.getpid(), signal.getsignal(signal.SIGTERM)), num_workers=2)
    assert {pid for pid, _ in after} == {pid for pid, _ in results}
    assert {handler for _, handler in after} == {signal.SIG_DFL}


@pytest.fixture
def _unreachable_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(
        engine: SparkEngine, handler: Callable[[int, object], None], encrypt: bool, task: object
    ) -> DriverEndpoint:
        endpoint = DriverEndpoint("127.0.0.1", handler)
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint.address = replace(endpoint.address, port=server.getsockname()[1])
        return endpoint

    monkeypatch.setattr(SparkEngine, "_endpoint", unreachable)


@pytest.mark.usefixtures("_unreachable_driver")
def test_a_driver_out_of_reach_costs_the_output_only(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    results = farandole.run(speak, ("unheard",), num_workers=2)
    assert [result[:2] for result in results] == [(0, 2.0), (1, 2.0)]
    assert "unheard" not in capfd.readouterr().out


@pytest.mark.usefixtures("_unreachable_driver")
def test_a_driver_out_of_reach_gets_the_history_all_the_same(spark: SparkSession) -> None:
    events: list[object] = []
    rows = pd.DataFrame({"x": [float(i) for i in range(64)], "label": [i / 64 for i in range(64)]})
    options = {"loss": "mse", "epochs": 3, "batch_size": 64, "learning_rate": 0.01}
    network = torch.nn.Linear(1, 1)
    result = farandole.train(
        network,
        spark.createDataFrame(rows),
        num_workers=2,
        progress=False,
        observer=events.append,
        **options,
    )
    alone = farandole.train(network, rows, engine="local", progress=False, **options)
    assert events == []
    assert list(result.history["epoch"]) == [1, 2, 3]
    assert len(result.steps) == 3
    np.testing.assert_allclose(result.history["train_loss"], alone.history["train_loss"], rtol=1e-4)


def missing() -> None:
    if farandole.current_world().rank == 1:
        raise KeyError("missing")
    dist.barrier()


@pytest.mark.usefixtures("_unreachable_driver")
def test_a_driver_out_of_reach_gets_the_error_all_the_same(spark: SparkSession) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 failed: KeyError: 'missing'") as caught:
        farandole.run(missing, num_workers=2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__cause__.args == ("missing",)
    assert "in missing" in caught.value.traceback


@pytest.mark.usefixtures("_unreachable_driver")
def test_a_driver_out_of_reach_gets_large_results_through_spark(spark: SparkSession) -> None:
    (result,) = farandole.run(lambda: np.arange(400_000), num_workers=1)  # 3.2 MB
    assert np.array_equal(result, np.arange(400_000))


@pytest.mark.usefixtures("_unreachable_driver")
def test_a_task_too_large_for_sparks_query_is_refused_if_the_driver_is_out_of_reach(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farandole.engines.spark._MOST_IN_QUERY", 1000)
    with pytest.raises(LaunchError, match=r"can't reach the driver at 127\.0\.0\.1:\d+.*too large"):
        farandole.run(len, (np.zeros(1000),), num_workers=2)


def test_what_is_large_goes_over_the_link_and_not_through_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    assembled = spark_engine._assembled

    def measured(table: pa.Table, *rest: Any) -> Any:
        sizes.append(table.nbytes)
        return assembled(table, *rest)

    monkeypatch.setattr(spark_engine, "_assembled", measured)
    monkeypatch.setattr(spark_engine, "_MOST_IN_QUERY", 1000)
    weights = np.arange(4_000_000)  # 32 MB, and back again
    results = farandole.run(lambda x: x * 2, (weights,), num_workers=2)
    assert all(np.array_equal(result, weights * 2) for result in results)
    assert sizes[0] < 1000


def test_what_spark_shows_of_an_error_is_for_people(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest has come over the link: Spark's logs and pages need no kilobytes of it."""
    texts: list[str] = []

    def found_in(text: str, secret: bytes) -> None:
        texts.append(text)

    monkeypatch.setattr(Failure, "from_text", found_in)
    with pytest.raises(WorkerFailed, match="rank 1 failed: KeyError: 'missing'"):
        farandole.run(missing, num_workers=2)
    assert "rank 1: KeyError: 'missing'" in texts[0]
    assert "<farandole:" not in texts[0]


class Canary:
    """Leaves a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.attack("a pickle in a column, quoted by Spark's error", "a text, and never loaded")
def test_a_value_of_the_data_in_sparks_error_is_a_text(spark: SparkSession, tmp_path: Path) -> None:
    pickled = base64.b64encode(pickle.dumps(Canary(tmp_path / "canary"))).decode()
    for hostile in (f"<farandole:{pickled}>", f"<farandole:{pickled}:{'0' * 64}>"):
        rows = [(float(number), hostile if number == 7 else "1") for number in range(16)]
        frame = spark.createDataFrame(rows, "x double, text string")
        labelled = frame.selectExpr("x", "cast(text AS int) AS label")
        with pytest.raises(Exception, match="CAST_INVALID_INPUT") as caught:
            farandole.train(
                torch.nn.Linear(1, 1), labelled, loss="mse", num_workers=2, progress=False
            )
        assert hostile in str(caught.value)
    assert not (tmp_path / "canary").exists()


def killed_or_waiting() -> None:
    if farandole.current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_worker_is_named_and_not_the_peer_that_lost_it(spark: SparkSession) -> None:
    with pytest.raises(WorkerLost, match=r"rank 1 was lost: its process .*killed") as caught:
        farandole.run(killed_or_waiting, num_workers=2)
    assert caught.value.rank == 1
    assert "org.apache.spark" not in str(caught.value)


def meet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import BarrierTaskContext

    from farandole.engines.spark_task import GatheredRendezvous

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    list(batches)
    with GatheredRendezvous(context.allGather, rank, "127.0.0.1", 30) as rendezvous:
        store = rendezvous.open_store(Credentials(b"known to both of them"), print)
        store.set(f"here/{rank}", str(rank))
        other = int(store.get(f"here/{1 - rank}"))
        addresses = " ".join(rendezvous.addresses())
        context.barrier()
    columns = {"rank": pa.array([rank], pa.int32()), "other": pa.array([other], pa.int32())}
    yield pa.RecordBatch.from_pydict({**columns, "addresses": [addresses]})


def test_workers_of_several_hosts_meet_through_sparks_barrier(spark: SparkSession) -> None:
    tasks = SparkEngine(spark)._one_row_a_worker(2)
    frame = tasks.mapInArrow(meet, "rank int, other int, addresses string", barrier=True)
    both = "127.0.0.1 127.0.0.1"
    assert sorted(map(tuple, frame.collect())) == [(0, 1, both), (1, 0, both)]


def count_rows(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_each_worker_is_fed_one_partition(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr("int(id % 2) AS part", "id").repartitionById(2, "part")
    task = Task(load=count_rows, work=lambda world, state: state)
    fed = SparkEngine(spark).run(
        task, 2, rows=rows.select("id"), timeout=60, on_message=contract.Heard()
    )
    assert [sorted(part) for part in fed] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_an_error_upstream_is_sparks_own(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    rows = spark.range(2).selectExpr("raise_error('bad row') AS x", "int(id) AS part")
    task = Task(load=count_rows, work=lambda world, state: state)
    with pytest.raises(PySparkException, match="bad row"):
        SparkEngine(spark).run(
            task,
            2,
            rows=rows.repartitionById(2, "part"),
            timeout=60,
            on_message=contract.Heard(),
        )


def test_a_large_result_arrives_whole(spark: SparkSession) -> None:
    sizes = farandole.run(lambda: bytes(70 << 20), num_workers=1)
    assert [len(result) for result in sizes] == [70 << 20]


def test_a_stopped_session_is_not_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession as Session

    monkeypatch.setattr(Session, "getActiveSession", lambda: None)
    assert resolve(None).name == "spark"  # the session of another thread
    monkeypatch.setattr(Session, "_instantiatedSession", None)
    assert resolve(None).name == "local"
    with pytest.raises(InputError, match="needs a running Spark session"):
        resolve("spark")
