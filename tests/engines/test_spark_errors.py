"""Spark's own words (recorded on Spark 4.3, or from the sources of its cluster managers)."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JError

from farandole._spark import TaskPlace
from farandole.engines.failure import Failure
from farandole.engines.spark_errors import translated
from farandole.errors import JobCancelled, LaunchError, PeerLost, WorkerFailed, WorkerLost

PLACES = {rank: TaskPlace(str(7 + rank), f"10.0.0.{rank}") for rank in range(4)}
TOP = """An error occurred while calling o241.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:342)
"""
BARRIER = (
    TOP + "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Could not "
    "recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because "
    "barrier task ResultTask(5, 1) finished unsuccessfully.\n{0}\n"
    "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)\n"
)
LOST = "ExecutorLostFailure (executor 8 exited caused by one of the running tasks) Reason: {0}"
CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
SEGFAULT = (
    CRASHED
    + """: Fatal Python error: Segmentation fault

Thread 0x00007f89b7835b81 (most recent call first):
  File "/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f89b7835b80 (most recent call first):
  File "/jobs/network.py", line 28 in forward
  File "/lib/pyspark.zip/pyspark/worker.py", line 1955 in func
"""
)
DAEMON = """
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'farandole.daemon' \
(ModuleNotFoundError: No module named 'farandole')
PYTHONPATH was:
  /spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
farandole.daemon's stdout."""
UNPICKLED = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/worker.py", line 4180, in read_command
    return self.loads(obj)
