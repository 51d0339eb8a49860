"""Search spaces: what may be tried for each argument, as a plain dict or a function of a trial."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError

if TYPE_CHECKING:
    from optuna import Trial

Space = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""A dict of arguments, or a function of an Optuna trial that returns one."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In a text that should be the same in every process."""
_SIMPLE = (str, int, float, bool, type(None))
"""What Optuna can store as it is."""


@dataclass(frozen=True)
class Float:
    """A number from `low` to `high`; with `log`, each power of ten is as likely as the next.

    >>> Float(1e-4, 1e-1, log=True)
    Float(low=0.0001, high=0.1, log=True, step=None)
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def suggest(self, name: str, trial: Trial) -> float:
        """The value of a trial."""
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def grid(self, name: str) -> Iterator[dict[str, Any]]:
        """All values, if there are finitely many."""
        if self.step is None:
            raise InputError(
                f"A grid can't list all values of {name}={self}. Give it a step, or a list of "
                "values."
            )
        count = int((self.high - self.low) / self.step + 1e-9)
        yield from ({name: self.low + number * self.step} for number in range(count + 1))

    def check(self, name: str) -> None:
        """Raise if there is no such number."""
        _check_range(name, self)
        if self.step is not None and (self.step <= 0 or self.log):
            raise InputError(
                f"{name}={self}: a step must be positive, and has no place beside log."
            )


@dataclass(frozen=True)
class Int:
    """A whole number from `low` to `high`, both included.

    >>> Int(1, 4)
    Int(low=1, high=4, log=False, step=1)
    """

    low: int
    high: int
    log: bool = False
    step: int = 1

    def suggest(self, name: str, trial: Trial) -> int:
        """The value of a trial."""
        return trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step)

    def grid(self, name: str) -> Iterator[dict[str, Any]]:
        """All values."""
        yield from ({name: value} for value in range(self.low, self.high + 1, self.step))

    def check(self, name: str) -> None:
        """Raise if there is no such number."""
        if not all(isinstance(value, int) for value in (self.low, self.high, self.step)):
            raise InputError(f"{name}={self}: an Int has whole numbers.")
        _check_range(name, self)
        if self.step < 1 or (self.log and self.step != 1):
            raise InputError(f"{name}={self}: a step must be at least 1, and 1 beside log.")


class Choice:
    """One of some values, of any kind; of a mapping, one of its keys, with a space of its own.

    >>> Choice("relu", "tanh")
    Choice('relu', 'tanh')
    >>> Choice({"adam": {}, "sgd": {"momentum": Float(0.0, 0.99)}})
    Choice({'adam': {}, 'sgd': {'momentum': Float(low=0.0, high=0.99, log=False, step=None)}})
    """

    def __init__(self, *values: Any) -> None:
        self.spaces: dict[str, Mapping[str, Any]] = {}
        """What else there is to choose beside a value."""
        if len(values) == 1 and isinstance(values[0], Mapping):
            self.spaces = dict(values[0])
            values = tuple(self.spaces)
        self._set_values(values)

    @classmethod
    def of(cls, values: Sequence[Any]) -> Choice:
        """One of these values, even if there is only one and that is a mapping.

        >>> Choice.of([{"momentum": 0.9}]).values
        ({'momentum': 0.9},)
        """
        choice = cls()
        choice._set_values(values)
        return choice

    def _set_values(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)
        self.labels = _labels(self.values)

    def __repr__(self) -> str:
        shown = [self.spaces] if self.spaces else self.values
        return f"Choice({', '.join(map(repr, shown))})"

    def suggest(self, name: str, trial: Trial) -> Any:
        """The value of a trial."""
        return self.value(trial.suggest_categorical(name, self.labels))

    def value(self, label: Any) -> Any:
        """The value behind what Optuna stores."""
        return self.values[self.labels.index(label)]

    def grid(self, name: str) -> Iterator[dict[str, Any]]:
        """All values, each with all of its own space."""
        prefix = name[: name.rfind(".") + 1]
        for value, label in zip(self.values, self.labels, strict=True):
            own = self.spaces[value] if self.spaces else {}
            for rest in grid_of(own, f"{prefix}{label}."):
                yield {name: label, **rest}

    def check(self, name: str) -> None:
        """Raise if there is nothing to choose."""
        if not self.values:
            raise InputError(
                f"There is nothing to choose for {name!r}: give it at least one value."
            )
        for value, space in self.spaces.items():
            given: Any = value
            if not isinstance(given, str) or not isinstance(space, Mapping):
                raise InputError(
                    f"{name}={self}: a Choice of a mapping has names, each with a space of its own."
                )
            check_space(space)


@dataclass(frozen=True)
class Widths:
    """The widths of hidden layers: how many there are, and how wide each is.

    >>> Widths(depth=(1, 3), width=(16, 256))
    Widths(depth=(1, 3), width=(16, 256))
    """

    depth: tuple[int, int]
    width: tuple[int, int]

    def suggest(self, name: str, trial: Trial) -> tuple[int, ...]:
        """The value of a trial: a width for each layer."""
        depth = trial.suggest_int(f"{name}.depth", *self.depth)
        return tuple(
            trial.suggest_int(f"{name}.{layer}", *self.width, log=True) for layer in range(depth)
        )

    def grid(self, name: str) -> Iterator[dict[str, Any]]:
        """A grid of all widths would be endless."""
        raise InputError(
            f"A grid can't list all of {name}={self}. Give it a list of tuples, such as [(64,), "
            "(64, 32)]."
        )

    def check(self, name: str) -> None:
        """Raise if there are no such layers."""
        given: tuple[Any, Any] = (self.depth, self.width)
        for ends in given:
            if not isinstance(ends, Sequence) or len(ends) != 2:
                raise InputError(
                    f"{name}={self}: depth and width are pairs, from and to, such as "
                    "Widths(depth=(1, 3), width=(16, 256))."
                )
        Int(*self.depth).check(f"{name}.depth")
        Int(*self.width, log=True).check(f"{name}.width")
        if self.depth[0] < 0:
            raise InputError(f"{name}={self}: a network can't have {self.depth[0]} hidden layers.")


def check_space(space: Any) -> None:
    """Raise for the first argument that has no possible value.

    >>> check_space({"learning_rate": Float(0.1, 0.01)})
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: learning_rate=Float(low=0.1, high=0.01, log=False, step=None) ...
    """
    if callable(space):
        return
    if not isinstance(space, Mapping) or not all(isinstance(name, str) for name in space):
        raise InputError(
            "space must be a dict of arguments and what to try for each, or a function of an "
            f"Optuna trial. Received: {space!r}"
        )
    for name, one in _ranges(space):
        one.check(name)


def suggest(space: Space, trial: Trial, prefix: str = "") -> dict[str, Any]:
    """The arguments of a trial."""
    if callable(space):
        found = space(trial)
        if not isinstance(found, Mapping):
            raise InputError(
                "The function that is the space must return a dict of arguments. It returned: "
                f"{found!r}"
            )
        return dict(found)
    chosen: dict[str, Any] = {}
    for name, one in space.items():
        given = _as_range(one)
        if given is None:
            chosen[name] = one
            continue
        chosen[name] = given.suggest(prefix + name, trial)
        if isinstance(given, Choice) and given.spaces:
            own = given.spaces[chosen[name]]
            chosen |= suggest(own, trial, f"{prefix}{chosen[name]}.")
    return chosen


def grid_of(space: Space, prefix: str = "") -> list[dict[str, Any]]:
    """All combinations, as Optuna's parameters.

    >>> grid_of({"x": [1, 2], "y": Choice({"a": {}, "b": {"z": Int(0, 1)}}), "w": 7})
    [{'x': 1, 'y': 'a'}, {'x': 1, 'y': 'b', 'b.z': 0}, {'x': 1, 'y': 'b', 'b.z': 1}, ...
    """
    if callable(space):
        raise InputError("A grid needs a space that is a dict, not a function of a trial.")
    parts = [list(one.grid(prefix + name)) for name, one in _ranges(space)]
    return [{k: v for part in parts for k, v in part.items()} for parts in product(*parts)]


def params_of(space: Space, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that somebody lists, as Optuna's parameters.

    >>> params_of({"x": Float(0, 1), "hidden": [(8,), (8, 4)]}, {"x": 0.5, "hidden": (8, 4)})
    {'x': 0.5, 'hidden': '(8, 4)'}
    >>> params_of({"y": Choice({"a": {}, "b": {"z": Int(0, 1)}})}, {"y": "b", "z": 1})
    {'y': 'b', 'b.z': 1}
    """
    if callable(space):
        raise InputError("Listed trials need a space that is a dict, not a function of a trial.")
    params, names = _listed(space, arguments, "")
    if set(arguments) != names:
        raise InputError(
            f"A listed trial has {sorted(arguments)}, but the space has {sorted(names)} for it, "
            "each of which it needs, and no others."
        )
    return params


def _listed(
    space: Mapping[str, Any], arguments: Mapping[str, Any], prefix: str
) -> tuple[dict[str, Any], set[str]]:
    """The parameters of a listed trial, and which arguments it needs by what it chooses."""
    params: dict[str, Any] = {}
    names: set[str] = set()
    for name, one in _ranges(space):
        if isinstance(one, Widths):
            raise InputError(f"A listed trial can't say {name}={one}: list tuples of widths.")
        names.add(name)
        if name not in arguments:
            continue
        params[prefix + name] = _param(one, arguments[name])
        if isinstance(one, Choice) and one.spaces:
            chosen = arguments[name]
            more, needed = _listed(one.spaces[chosen], arguments, f"{prefix}{chosen}.")
            params, names = params | more, names | needed
    return params, names


def _param(one: Range, value: Any) -> Any:
    if not isinstance(one, Choice):
        return value
    for known, label in zip(one.values, one.labels, strict=True):
        if known is value or (type(known) is type(value) and bool(known == value)):
            return label
    raise InputError(f"A listed trial has {value!r}, which is none of {one}.")


def names_of(space: Space) -> set[str] | None:
    """All arguments that a trial may have; None where only trying tells.

    >>> sorted(names_of({"x": [1], "y": Choice({"a": {}, "b": {"z": Int(0, 1)}})}))
    ['x', 'y', 'z']
    """
    if callable(space):
        return None
    names = set(space)
    for _, one in _ranges(space):
        if isinstance(one, Choice):
            for inner in one.spaces.values():
                names |= names_of(inner) or set()
    return names


def describe_space(space: Space) -> str:
    """A space in words that are the same in every process.

    >>> describe_space({"x": [1, 2]})
    "{'x': [1, 2]}"
    """
    text = f"function {getattr(space, '__name__', '')}" if callable(space) else repr(dict(space))
    return _ADDRESS.sub("", text)


class _Distribution:
    """A distribution of Optuna's own."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def suggest(self, name: str, trial: Trial) -> Any:
        return trial._suggest(name, self._given)

    def grid(self, name: str) -> Iterator[dict[str, Any]]:
        choices = getattr(self._given, "choices", None)
        if choices is None:
            raise InputError(f"A grid can't list all values of {name}. Give it a list of values.")
        yield from ({name: value} for value in choices)

    def check(self, name: str) -> None:
        """Optuna has checked it."""


Range = Float | Int | Choice | Widths | _Distribution


def _ranges(space: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    for name, one in space.items():
        given = _as_range(one)
        if given is not None:
            yield name, given


def _as_range(one: Any) -> Range | None:
    """What a value of the dict lets choose; None: it is a constant."""
    if isinstance(one, Float | Int | Choice | Widths):
        return one
    if isinstance(one, list):
        return Choice.of(one)
    if type(one).__module__ == "optuna.distributions":
        return _Distribution(one)
    return None


def _check_range(name: str, one: Float | Int) -> None:
    ends: tuple[Any, Any] = (one.low, one.high)
    if not all(isinstance(end, Real) for end in ends):
        raise InputError(f"{name}={one}: low and high must be numbers.")
    if one.low > one.high:
        raise InputError(f"{name}={one} has no value: low is above high.")
    if one.log and one.low <= 0:
        raise InputError(f"{name}={one}: with log=True, low must be above 0.")


def _labels(values: Sequence[Any]) -> tuple[Any, ...]:
    """What Optuna stores for each value: itself, or a text where it isn't simple."""
    if all(isinstance(value, _SIMPLE) for value in values):
        return tuple(values)
    texts = [value if isinstance(value, str) else _text(value) for value in values]
    return tuple(
        text if texts.count(text) == 1 else f"{number}: {text}" for number, text in enumerate(texts)
    )


def _text(value: Any) -> str:
    text = getattr(value, "__name__", None) or " ".join(_ADDRESS.sub("", repr(value)).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
