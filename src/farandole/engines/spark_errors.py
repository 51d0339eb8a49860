"""What a user is told when Spark's side of a run breaks: one exception, in one sentence.

Spark tells of a fault in text, many layers of it. Whatever is read out of that text is read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from farandole._spark import TaskPlace
from farandole.engines.failure import Failure, first_cause
from farandole.engines.spark_gang import STARTED_AGAIN
from farandole.errors import FarandoleError, JobCancelled, LaunchError, WorkerFailed, WorkerLost

_LONGEST_QUOTE = 200
_ABORTED = "Job aborted due to stage failure"
_FAILED_TASK = "finished unsuccessfully."
_TASK = re.compile(
    r"(?:barrier task (?:Result|ShuffleMap)Task\(\d+, |Task of rank "
    r"|rank (?=\d+ was started again))(\d+)"
)
_CANCELLED = re.compile(r"Job \d+ cancelled ?([^\n]*?)(?: SQLSTATE: \w+)?$", re.M)
_OPERATION_CANCELLED = "OPERATION_CANCELED"  # Spark Connect's word for it
_SHUT_DOWN = re.compile(r"SparkContext (?:was|has been) shut ?down|stopped SparkContext", re.I)
_UNREACHABLE = re.compile(
    r"Answer from Java side is empty|error while (?:send|receiv)ing|Connection refused"
    r"|StatusCode\.UNAVAILABLE",
    re.I,
)
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \(executor (\S+) [^)]*\)(?: Reason:\s*([^\n]*))?")
_PYTHON_DIED = re.compile(
    r"Python worker exited unexpectedly \(crashed\)(?P<watched>:)?"
    r"(?:\s*Fatal Python error: (?P<fault>[^\n]+))?"
)
_FAULT_FRAME = re.compile(r'Current thread[^\n]*\n\s+File "([^"]+)", line (\d+) in (\S+)')
_KILLED_TASK = re.compile(r"finished unsuccessfully\.\s*TaskKilled \(([^)\n]*)")
_FETCH_FAILED = re.compile(r"FetchFailed")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)|(PyArrow) >= [\d.]+ must be installed")
_OTHER_FARANDOLE = re.compile(r"Can't get attribute '\w+' on <module 'farandole")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: ?'?([\d.]+)'? than that in driver:? ?'?([\d.]+)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+[^\n]+")

_FATES = (
    (
        r"code 52\b|OutOfMemoryError",
        "its JVM had no memory left: raise spark.executor.memory",
    ),
    (
        r"\b137\b|memory limits|OOM|\bKilled by external signal",
        "it was killed, most often for lack of memory: raise spark.executor.memoryOverhead, or "
        "make batches smaller",
    ),
    (
        r"\b143\b|preempt|decommission",
        "the cluster took it back (preemption, decommissioning, or its host was shut down)",
    ),
    (
        r"code (?:134|139)\b|SIGSEGV|SIGABRT",
        "its JVM crashed: look at its log, and for a file hs_err_pid*.log",
    ),
    (
        r"heartbeat timed out",
        "it is stopped, overloaded or cut off from the driver: look at its host and its log",
    ),
    (
        r"disassociated|worker lost|slave lost|node",
        "its host, or the network to it, has gone; the executor's log may say more",
    ),
)
"""What became of an executor, by Spark's words for it: the first that is found."""


def translated(
    error: Exception,
    failures: list[Failure],
    places: Mapping[int, TaskPlace],
    secret: bytes,
    *,
    lost: WorkerLost | None = None,
    known: Exception | None = None,
    first: str | None = None,
) -> Exception:
    """The exception to raise in the place of Spark's.

    Args:
        error: What Spark raised, or whoever gave up waiting for it.
        failures: What workers told over their links.
        places: Where Spark ran each rank.
        secret: With which failures in Spark's text are signed.
        lost: A worker that the heartbeats miss.
        known: What all of that comes to, where Spark has no better word.
        first: What Spark says of the task that failed first, where it ran others after that.
    """
    text = _text_of(error)
    more = first is not None and _spark_knows_more(first)
    if first is not None and (more or _ABORTED in text):
        text = f"{_ABORTED}: {first}"
    found = Failure.from_text(text, secret)
    told = [*failures, found] if found else failures
    failure = first_cause(told) if told else None
    if (cancelled := _cancelled(text)) is not None:
        return cancelled
    if failure is not None and not failure.lost_peer:
        return failure.to_error()
    if isinstance(error, FarandoleError) and not more:  # what the driver itself has found out
        return _placed(lost, places) if lost else error
    if lost is not None and not _spark_knows_more(text):
        return _placed(lost, places)
    if (cause := _lost(text, places) or _not_started(text)) is not None:
        return cause
    if known is not None:
        return known
    return failure.to_error() if failure is not None else _summarised(error, text)


def _placed(lost: WorkerLost, places: Mapping[int, TaskPlace]) -> WorkerLost:
    """What the heartbeats say, with the executor and the host that they don't know."""
    place = None if lost.rank is None else places.get(lost.rank)
    return lost if place is None else WorkerLost(lost.rank, f"{place}: {lost.summary}")


def _spark_knows_more(text: str) -> bool:
    """Whether Spark's text says why an executor is gone, or where a process crashed."""
    died = _PYTHON_DIED.search(text)
    return bool(_EXECUTOR_LOST.search(text) or (died and died["fault"]))


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # py4j asks the JVM for it, which may have gone
        return f"{type(error).__name__}: Answer from Java side is empty"