ModuleNotFoundError: No module named 'torch'
"""


def told(text: str, failures: list[Failure] | None = None) -> Exception:
    error = translated(Py4JError(text), failures or [], PLACES, b"secret")
    assert "org.apache" not in str(error)
    assert "py4j" not in str(error).lower()
    assert len(str(error)) < 600
    return error


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Command exited with code 137", "most often for lack of memory"),
        ("Command exited with code 52", "raise spark.executor.memory"),
        ("Command exited with code 139", "its JVM crashed"),
        ("worker lost: 127.0.0.1:34795 got disassociated", "its host, or the network"),
        ("Executor heartbeat timed out after 144967 ms", "it is stopped, overloaded or cut off"),
        (
            "Remote RPC client disassociated. Likely due to containers exceeding thresholds, or "
            "network issues. Check driver logs for WARN messages.",
            "its host, or the network",
        ),
        (
            "Container killed by YARN for exceeding physical memory limits. 5.5 GB of 5.5 GB "
            "physical memory used. Consider boosting spark.executor.memoryOverhead.",
            "most often for lack of memory",
        ),
        (
            "Container from a bad node: container_1. Exit status: 143. Diagnos",
            "took it back",
        ),
        (
            "\nThe executor with id 8 exited with exit code 137(SIGKILL, possible container OOM).\n"
            "\n\nThe API gave the following container statuses:\n\n\t container name: spark\n",
            "most often for lack of memory",
        ),
        ("Something new", "its log may say why"),
    ],
)
def test_a_lost_executor(reason: str, words: str) -> None:
    error = told(BARRIER.format(LOST.format(reason)))
    assert isinstance(error, WorkerLost)
    assert error.rank == 1
    assert str(error).startswith("rank 1 was lost: executor 8 on 10.0.0.1 ended (")
    assert " ".join(reason.split())[:40] in str(error)
    assert words in str(error)


def test_an_executor_without_a_rank_is_still_named() -> None:
    lost = LOST.format("Command exited with code 1")
    text = f"{TOP}Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: {lost}"
    error = told(text)
    assert isinstance(error, WorkerLost)
    assert error.rank is None
    assert str(error).startswith("a worker was lost: executor 8 ended (Command exited with code 1)")


def test_a_crash_is_not_a_lack_of_memory() -> None:
    error = told(BARRIER.format(SEGFAULT))
    assert isinstance(error, WorkerLost)
    assert error.rank == 1
    assert "crashed (Segmentation fault) at /jobs/network.py:28 in forward" in str(error)
    assert "memory" not in str(error)


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (":\x20\n", "was killed, most often for lack of memory"),
        (". Consider setting 'spark.python.worker.faulthandler.enabled'", "a crash, or killed"),
    ],
)
def test_a_process_that_died_in_silence(tail: str, words: str) -> None:
    error = told(BARRIER.format(f"{CRASHED}{tail}"))
    assert isinstance(error, WorkerLost)
    assert error.rank == 1
    assert "on executor 8 on 10.0.0.1" in str(error)
    assert words in str(error)


def test_a_task_that_spark_killed() -> None:
    error = told(BARRIER.format("TaskKilled (Preempted by another pool)"))
    assert isinstance(error, WorkerLost)
    assert "Spark killed its task on executor 8 on 10.0.0.1: Preempted by another" in str(error)


def test_rows_that_were_lost_again_and_again() -> None:
    error = told(
        f"{TOP}Job aborted due to stage failure: ResultStage 5 has failed the maximum allowable "
        "number of times: 4. Most recent failure reason:\norg.apache.spark.shuffle."
        "MetadataFetchFailedException: Missing an output location\n"
    )
    assert isinstance(error, WorkerLost)
    assert error.rank is None
    assert "held rows for the workers" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[SPARK_JOB_CANCELLED] Job 19 cancelled as part of cancellation of all jobs "
            "SQLSTATE: XXKDA",
            "was cancelled in Spark (as part of cancellation of all jobs). Call again.",
        ),
        ("Job 3 cancelled because killed via the Web UI", "(because killed via the Web UI)"),
        ("Job 23 cancelled because SparkContext was shut down", "session was stopped while"),
        ("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008", "was cancelled in"),
        ("An error occurred. Answer from Java side is empty", "ended or can't be reached"),
        ("<_MultiThreadedRendezvous: status = StatusCode.UNAVAILABLE>", "can't be reached"),
    ],
)
def test_a_cancelled_job(text: str, words: str) -> None:
    error = told(f"{TOP}Caused by: org.apache.spark.SparkException: {text}\n")
    assert isinstance(error, JobCancelled)
    assert words in str(error)


def test_words_of_a_failed_task_cancel_nothing() -> None:
    error = told(BARRIER.format("ValueError: Job 3 cancelled because SparkContext was shut down"))
    assert not isinstance(error, JobCancelled)


def test_what_a_worker_said_itself_comes_first() -> None:
    own = Failure.of(0, ValueError("boom"))
    error = told(BARRIER.format(CRASHED), [own])
    assert isinstance(error, WorkerFailed)
    assert not isinstance(error, WorkerLost)
    assert error.rank == 0


def test_who_merely_lost_a_peer_comes_last() -> None:
    peer = Failure.of(0, PeerLost([1]))
    assert isinstance(told(BARRIER.format(LOST.format("gone")), [peer]), WorkerLost)
    assert isinstance(told("Something else", [peer]), PeerLost)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DAEMON, "farandole.daemon, but the Python of Spark's workers has no farandole. Install"),
        (DAEMON, "or start the session with farandole.spark.daemon_settings(), or send it with"),
        (UNPICKLED, "the Python of Spark's workers has no torch. Install it on every executor"),
        ("PyArrow >= 18.0.0 must be installed; however, it was not found.", "has no pyarrow"),
        ('java.io.IOException: Cannot run program "/no/python": error=2', "can't run '/no/python'"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions.",
            "run Python 3.9, and this driver 3.11",
        ),
    ],
)
def test_a_python_that_can_not_be_a_worker(text: str, words: str) -> None:
    error = told(BARRIER.format(text))
    assert isinstance(error, LaunchError)
    assert words in str(error)
    assert "before the session starts" in str(error)


def test_the_rest_is_said_without_java() -> None:
    error = told(BARRIER.format("java.io.IOException: No space left on device"))
    assert isinstance(error, WorkerFailed)
    assert str(error) == "rank 1 failed: No space left on device"
    error = told(f"{TOP}Caused by: java.io.FileNotFoundException: /data/part-0 is gone\n\tat x.y")
    assert isinstance(error, LaunchError)
    assert str(error) == "Spark's job failed: /data/part-0 is gone"


def test_an_unknown_traceback_is_kept() -> None:
    error = told(BARRIER.format(UNPICKLED.replace("No module named 'torch'", "something else")))
    assert isinstance(error, WorkerFailed)
    assert error.summary == "ModuleNotFoundError: something else"
    assert "return self.loads(obj)" in error.traceback


def test_what_the_driver_has_found_out_comes_before_complaints_of_peers() -> None:
    lost = WorkerLost(1, "its executor doesn't answer.")
    assert translated(lost, [Failure.of(1, PeerLost([0]))], PLACES, b"secret") is lost


def test_a_worker_that_the_heartbeats_miss_is_told_with_its_host() -> None:
    lost = WorkerLost(1, "nothing was heard of it for 5 s")
    error = translated(Py4JError(BARRIER.format("")), [], PLACES, b"secret", lost=lost)
    assert str(error) == f"rank 1 was lost: {PLACES[1]}: nothing was heard of it for 5 s"
    assert isinstance(error, WorkerLost)
    assert error.rank == 1


def test_an_error_in_python_words_stays_what_it_is() -> None:
    error = ValueError("of the user")
    assert translated(error, [], PLACES, b"secret") is error


AGAIN = (
    TOP + "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in "
    "stage 3.0 failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 9) (10.0.0.1 "
    "executor 8): org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    "farandole.errors.LaunchError: rank 1 was started again by Spark: it has joined this run once."
)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (LOST.format("Command exited with code 137"), "executor 8 on 10.0.0.1 ended .*code 137"),
        (SEGFAULT, "crashed .*Segmentation fault.*network.py:28"),
        (None, "Spark ran its task again"),
    ],
)
def test_what_failed_first_counts_where_spark_runs_tasks_again(
    first: str | None, words: str
) -> None:
    told = None if first is None else f"Task of rank 1: {first}"
    error = translated(Py4JError(AGAIN), [], PLACES, b"secret", first=told)
    assert isinstance(error, WorkerLost)
    assert error.rank == 1
    assert re.search(words, str(error))
    silent = WorkerLost(1, "it doesn't answer.")
    heard = translated(silent, [], PLACES, b"secret", lost=silent, first=told)
    assert re.search(words if told else "it doesn't answer", str(heard))


def test_a_failure_before_the_workers_is_nobodys() -> None:
    """A stage that makes their rows has tasks too, whose numbers are no ranks."""
    text = AGAIN.partition(" org.apache.spark.api.python")[0] + " java.io.IOException: No room"
    error = told(text)
    assert isinstance(error, LaunchError)
    assert "No room" in str(error)


def test_workers_with_another_farandole_are_told_apart() -> None:
    words = "AttributeError: Can't get attribute 'run_spark_task' on <module 'farandole.engines' >"
    error = told(BARRIER.format(UNPICKLED.rpartition("ModuleNotFound")[0] + words))
    assert isinstance(error, LaunchError)
    assert "a farandole of another version" in str(error)
