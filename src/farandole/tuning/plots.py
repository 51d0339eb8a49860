"""The plots of a study: Optuna's, as pictures that stand in a page by themselves."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farandole.errors import MissingPackage

if TYPE_CHECKING:
    from farandole.tuning.study import Study

_LARGEST_SVG = 500_000
"""Bytes; a plot with more lines than that is drawn in pixels."""
_FEW = 4
"""Trials, that importance can be told from at least."""
_MOST_CURVES = 12
"""Curves with a name each; of more, the names would fill the picture."""


class TooFew(Exception):
    """There is nothing to plot, or too little to learn from."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture with its title, or why there is none."""

    title: str
    about: str
    image: str | None = None
    """A data: URL."""
    missing: str | None = None


def plots(study: Study) -> Iterator[Plot]:
    """All plots that suit a study."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingPackage("matplotlib", "plot") from None
    several = len(study.metrics) > 1
    if several:
        about = "Each dot is a trial; no trial is better in all metrics than those in front."
        yield _plot("Trade-offs (Pareto front)", about, _pareto, study)
    for index, metric in enumerate(study.metrics):
        title = f"History of {metric}" if several else "History"
        about = "Each dot is a trial that ran to its end" + (
            "." if several else "; the line is the best so far."
        )
        yield _plot(title, about, _history, study, index)
    for index, metric in enumerate(study.metrics):
        title = f"What matters for {metric}" if several else "What matters"
        about = "How much each argument tells good trials from others (PED-ANOVA)."
        yield _plot(title, about, _importances, study, index)
        title = f"Arguments and {metric}" if several else "Arguments and values"
        about = "Each line is a trial; it crosses each axis at its value."
        yield _plot(title, about, _parallel, study, index)
    if not several:
        about = "What each trial reported while it ran, step by step."
        yield _plot("Learning curves", about, _curves, study)


def _plot(title: str, about: str, draw: Callable[..., Any], study: Study, *more: Any) -> Plot:
    try:
        with _matplotlib():
            return Plot(title=title, about=about, image=_image(draw(study, *more)))
    except TooFew as error:
        return Plot(title=title, about=about, missing=str(error))
    except Exception as error:  # a page without one of its plots is better than none
        return Plot(title=title, about=about, missing=f"This can't be drawn: {error}")


@contextmanager
def _matplotlib() -> Iterator[None]:
    """Optuna draws with pyplot, and changes its style: no window, and all as it was before."""
    import matplotlib as mpl
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    with mpl.rc_context(), pyplot.ioff(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental functions, tight layouts
        mpl.rcParams["figure.figsize"] = (9, 4.5)
        try:
            yield
        finally:
            for number in set(pyplot.get_fignums()) - set(before):
                pyplot.close(number)


def _image(axes: Any) -> str:
    """A figure as a data: URL."""
    figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
    for one in figure.axes:
        for side in ("left", "center", "right"):
            one.set_title("", loc=side)  # the page has titles
    picture, mime = _saved(figure, "svg"), "image/svg+xml"
    if len(picture) > _LARGEST_SVG:
        picture, mime = _saved(figure, "png"), "image/png"
    return f"data:{mime};base64,{base64.b64encode(picture).decode()}"


def _saved(figure: Any, kind: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, bbox_inches="tight", dpi=110)
    return file.getvalue()


def _complete(study: Study, least: int) -> int:
    count = study.counts["complete"]
    if count < least:
        word = "trial is" if count == 1 else "trials are"
        raise TooFew(f"Too few trials: {count} {word} complete, and {least} are needed.")
    return count


def _target(study: Study, index: int) -> dict[str, Any]:
    if len(study.metrics) == 1:
        return {"target_name": study.metrics[0]}
    return {
        "target": lambda trial: trial.values[index],
        "target_name": study.metrics[index],
    }


def _pareto(study: Study) -> Any:
    from optuna.visualization.matplotlib import plot_pareto_front

    _complete(study, 1)
    if len(study.metrics) > 3:
        raise TooFew(f"There are {len(study.metrics)} metrics; a plot has at most three axes.")
    return plot_pareto_front(study.optuna, target_names=list(study.metrics))


def _history(study: Study, index: int) -> Any:
    from optuna.visualization.matplotlib import plot_optimization_history

    _complete(study, 1)
    return plot_optimization_history(study.optuna, **_target(study, index))


def _importances(study: Study, index: int) -> Any:
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization.matplotlib import plot_param_importances

    _complete(study, _FEW)
    _check_varied(study)
    return plot_param_importances(
        study.optuna, evaluator=PedAnovaImportanceEvaluator(), **_target(study, index)
    )


def _parallel(study: Study, index: int) -> Any:
    from optuna.visualization.matplotlib import plot_parallel_coordinate

    _complete(study, 2)
    _check_varied(study)
    axes = plot_parallel_coordinate(study.optuna, **_target(study, index))
    figure: Any = axes.figure
    figure.set_size_inches(max(9.0, 1.4 * len(figure.axes)), 4.5)
    for one in figure.axes:
        one.minorticks_off()  # their numbers lie over each other
    return axes


def _curves(study: Study) -> Any:
    from optuna.visualization.matplotlib import plot_intermediate_values

    trials = study.optuna.get_trials(deepcopy=False)
    if not any(len(trial.intermediate_values) > 1 for trial in trials):
        raise TooFew("No trial has reported more than one step.")
    axes = plot_intermediate_values(study.optuna)
    axes.set_ylabel(study.metrics[0])
    legend = axes.get_legend()
    if legend is not None and len(trials) > _MOST_CURVES:
        legend.remove()
    return axes


def _check_varied(study: Study) -> None:
    trials = study.optuna.get_trials(deepcopy=False)
    if not any(trial.params for trial in trials):
        raise TooFew("No argument was varied.")
