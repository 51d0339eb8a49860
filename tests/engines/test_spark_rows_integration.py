"""Rows from Spark's tasks to workers elsewhere: here, threads of the test."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from farandole.engines import spark_rows
from farandole.engines.authenticated_listener import listen
from farandole.engines.encryption import Credentials
from farandole.engines.spark_rows import ReceivedRows, RowsJob, RowTargets
from farandole.errors import InputError, PeerLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration
SIZE = 2


class Workers:
    """Two listeners, each with a thread that takes what comes."""

    def __init__(self, takes: int | None = None) -> None:
        self.credentials = Credentials(secrets.token_bytes(32))
        self.batches: list[list[pa.RecordBatch]] = [[] for _ in range(SIZE)]
        self.errors: list[BaseException] = []
        sockets = [listen("127.0.0.1") for _ in range(SIZE)]
        addresses = tuple(("127.0.0.1", each.getsockname()[1]) for each in sockets)
        self.targets = RowTargets(addresses, self.credentials)
        self.received = [
            ReceivedRows(rank, each, self.credentials, print) for rank, each in enumerate(sockets)
        ]
        self.threads = [
            threading.Thread(target=self._take, args=(rank, takes), daemon=True)
            for rank in range(SIZE)
        ]
        for thread in self.threads:
            thread.start()

    def _take(self, rank: int, takes: int | None) -> None:
        rows = self.received[rank].batches()
        try:
            for number, batch in enumerate(rows):
                self.batches[rank].append(batch)
                if takes is not None and number + 1 == takes:
                    rows.close()  # as a worker that fails
                    return
        except BaseException as error:
            self.errors.append(error)

    def numbers(self, rank: int) -> list[int]:
        return sorted(number for batch in self.batches[rank] for number in batch["id"].to_pylist())


@contextmanager
def running(rows: DataFrame, workers: Workers) -> Iterator[RowsJob]:
    with RowsJob(rows, workers.targets) as job:
        yield job


def wait(job: RowsJob, workers: Workers, seconds: float = 60.0) -> None:
    """Until all workers have all their rows, or the job has something to say."""
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread in workers.threads):
        job.check()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_error(job: RowsJob) -> None:
    """Until Spark's job has failed."""
    deadline = time.monotonic() + 60
    while job._error is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def placed(spark: SparkSession, rows: int) -> DataFrame:
    from pyspark.sql import functions as F

    return spark.range(rows).repartitionById(SIZE, F.expr("int(id % 2)"))


def test_each_worker_gets_its_partition_once(spark: SparkSession) -> None:
    workers = Workers()
    with running(placed(spark, 25_001), workers) as job:
        wait(job, workers)
        job.check()
    assert workers.numbers(0) == list(range(0, 25_001, 2))
    assert workers.numbers(1) == list(range(1, 25_001, 2))
    assert len(workers.batches[0]) > 1  # 10,000 rows at a time: streamed
    assert workers.errors == []


def test_a_row_that_spark_can_not_compute_is_told_in_sparks_words(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rows, "_REASON_SECONDS", 2.0)
    workers = Workers()
    # Behind the shuffle, so that some rows have gone before it.
    rows = placed(spark, 60_000).selectExpr("if(id = 59999, raise_error('a bad row'), id) AS id")
    with running(rows, workers) as job:
        for thread in workers.threads:  # they may take what came for all there is
            thread.join(30)
        assert workers.batches[1]
        assert all(isinstance(error, PeerLost) for error in workers.errors)
        with pytest.raises(Exception, match="a bad row"):
            job.finish()


def test_an_empty_frame_is_refused(spark: SparkSession) -> None:
    workers = Workers()
    with (
        running(placed(spark, 10).where("false"), workers) as job,
        pytest.raises(InputError, match="the DataFrame is empty"),
    ):
        wait(job, workers)


def test_a_worker_that_is_gone_has_the_first_word(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rows, "_REASON_SECONDS", 3.0)
    workers = Workers(takes=1)
    with running(placed(spark, 2_000_000), workers) as job:
        wait_for_error(job)
        job.check()  # Spark's error is there, and held back
        time.sleep(3.1)
        with pytest.raises(Exception, match="no longer takes rows"):
            job.check()


def test_a_second_attempt_is_turned_away(spark: SparkSession) -> None:
    workers = Workers()
    with running(placed(spark, 10), workers) as job:
        wait(job, workers)
    again: Any = Workers()
    again.received[0]._taken = True
    with running(placed(spark, 10), again) as job:
        wait_for_error(job)
        assert "rows of a task that failed" in str(job._error)
