"""Packed: a Keras loss, metric or optimizer as its config, to be made again on each worker."""

from __future__ import annotations

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
            raise InputError(
                f"The {what} {type(value).__name__} can't be sent to workers: {error} Give its "
                "class a get_config()."
            ) from error
        return cls(config, custom_definitions([value, *vars(value).values()]))

    def made(self) -> Any:
        """Make a new one."""
        if self.config is None:
            return self.function
        keras = require_torch_backend()
        with trusted(self.objects):
            return keras.saving.deserialize_keras_object(self.config, safe_mode=False)


@contextmanager
def trusted(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let Keras make objects of a config that this program has written itself."""
    keras = require_torch_backend()
    from keras.src.saving.serialization_lib import SafeModeScope

    with keras.saving.custom_object_scope(dict(objects)), SafeModeScope(False):
        yield
