"""The report of a study: one HTML file with all that is known of it, and nothing fetched."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError
from farandole.tuning.plots import Plot, plots
from farandole.tuning.space import Choice, Float, Int, Widths, describe_space
from farandole.tuning.storage import UNNAMED
from farandole.tuning.study_view import duration

if TYPE_CHECKING:
    from farandole.tuning.study import Study

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto;
    padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e6e6e6;
    vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; text-align: right; }
tr.failed { color: #a33; }
tr.pruned { color: #777; }
tr.best td { font-weight: 600; }
.wide { overflow-x: auto; }
figure { margin: 0; }
img { max-width: 100%; }
figcaption, .missing { color: #555; }
code { overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def write_report(study: Study, path: str | os.PathLike[str]) -> str:
    """Write the page of a study, and give its path."""
    file = Path(path)
    if not file.absolute().parent.is_dir():
        raise InputError(f"The folder of {os.fspath(path)!r} does not exist. Make it first.")
    parts = [_summary(study), _best(study), *map(_figure, plots(study)), _trials(study)]
    title = escape(_title(study))
    file.write_text(_PAGE.substitute(title=title, body="\n".join(parts)), encoding="utf-8")
    return os.fspath(path)


def _title(study: Study) -> str:
    name = study.optuna.study_name
    return "A study" if name == UNNAMED else f"The study {name}"


def _summary(study: Study) -> str:
    """What was searched, how many trials there were, and what they took."""
    ways = [one.name.lower() for one in study.optuna.directions]
    counts = ", ".join(f"{count} {state}" for state, count in study.counts.items())
    rows = [
        ("Metric", ", ".join(f"{m} ({w})" for m, w in zip(study.metrics, ways, strict=True))),
        *_space(study),
        ("Sampler", type(study.optuna.sampler).__name__),
        ("Pruner", type(study.optuna.pruner).__name__),
        ("Trials", f"{counts}; {study.reason}"),
        ("Time", _time(study)),
    ]
    if study.row_epochs:
        rows.append(("Rows trained on", f"{study.row_epochs:,}, each counted once an epoch"))
    return _pairs(rows)


def _space(study: Study) -> list[tuple[str, str]]:
    """What was tried for each argument, in words; a study that was loaded doesn't know."""
    if study.space is None:
        return []
    if callable(study.space):
        return [("Searched", describe_space(study.space))]
    return [(f"Searched: {name}", range_in_words(one)) for name, one in study.space.items()]


def range_in_words(one: Any) -> str:
    """What may be tried for an argument.

    >>> range_in_words(Float(1e-4, 1e-1, log=True)), range_in_words(["relu", "tanh"])
    ('0.0001 to 0.1, logarithmic', "'relu' or 'tanh'")
    """
    if isinstance(one, Float | Int):
        log = ", logarithmic" if one.log else ""
        step = f", in steps of {one.step:g}" if one.step not in (None, 1) else ""
        return f"{one.low:g} to {one.high:g}{log}{step}"
    if isinstance(one, Widths):
        depth, width = one.depth, one.width
        return f"{depth[0]} to {depth[1]} layers, each {width[0]} to {width[1]} wide"
    if isinstance(one, list):
        one = Choice.of(one)
    if not isinstance(one, Choice):
        return f"always {one!r}"
    if not one.spaces:
        return " or ".join(map(repr, one.values))
    return " or ".join(
        value + "".join(f", with {n} {range_in_words(inner)}" for n, inner in space.items())
        for value, space in one.spaces.items()
    )


def _time(study: Study) -> str:
    total = f"{duration(study.trial_seconds)} of trials"
    if study.packing is None:
        return total
    here = duration(study.trial_seconds_here)
    text = f"{duration(study.seconds)}, {study.parallelism} at once; {here} of trials"
    text += f"; slots were busy for {study.packing:.0%} of the time"
    if not study.trials_before:
        return text
    new = sum(study.counts.values()) - study.trials_before
    return f"the last call, of {new} trials: {text}. All calls: {total}"


def _best(study: Study) -> str:
    """The arguments of the best trial."""
    if not study.counts["complete"]:
        return "<h2>The best trial</h2>\n<p class='missing'>No trial has ended well.</p>"
    which = "The best trial"
    if len(study.metrics) > 1:
        which += f" by {study.metrics[0]}"
    return f"<h2>{escape(which)}: {study.best_number}</h2>\n" + _pairs(
        [
            (study.metrics[0], _text(study.best_value)),
            *((name, _text(value)) for name, value in study.best_params.items()),
        ]
    )


def _figure(plot: Plot) -> str:
    title, about = escape(plot.title), escape(plot.about)
    if plot.image is None:
        return f"<h2>{title}</h2>\n<p class='missing'>{escape(plot.missing or '')}</p>"
    return (
        f'<h2>{title}</h2>\n<figure><img src="{plot.image}" alt="{title}">'
        f"<figcaption>{about}</figcaption></figure>"
    )


def _trials(study: Study) -> str:
    """All trials, the best first, failed ones last."""
    frame = study.trials_dataframe()
    if frame.empty:
        return "<h2>Trials</h2>\n<p class='missing'>There are none.</p>"
    order = {"complete": 0, "pruned": 1, "running": 2, "waiting": 3, "fail": 4}
    up = study.optuna.directions[0].name == "MAXIMIZE"
    frame["_value"] = frame[study.metrics[0]].astype(float) * (-1.0 if up else 1.0)
    frame["_order"] = frame["state"].map(order)
    frame = frame.sort_values(["_order", "_value", "number"]).drop(columns=["_order", "_value"])
    frame["state"] = frame["state"].replace({"fail": "failed"})
    frame = frame.dropna(axis="columns", how="all")
    best = {one.number for one in study.optuna.best_trials} if study.counts["complete"] else set()
    columns = [name for name in frame.columns if name != "error"]
    head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    rows = frame.to_dict("records")
    body = "\n".join(_row(row, columns, row["number"] in best) for row in rows)
    return (
        f'<h2>Trials</h2>\n<div class="wide"><table id="trials">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(row: Mapping[Any, Any], columns: Sequence[str], is_best: bool) -> str:
    """A trial, and its error in a line of its own."""
    kind = f"{row['state']}{' best' if is_best else ''}"
    text = f'<tr class="{kind}">{"".join(_cell(row[name]) for name in columns)}</tr>'
    error = _text(row.get("error"))
    if error:
        cell = f'<td></td><td colspan="{len(columns) - 1}">{escape(error)}</td>'
        text += f'\n<tr class="{kind}">{cell}</tr>'
    return text


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and texts."""
    lines = [f"<tr><th>{escape(n)}</th><td><code>{escape(t)}</code></td></tr>" for n, t in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = ' class="number"' if is_number else ""
    return f"<td{kind}>{escape(_text(value))}</td>"


def _text(value: Any) -> str:
    """A value of a cell; nothing where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"
    return str(value)
