"""Studies and spaces on their way to a disk and back, as JSON alone: loading runs no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from farandole.errors import ArtifactError
from farandole.tuning.samplers import require_optuna
from farandole.tuning.space import Choice, Float, Int, Space, Widths
from farandole.tuning.study import Study

_KIND = "kind"
_RANGES = {"Float": Float, "Int": Int, "Widths": Widths}


def save_study(study: Study, path: Path) -> None:
    """Write all trials to a journal file of Optuna's, which its tools can open.

    >>> import tempfile
    >>> from farandole.tuning import tune
    >>> study = tune(lambda x: x, {"x": [2, 1]}, sampler="grid", engine="local", progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_study(study, Path(folder, "trials.journal"))
    ...     load_study(Path(folder, "trials.journal"), study.metrics).best_params
    {'x': 1}
    """
    import optuna

    optuna.copy_study(
        from_study_name=study.optuna.study_name,
        from_storage=study.optuna._storage,
        to_storage=_journal(path),
    )


def load_study(path: Path, metrics: Sequence[str]) -> Study:
    """A study that was saved, in memory; its params are as Optuna stores them.

    >>> load_study(Path("nowhere"), ["loss"])
    Traceback (most recent call last):
    ...
    farandole.errors.ArtifactError: 'nowhere' holds no study.
    """
    require_optuna()
    import optuna

    storage = _journal(path) if path.is_file() else None
    names = [] if storage is None else optuna.get_all_study_names(storage)
    if storage is None or not names:
        raise ArtifactError(f"{str(path)!r} holds no study.")
    kept = optuna.storages.InMemoryStorage()
    optuna.copy_study(from_study_name=names[0], from_storage=storage, to_storage=kept)
    study = optuna.load_study(study_name=names[0], storage=kept)
    return Study(study, None, metrics, reason="loaded")


def _journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def space_to_json(space: Space) -> dict[str, Any] | None:
    """What JSON holds of a space; None if it can't, as with a function or networks.

    >>> space_to_json({"x": Int(1, 3), "hidden": [(8,), (8, 4)]})["x"]
    {'kind': 'Int', 'low': 1, 'high': 3, 'log': False, 'step': 1}
    """
    if callable(space):
        return None
    try:
        return {_text(name): _described(one) for name, one in space.items()}
    except TypeError:
        return None


def space_from_json(described: Mapping[str, Any]) -> dict[str, Any]:
    """The space that `space_to_json` described.

    >>> space_from_json(space_to_json({"x": Int(1, 3), "hidden": [(8,), (8, 4)], "depth": 2}))
    {'x': Int(low=1, high=3, log=False, step=1), 'hidden': [(8,), (8, 4)], 'depth': 2}
    """
    return {name: _rebuilt(one) for name, one in described.items()}


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError
    return name


def _described(one: Any) -> Any:
    match one:
        case Float() | Int() | Widths():
            return {_KIND: type(one).__name__, **asdict(one)}
        case Choice() if one.spaces:
            inner = {name: space_to_json(space) for name, space in one.spaces.items()}
            if None in inner.values():
                raise TypeError
            return {_KIND: "Choice", "spaces": inner}
        case Choice():
            return {_KIND: "Choice", "values": [_described(value) for value in one.values]}
        case list() | tuple():
            return {_KIND: type(one).__name__, "values": [_described(value) for value in one]}
        case Mapping():
            return {_KIND: "dict", "items": {_text(k): _described(v) for k, v in one.items()}}
        case None | str() | bool() | int() | float():
            return one
    raise TypeError(one)


def _rebuilt(one: Any) -> Any:
    if not isinstance(one, Mapping):
        return one
    rest = {name: value for name, value in one.items() if name != _KIND}
    kind = one.get(_KIND)
    if kind == "Widths":
        return Widths(**{name: tuple(value) for name, value in rest.items()})
    if kind in _RANGES:
        return _RANGES[kind](**rest)
    if kind == "dict":
        return {name: _rebuilt(value) for name, value in one["items"].items()}
    if kind == "Choice" and "spaces" in one:
        return Choice({name: space_from_json(inner) for name, inner in one["spaces"].items()})
    makers: dict[Any, Any] = {"Choice": Choice.of, "list": list, "tuple": tuple}
    if kind not in makers:
        raise ArtifactError(f"A saved space has {one!r}, which is of no known kind.")
    return makers[kind]([_rebuilt(value) for value in one["values"]])