def _cancelled(text: str) -> Exception | None:
    if _ABORTED in text:  # a failed task, whose message may hold any words
        return None
    if _SHUT_DOWN.search(text):
        return JobCancelled(
            "The Spark session was stopped while the workers ran: by spark.stop(), or because its "
            "cluster ended it. Start a new session, and call again."
        )
    if found := _CANCELLED.search(text):
        why = f" ({_quoted(found[1])})" if found[1] else ""
        return JobCancelled(f"The job of the workers was cancelled in Spark{why}. Call again.")
    if _OPERATION_CANCELLED in text:
        return JobCancelled("The job of the workers was cancelled in Spark. Call again.")
    if _UNREACHABLE.search(text):
        return JobCancelled(
            "Spark's driver (its JVM, or the Spark Connect server) has ended or can't be reached. "
            "Start a new session, and call again."
        )
    return None


def _lost(text: str, places: Mapping[int, TaskPlace]) -> Exception | None:
    """The worker whose process, executor or task has gone."""
    task = _TASK.search(text)
    rank = int(task[1]) if task else None
    place = places.get(rank) if rank is not None else None
    if executor := _EXECUTOR_LOST.search(text):
        where = place or TaskPlace(executor[1], "")
        return WorkerLost(rank, _executor_fate(where, executor[2] or ""))
    if died := _PYTHON_DIED.search(text):
        return WorkerLost(rank, _process_fate(died, text, _on(place)))
    if killed := _KILLED_TASK.search(text):
        why = _quoted(killed[1])
        return WorkerLost(rank, f"Spark killed its task{_on(place)}: {why}.")
    if STARTED_AGAIN in text:
        return WorkerLost(rank, "Spark ran its task again: what became of it isn't known.")
    if _FETCH_FAILED.search(text):
        return WorkerLost(
            None,
            "executors that held rows for the workers have gone, again and again, so Spark gave "
            "up. Look at their logs; fewer or larger executors may help.",
        )
    return None


def _executor_fate(place: TaskPlace, reason: str) -> str:
    why = f" ({_quoted(reason)})" if reason else ""
    fates = (fate for pattern, fate in _FATES if re.search(pattern, reason, re.I))
    fate = next(fates, "its log may say why")
    return f"{place} ended{why}: {fate}."


def _process_fate(died: re.Match[str], text: str, where: str) -> str:
    if died["fault"]:
        frame = _FAULT_FRAME.search(text, died.start())
        line = f" at {frame[1]}:{frame[2]} in {frame[3]}" if frame else ""
        return (
            f"its Python process{where} crashed ({_quoted(died['fault'])}){line}. That is a fault "
            "of native code that it called there: an extension module, or its input."
        )
    how = "was killed" if died["watched"] else "died without a message (a crash, or killed)"
    return (
        f"its Python process{where} {how}, most often for lack of memory: raise "
        "spark.executor.memoryOverhead, or make batches smaller."
    )


def _not_started(text: str) -> Exception | None:
    """Why Python could not run a worker at all."""
    if missing := _NO_MODULE.search(text):
        package = (missing[1] or missing[2]).partition(".")[0].lower()
        daemon = "spark.python.daemon.module is farandole.daemon, but " * (
            "farandole.daemon" in text and package == "farandole"
        )
        sent = "or send it with farandole.spark.ship, " * (package == "farandole")
        if daemon:  # it starts before anything is sent
            sent = f"or start the session with farandole.spark.daemon_settings(), {sent}"
        return LaunchError(
            f"{daemon}the Python of Spark's workers has no {package}. Install it on every "
            f"executor, {sent}or let spark.pyspark.python (PYSPARK_PYTHON) name an environment "
            "that has it, before the session starts."
        )
    if _OTHER_FARANDOLE.search(text):
        return LaunchError(
            "The Python of Spark's workers has a farandole of another version than this driver. "
            "Install the driver's on every executor, or leave it out there and send it: "
            "farandole.spark.ship(spark)."
        )
    if python := _NO_PYTHON.search(text):
        return LaunchError(
            f"Spark's workers can't run {python[1]!r}. Let spark.pyspark.python (PYSPARK_PYTHON) "
            "name a Python that every executor has, before the session starts."
        )
    if versions := _OTHER_PYTHON.search(text):
        return LaunchError(
            f"Spark's workers run Python {versions[1]}, and this driver {versions[2]}. Let "
            "spark.pyspark.python (PYSPARK_PYTHON) name one of the driver's version, before the "
            "session starts."
        )
    return None


def _summarised(error: Exception, text: str) -> Exception:
    """Errors that Spark has put into Python words stay as they are; of others, what counts."""
    if not type(error).__module__.startswith("py4j"):
        return error
    python = _TRACEBACK.search(text)
    task = _TASK.search(text)
    reason = _quoted(python[0].rpartition("\n")[2] if python else _root_line(text))
    if task:
        return WorkerFailed(int(task[1]), reason, python[0] if python else "")
    return LaunchError(f"Spark's job failed: {reason}")


def _root_line(text: str) -> str:
    """What counts of Java's text: without stack traces, and without names of exception classes."""
    lines = [line for line in text.splitlines() if line.strip() and not _is_frame(line)]
    after = [line for before, line in pairwise(lines) if before.endswith(_FAILED_TASK)]
    aborted = [line for line in lines if _ABORTED in line]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    told = next(iter(after or aborted or causes[-1:] or lines), "")
    return re.sub(r"^(?:Caused by: |: )?(?:[\w.$]+(?:Exception|Error): )*", "", told)


def _is_frame(line: str) -> bool:
    return bool(re.match(r"\s+(?:at |\.\.\. \d+ more)", line))


def _on(place: TaskPlace | None) -> str:
    return f" on {place}" if place else ""


def _quoted(words: str) -> str:
    """Spark's own words, short enough for a sentence."""
    plain = " ".join(words.split()).rstrip(".")
    return plain if len(plain) <= _LONGEST_QUOTE else f"{plain[:_LONGEST_QUOTE]}…"
