"""What all tests share: one Spark session for the run, one thread a process, two lanes, a budget.

`make test` runs two lanes side by side (pytest-xdist). All files with tests of Spark go to the same
lane, so that one JVM serves them; the others go wherever there is room, file by file, so that a
module's fixtures are made once. What takes long comes first: the short ones then fill both lanes.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults import report
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# Two workers with two threads each on two cores are 5–10 times slower than with one.
# torch reads these when it is imported, so they are set before any test file can do so;
# processes that a test starts inherit them.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

# A JVM of the tests lives for minutes: the compiler that makes the fastest code costs it more than
# that code gives back. Measured in docs/benchmarks/tests.md.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ[variable] = JAVA_OPTIONS

# Workers (of the local engine and of Spark) import a test's functions by the name they were
# pickled with: `tests.engines.test_local`, seen from the root.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Some tests count temporary files: a lane must not see those of the other.
if lane := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"{lane}-")
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# Collection makes 700,000 objects, and none of them is garbage.
gc.disable()

# Keras reads these at its first import, and writes a file of settings into its home.
os.environ["KERAS_BACKEND"] = "torch"
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="keras-")
atexit.register(shutil.rmtree, os.environ["KERAS_HOME"], ignore_errors=True)

# A picture is drawn to a file, never to a window.
os.environ["MPLBACKEND"] = "Agg"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, help="fail if the run takes longer, in seconds")
    parser.addoption("--faults", action="store_true", help="write the table of faults and attacks")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_START] = time.monotonic()
    # Spark 4.1 itself leaves the socket of each collect to the garbage collector; 4.2 closes it.
    if version("pyspark").startswith("4.1."):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_runtest_setup(item: pytest.Item) -> None:
    report.note_marker(item)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if lane:
        items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    _load_into_fork_server("optuna, pytest, sklearn.datasets, sklearn.linear_model")


def _load_into_fork_server(modules: str) -> None:
    """Let local workers have what test files import: two seconds of a core for each otherwise."""
    if client := sys.modules.get("farandole.engines.fork_client"):
        path, _, serve = client._COMMAND.partition("\n")
        client._COMMAND = f"{path}\nimport {modules}\n{serve}"


def _turn(file: Path) -> int:
    """Spark's lane first, then files that start processes, then the others."""
    return 0 if _uses_spark(file) else 1 if "_integration" in file.name else 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return LaneScheduling(config, log)


class LaneScheduling(LoadScopeScheduling):
    """Gives whole files to the lanes; those with tests of Spark go together to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if _uses_spark(ROOT / file):
            return "spark"
        return "ray" if _uses_ray(ROOT / file) else file


@cache
def _uses_spark(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    # Servers of Connect go to that lane too: two at a time would want the same port.
    return "spark: SparkSession" in text or "pytest.mark.connect" in text


@cache
def _uses_ray(file: Path) -> bool:
    return "ray_cluster: " in file.read_text(encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    budget, seconds = session.config.getoption("budget"), _seconds(session.config)
    if budget is not None and seconds > budget and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("faults"):
        reports = [
            one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])
        ]
        terminalreporter.write_line(report.write(report.rows_of(reports), ROOT))
    budget, seconds = config.getoption("budget"), _seconds(config)
    if budget is not None and seconds > budget:
        terminalreporter.write_line(
            f"The run took {seconds:.0f} s: more than its budget of {budget:.0f} s. Find out what "
            "is slow with --durations=30, and mark what only repeats as exhaustive.",
            red=True,
        )


_START = pytest.StashKey[float]()


def _seconds(config: pytest.Config) -> float:
    return time.monotonic() - config.stash[_START]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one classic session of the run: `local[2]`, started by the first test that asks.

    A JVM takes seconds to start, and a process has room for a single classic session. So a
    test that needs other settings sets runtime ones and puts them back, and a test that needs
    another master (a cluster, Spark Connect) runs a Python process of its own.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("farandole-tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "farandole.daemon")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


RAY_SCRIPT = """
import sys, ray
from farandole.engines.ray_cluster import start_ray
start_ray(ray, num_cpus=3, object_store_memory=200 << 20)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Start the one Ray of a lane, with three CPUs, in a process of its own."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else a warning of what will change
    command = [sys.executable, "-c", RAY_SCRIPT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield next(line.strip() for line in lines if re.fullmatch(r"[\d.]+:\d+\n", line))
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def ray_cluster(ray_address: str) -> Iterator[Any]:
    """Connect to it for the tests of one file: others would find its ports, memory, signals."""
    import ray

    from farandole.engines import reload_token

    reload_token()  # a test may have had none
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ray.init(address=ray_address, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def hide(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Make a package missing for the Python workers that start from now on."""

    def hidden(package: str) -> None:
        missing = f"ModuleNotFoundError(\"No module named '{package}'\", name='{package}')"
        (tmp_path / f"{package}.py").write_text(f"raise {missing}")
        monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))

    return hidden
