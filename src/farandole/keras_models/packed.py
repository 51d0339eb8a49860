"""Packed: a Keras loss, metric or optimizer as its config, to be made again on each worker."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from farandole.errors import InputError
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.custom_objects import custom_definitions


@dataclass(frozen=True)
class Packed:
    """A Keras object, or a function that stands for one; without its state.

    >>> keras = require_torch_backend()
    >>> Packed.of(keras.optimizers.SGD(0.5), "optimizer").made().get_config()["learning_rate"]
    0.5
    """

    config: Any
    objects: Mapping[str, Any] = field(default_factory=dict)
    """The user's own classes, by their names in the config."""
    function: Any = None
    """A function of the user's: it goes as it is."""

    @classmethod
    def of(cls, value: Any, what: str) -> Packed:
        """Pack an object; raises for one that Keras can't describe by a config."""
        if not hasattr(value, "get_config"):
            return cls(None, function=value)
        keras = require_torch_backend()
        try:
            config = keras.saving.serialize_keras_object(value)
        except Exception as error:
            raise _unsendable(value, what, str(error)) from error
        packed = cls(config, custom_definitions([value, *vars(value).values()]))
        if not _is_kerass(type(value)):
            _check_config(packed, value, what)
        return packed

    def made(self) -> Any:
        """Make a new one."""
        if self.config is None:
            return self.function
        keras = require_torch_backend()
        with trusted(self.objects):
            return keras.saving.deserialize_keras_object(self.config, safe_mode=False)


def _check_config(packed: Packed, value: Any, what: str) -> None:
    """Raise if the config of a user's class forgets arguments, or makes no object again.

    Keras's own get_config, which a class inherits, has none of what the class adds.
    """
    forgotten = [name for name in _own_arguments(type(value)) if name not in value.get_config()]
    if forgotten:
        raise _unsendable(value, what, f"its config has no {', '.join(forgotten)}.")
    try:
        packed.made()
    except Exception as error:  # whatever the user's constructor raises
        raise _unsendable(value, what, f"its config doesn't make it again: {error}") from error


def _own_arguments(kind: type) -> list[str]:
    """What a constructor takes besides what the class of Keras's behind it takes."""
    bases: tuple[Any, ...] = kind.__mro__
    from_config = next(one for one in bases if "from_config" in vars(one))
    if not _is_kerass(from_config):  # it may call arguments what it likes
        return []
    theirs = inspect.signature(next(one for one in bases if _is_kerass(one)).__init__).parameters
    own = inspect.signature(bases[0].__init__).parameters.values()
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in own if one.name not in theirs and one.kind not in any_number]


def _is_kerass(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


def _unsendable(value: Any, what: str, why: str) -> InputError:
    return InputError(
        f"The {what} {type(value).__name__} can't be sent to workers: {why.rstrip('.')}. Give its "
        "class a get_config() that returns the arguments of its constructor."
    )


@contextmanager
def trusted(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let Keras make objects of a config that this program has written itself."""
    keras = require_torch_backend()
    from keras.src.saving.serialization_lib import SafeModeScope

    with keras.saving.custom_object_scope(dict(objects)), SafeModeScope(False):
        yield
