"""Bad input under both names: Farandole's InputError, and what pyspark's users catch.

The core raises InputError and imports no pyspark. What a user of pyspark.ml calls directly (fit,
transform, a param that is set) raises an error that is a pyspark.errors.IllegalArgumentException
as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyspark.errors import IllegalArgumentException, PySparkException

from farandole.errors import InputError
from farandole.tracebacks import short_traceback

P = ParamSpec("P")
R = TypeVar("R")


def illegal_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """A decorator: an InputError that leaves the call is an IllegalArgumentException too.

    >>> @illegal_arguments
    ... def half(number):
    ...     raise InputError(f"number must be even. Received: number={number}")
    >>> try:
    ...     half(3)
    ... except IllegalArgumentException as error:
    ...     print(isinstance(error, InputError), error)
    True number must be even. Received: number=3
    """

    @short_traceback
    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except InputError as error:
            if isinstance(error, PySparkException):
                raise
            raise as_illegal_argument(error).with_traceback(error.__traceback__) from (
                error.__cause__
            )

    return called


C = TypeVar("C", bound=type)


def entry_points(*names: str) -> Callable[[C], C]:
    """A class decorator, for methods that pyspark.ml has: as `illegal_arguments` for our own."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, illegal_arguments(getattr(cls, name)))
        return cls

    return decorate


def as_illegal_argument(error: InputError) -> InputError:
    """The same error, of a class that is both."""
    kind = _both(type(error))
    made = kind.__new__(kind, *error.args)
    PySparkException.__init__(made, message=str(error))  # type: ignore[arg-type]
    made.__dict__.update(error.__dict__)
    return made


_made: dict[type[InputError], type[InputError]] = {}


def _both(kind: type[InputError]) -> type[InputError]:
    """A subclass of an InputError's class and of pyspark's, under the name of the first."""
    if kind not in _made:
        _made[kind] = _make_both(kind)
    return _made[kind]


def _make_both(kind: type[InputError]) -> type[InputError]:
    def reduce(self: InputError) -> tuple[Any, ...]:
        return as_illegal_argument, (kind(*self.args),)

    def text(self: InputError) -> str:
        return kind.__str__(self)

    names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    methods = {"__reduce__": reduce, "__str__": text}
    return type(kind.__name__, (kind, IllegalArgumentException), {**names, **methods})
