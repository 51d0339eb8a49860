"""Numbers that an embedding can't look up: which column they come from, and what to do about it.

torch says "index out of range in self", or names a scalar type, and no column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import BadRows, Shard, lists_containing
from farandole.errors import InputError
from farandole.networks import evaluation_mode
from farandole.ragged import Ragged

_Call = tuple[str, Any, torch.Tensor]


def has_embeddings(network: nn.Module) -> bool:
    """Whether it looks numbers up in a table.

    >>> has_embeddings(nn.Sequential(nn.Embedding(3, 2))), has_embeddings(nn.Linear(3, 2))
    (True, False)
    """
    return any(isinstance(one, nn.Embedding | nn.EmbeddingBag) for one in network.modules())


def embedding_refusal(
    network: nn.Module, features: Sequence[str], shard: Shard, signature: Signature | None = None
) -> InputError | None:
    """Why an embedding of the network can't take these rows; None if that isn't what is wrong.

    Where no `signature` says how the network takes its columns, it gets them one by one or joined.
    """
    columns = {name: shard.take(name, slice(None)) for name in features}
    given = list(columns.values())
    if signature is not None:
        call = _refused(network, signature.arguments(given))
    else:
        call = _refused(network, given)
        if call is None and len(columns) > 1:
            call = _refused(network, _joined(columns))
    if call is None:
        return None
    layer, module, ids = call
    values = {name: _values(column) for name, column in columns.items()}
    if ids.is_floating_point():
        return _fractions(layer, ids, values)
    return _out_of_range(layer, module, ids, values)


def _refused(network: nn.Module, arguments: Sequence[Any]) -> _Call | None:
    """The last embedding that was called before the network failed; None if it doesn't fail."""
    with _calls(network) as calls, evaluation_mode(network):
        try:
            network(*arguments)
        except Exception:
            return calls[-1] if calls else None
    return None


def _joined(columns: Mapping[str, Any]) -> list[torch.Tensor]:
    """All columns in one tensor, as a network gets them that takes only one."""
    if any(isinstance(column, Ragged) for column in columns.values()):
        return []
    flat = [column.reshape(len(column), -1).float() for column in columns.values()]
    return [torch.cat(flat, dim=1)]


def id_problems(
    network: nn.Module, arguments: Sequence[Any], shard: Shard, features: Sequence[str]
) -> list[BadRows]:
    """The rows whose numbers an embedding can't look up, where a column goes right into it."""
    by_name = any(isinstance(one, Mapping) for one in arguments)
    if len(arguments) != len(features) or by_name or not has_embeddings(network):
        return []
    with _calls(network) as calls, evaluation_mode(network):
        network(*arguments)
    places = {_place(_values(one)): name for one, name in zip(arguments, features, strict=True)}
    problems = []
    for layer, module, ids in calls:
        name = places.get(_place(ids))
        if name is None or ids.is_floating_point():
            continue
        numbers = _values(shard.take(name, slice(None)))
        if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= module.num_embeddings):
            problems.append(_bad_ids(name, layer, module, shard, numbers))
    return problems


def _bad_ids(name: str, layer: str, module: Any, shard: Shard, numbers: torch.Tensor) -> BadRows:
    bad = (numbers < 0) | (numbers >= module.num_embeddings)
    if name in shard.ragged:
        lengths = shard.ragged[name].sizes.prod(1).numpy()
        count = int(lists_containing(bad.numpy(), lengths).sum())
    else:
        count = int(bad.reshape(len(bad), -1).any(1).sum())
    problem = f"a number outside of 0 … {module.num_embeddings - 1}, which {_called(layer)} has"
    return BadRows(name, problem, count, str(int(numbers[bad].reshape(-1)[0])), "outside")


@contextmanager
def _calls(network: nn.Module) -> Iterator[list[_Call]]:
    """Notes what embeddings are called with."""
    calls: list[_Call] = []
    handles = [
        module.register_forward_pre_hook(
            lambda one, given, named, name=name: calls.append(
                (name, one, given[0] if given else named["input"])
            ),
            with_kwargs=True,
        )
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _fractions(layer: str, ids: torch.Tensor, columns: Mapping[str, torch.Tensor]) -> InputError:
    found = [name for name, one in columns.items() if _place(one) == _place(ids)]
    names = found or [name for name, one in columns.items() if one.is_floating_point()]
    if len(names) == 1:
        return _fractions_of(names[0], layer, is_number=columns[names[0]].dim() == 1)
    return InputError(
        f"{_called(layer).capitalize()} takes whole numbers, but gets floating-point ones, as "
        f"StringIndexer and VectorAssembler make them ({', '.join(names)}). Give ids as columns of "
        'their own, cast to "int", one argument of forward each.'
    )


def _fractions_of(name: str, layer: str, *, is_number: bool) -> InputError:
    kind = "int" if is_number else "array<int>"
    cast = f'df.withColumn({name!r}, df[{name!r}].cast("{kind}"))'
    if is_number:
        return InputError(
            f"Column {name!r} holds floating-point numbers, as StringIndexer makes them, but "
            f"{_called(layer)} takes whole ones. Cast it: {cast}."
        )
    return InputError(
        f"Column {name!r} holds arrays or vectors of floating-point numbers, but {_called(layer)} "
        f"takes whole ones. Cast an array: {cast}. A vector, as VectorAssembler makes it, has no "
        'others: give ids as columns of their own, cast to "int", one argument of forward each.'
    )


def _out_of_range(
    layer: str, module: Any, ids: torch.Tensor, columns: Mapping[str, torch.Tensor]
) -> InputError | None:
    bad = (ids < 0) | (ids >= module.num_embeddings)
    if not bad.any():
        return None
    value = int(ids[bad].reshape(-1)[0])
    same = [name for name, one in columns.items() if _place(one) == _place(ids)]
    names = same or [name for name, one in columns.items() if bool((one == value).any())]
    where = " or ".join(repr(name) for name in names) or "a feature"
    return InputError(
        f"Column {where} has the value {value}, but {_called(layer)} has rows for 0 … "
        f"{module.num_embeddings - 1} only (num_embeddings={module.num_embeddings}). Make it as "
        "large as there are values, or map the values to that range."
    )


def _called(layer: str) -> str:
    return f"the network's embedding {layer!r}" if layer else "the network, an embedding,"


def _values(column: Any) -> torch.Tensor:
    values: torch.Tensor = column.values if isinstance(column, Ragged) else column
    return values


def _place(values: torch.Tensor) -> tuple[int, int]:
    """Where the numbers are in memory: what has the same place is the same."""
    return values.data_ptr(), values.numel()
