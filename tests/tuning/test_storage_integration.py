"""What tune writes is read by the Optuna Dashboard."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from farandole.tuning import Float, report, tune

pytestmark = [
    pytest.mark.integration,
    pytest.mark.exhaustive,
    # The dashboard's own: deprecated and experimental functions of what it uses.
    pytest.mark.filterwarnings("ignore"),
]


def squares(x: float) -> float:
    for step in (1, 2):
        report(x * x + 1 / step, step)
    return x * x


def ask(app: Any, path: str) -> Any:
    """Call a WSGI app as a server would."""
    path, _, query = path.partition("?")
    request: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query}
    setup_testing_defaults(request)
    request["wsgi.errors"] = io.StringIO()
    told: list[str] = []
    body = b"".join(app(request, lambda status, headers, error=None: told.append(status)))
    assert told[0].startswith("200"), body
    return json.loads(body)


def test_the_dashboard_shows_a_study(tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = tmp_path / "study.journal"
    study = tune(
        squares, {"x": Float(-1, 1)}, trials=5, engine="local", parallelism=1, progress=False,
        name="squares", storage=journal,
    )  # fmt: skip
    app = dashboard.wsgi(JournalStorage(JournalFileBackend(str(journal))))
    (found,) = ask(app, "/api/studies")["study_summaries"]
    assert found["study_name"] == "squares"
    shown = ask(app, f"/api/studies/{found['study_id']}?after=0")
    assert {trial["number"]: trial["values"] for trial in shown["trials"]} == {
        trial.number: trial.values for trial in study.optuna.trials
    }
    assert {trial["state"] for trial in shown["trials"]} == {"Complete"}
    steps = [point["step"] for point in shown["trials"][0]["intermediate_values"]]
    assert steps == [1, 2]
