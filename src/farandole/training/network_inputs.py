"""What a network factory is told about its inputs, and the network that it makes of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from torch import nn

from farandole.artifact import Shape
from farandole.data import BadColumn, is_image, to_numpy
from farandole.errors import InputError
from farandole.training.random_states import random_states_kept, seed_everything


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """The feature columns of a data set, for a function that makes a network for them.

    >>> inputs = NetworkInputs(features=("age", "color"), shapes=((), (3,)),
    ...                        dtypes=("int64", "float64"))
    >>> inputs.width
    4
    """

    features: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """The shape of a row of each column: () for a number; (None,) where rows differ in size."""
    dtypes: tuple[str, ...]
    classes: int | None = None
    """How many classes the label has, where its column says so, as that of a StringIndexer does."""

    @property
    def width(self) -> int:
        """How many numbers a row has, in all columns together."""
        sizes = [size for shape in self.shapes for size in shape]
        if None in sizes:
            raise InputError("Rows differ in size, so they have no width: look at shapes.")
        return sum(math.prod(size or 0 for size in shape) for shape in self.shapes)

    @classmethod
    def of(
        cls, rows: pa.RecordBatch, features: Sequence[str], classes: int | None = None
    ) -> NetworkInputs:
        """Described by some rows."""
        described = [_describe(name, rows.column(name)) for name in features]
        shapes, dtypes = zip(*described, strict=True)
        return cls(features=tuple(features), shapes=shapes, dtypes=dtypes, classes=classes)


def _describe(name: str, column: pa.Array) -> tuple[Shape, str]:
    if is_image(column.type):
        return (None, None, 3), "uint8"
    try:
        array = to_numpy(name, column.drop_null())
    except BadColumn:  # rows that differ in size, most often
        return (None,), "float64"
    return tuple(array.shape[1:]), str(array.dtype)


def made_network(factory: Any, inputs: NetworkInputs, seed: int) -> nn.Module:
    """The network that a function makes for these inputs, with random weights of the seed."""
    with random_states_kept():
        seed_everything(seed)
        try:
            network = factory(inputs)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                "network is a function that should make a torch.nn.Module for its inputs "
                f"({inputs}), but it says: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(network, nn.Module):
        raise InputError(
            "network is a function that should make a torch.nn.Module for its inputs. It gave: "
            f"{type(network).__name__}"
        )
    return network
