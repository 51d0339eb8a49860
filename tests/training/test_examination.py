from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.data import Columns
from farandole.data.columns import BadRows
from farandole.data.shards import Shard
from farandole.errors import InputError
from farandole.ragged import Ragged
from farandole.training import losses
from farandole.training.examination import (
    Report,
    check_reports,
    examine_labels,
    raise_for,
    rehearse,
    sign,
    storage_for,
    zero_rows,
)
from farandole.training.step import Batcher, Stepper


def report(rows: int = 1, *problems: BadRows, **shapes: tuple[int, ...]) -> Report:
    return Report(rows, shapes, dict.fromkeys(shapes, "float32"), list(problems))


def test_workers_without_rows_have_no_say() -> None:
    together = check_reports([Report(0, {}, {}, []), report(3, x=(2,)), report(4, x=(2,))])
    assert (together.rows, together.shapes) == (7, {"x": (2,)})


def test_no_rows_anywhere() -> None:
    with pytest.raises(InputError, match="the data set is empty"):
        check_reports([Report(0, {}, {}, [])] * 2)


def test_sizes_that_differ_between_workers() -> None:
    with pytest.raises(InputError, match=r"'x': 5 rows have another size \(shape \(3,\)"):
        check_reports([report(4, x=(2,)), report(5, x=(3,))])


def test_problems_of_all_workers_are_added_up_by_column_and_kind() -> None:
    with pytest.raises(InputError) as caught:
        raise_for(
            [
                BadRows("x", "null", 1000, "row 3"),
                BadRows("x", "null", 234, "row 1"),
                BadRows("y", "null", 1, "row 0"),
            ]
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "Column 'x': 1,234 rows have null (for example row 3)."
    assert lines[1] == "Column 'y': 1 row has null (for example row 0)."


class Takes(nn.Module):
    """Notes the types and shapes that it is given."""

    def __init__(self, *kinds: type[nn.Module]) -> None:
        super().__init__()
        self.seen: list[tuple[torch.dtype, tuple[int, ...]]] = []
        self.weight = nn.Parameter(torch.ones(1))

    def note(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.seen = [(x.dtype, tuple(x.shape)) for x in inputs]
        return inputs[0].reshape(len(inputs[0]), -1).float()[:, :1] * self.weight


class Two(Takes):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.note(a, b)


class Any_(Takes):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.note(*inputs)


def signed(network: nn.Module, **columns: tuple[tuple[int, ...], str]) -> Any:
    facts = Report(
        9,
        {name: shape for name, (shape, _) in columns.items()},
        {name: dtype for name, (_, dtype) in columns.items()},
        [],
    )
    return sign(network, Columns(tuple(columns), ("y",)), facts, losses.resolve("mse"))[0]


def test_several_columns_are_positional_arguments() -> None:
    for network in (Two(), Any_()):
        signature = signed(network, ids=((), "int64"), x=((3,), "float32"))
        assert network.seen == [(torch.int64, (2,)), (torch.float32, (2, 3))]
        assert (signature.stacked, signature.floated) == (False, False)


def test_several_columns_are_joined_for_a_network_with_one_argument() -> None:
    signature = signed(nn.Linear(5, 2), a=((), "int64"), b=((3,), "float32"), c=((), "bool"))
    assert signature.stacked
    assert signature.outputs == 2


def test_integers_reach_an_embedding_as_integers_and_a_linear_layer_as_floats() -> None:
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten())
    assert not signed(embedding, ids=((2,), "int64")).floated
    assert signed(nn.Linear(2, 1), ids=((2,), "int64")).floated
    assert signed(nn.Linear(1, 1), x=((), "uint8")).floated


def test_a_single_scalar_column_is_a_column_for_a_linear_layer() -> None:
    assert signed(nn.Linear(1, 1), x=((), "float32")).stacked
    assert not signed(Any_(), x=((), "float32")).stacked


def test_a_size_that_the_network_does_not_take() -> None:
    with pytest.raises(InputError, match=r"'x' with shape \(3,\) of float32.*first layer"):
        signed(nn.Linear(4, 1), x=((3,), "float32"))


def shard(**columns: Any) -> Shard:
    arrays = {name: torch.as_tensor(np.asarray(value)) for name, value in columns.items()}
    return Shard(arrays, np.arange(len(next(iter(arrays.values())))))


@pytest.mark.parametrize(
    ("loss", "labels", "complaint"),
    [
        ("cross_entropy", [0, 1, 3, 4], "2 rows have a label outside of 0 … 2.*example 3"),
        ("cross_entropy", [0, -1, 2, 0], "1 row has a label outside of 0 … 2.*example -1"),
        ("cross_entropy", [0.5, 1.0, 2.0, 1.5], "2 rows have a fractional label.*example 0.5"),
        ("nll", [3, 0, 0, 0], "1 row has a label outside"),
        (nn.CrossEntropyLoss(), [3, 0, 0, 0], "1 row has a label outside"),
        ("cross_entropy", [[0, 1], [1, 5], [0, 0], [0, 0]], "1 row has a label.*example 5"),
        ("binary_cross_entropy", [0, 1, 2, -1], "2 rows have a label outside of 0 … 1.*2"),
    ],
)
def test_labels_that_a_classifier_can_not_learn(loss: Any, labels: Any, complaint: str) -> None:
    found = examine_labels(shard(y=labels), Columns((), ("y",)), losses.resolve(loss), [3])
    with pytest.raises(InputError, match=f"Column 'y': {complaint}"):
        raise_for(found.problems)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("mse", [-1.5, 7.0]),
        ("binary_cross_entropy", [0.0, 0.3]),
        ("cross_entropy", [[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]]),
        ("cross_entropy", [2.0, 1.0]),
        (lambda output, target: output.sum(), [-7, 99]),
    ],
)
def test_labels_that_are_fine(loss: Any, labels: Any) -> None:
    found = examine_labels(shard(y=labels), Columns((), ("y",)), losses.resolve(loss), [3])
    assert found.problems == []
    assert len(found.classes) != 1


def test_each_label_is_held_against_its_own_output() -> None:
    table = shard(a=[0, 4], b=[1, 4], c=[9.0, -9.0])
    columns = Columns((), ("a", "b", "c"))
    loss = losses.resolve(["cross_entropy", "cross_entropy", "mse"])
    found = examine_labels(table, columns, loss, [5, 2, 1])
    with pytest.raises(InputError, match=r"Column 'b': 1 row has a label outside of 0 … 1") as e:
        raise_for(found.problems)
    assert "'a'" not in str(e.value)


def test_weighted_classes_are_no_probabilities() -> None:
    table, columns = shard(y=[0.0, 1.0, 0.3]), Columns((), ("y",))
    loss = losses.resolve("binary_cross_entropy")
    assert not examine_labels(table, columns, loss, [1]).problems
    found = examine_labels(table, columns, loss, [1], weighted=True)
    with pytest.raises(InputError, match=r"1 row has no class, 0 or 1.*example 0.3"):
        raise_for(found.problems)


def test_negative_weights() -> None:
    columns = Columns((), ("y",), weight="w")
    found = examine_labels(shard(y=[0.0, 0, 0], w=[1, -2, -3]), columns, losses.resolve("mse"), [1])
    with pytest.raises(InputError, match=r"Column 'w': 2 rows have a negative weight.*example -2"):
        raise_for(found.problems)


class Varies(Takes):
    """Takes sequences and a tensor."""

    ragged_axes = (1, 0)

    def forward(self, x: Ragged, y: torch.Tensor) -> torch.Tensor:
        self.given = x
        return self.note(y)


def facts(rows: int, shape: tuple[int | None, ...], few: int, many: int) -> Report:
    return Report(rows, {"x": shape}, {"x": "float32"}, [], {"x": ((few,), (many,))})


def test_workers_without_elements_learn_their_shape_from_the_others() -> None:
    empty, full = facts(2, (None,), 0, 0), facts(3, (None, 4), 1, 9)
    for reports in ([empty, full], [full, empty], [empty, facts(1, (None, 4), 7, 7), full]):
        together = check_reports(reports)
        assert together.shapes == {"x": (None, 4)}
        assert together.sizes == {"x": ((0,), (9,))}
    assert check_reports([empty, empty]).shapes == {"x": (None,)}
    with pytest.raises(InputError, match=r"\(None, 5\) where other rows have \(None, 4\)") as e:
        check_reports([empty, full, facts(2, (None, 5), 1, 1)])
    assert "ragged_axes" not in str(e.value)


def test_sizes_that_vary_come_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"networks.RNN, CNN or GNN, or .* `ragged_axes`"):
        check_reports([report(4, x=(2,)), report(5, x=(3,))])
    with pytest.raises(InputError, match=r"networks.RNN, CNN or GNN, or .* `ragged_axes`"):
        raise_for([BadRows("x", "another size", 3, "2 where", "size")])
    with pytest.raises(InputError) as caught:
        raise_for([BadRows("x", "null", 3, "row 1", "null")])
    assert "ragged_axes" not in str(caught.value)


def test_a_network_is_shown_rows_of_the_sizes_that_there_are() -> None:
    network = Varies()
    about = Report(
        9,
        {"x": (None, 3), "y": (4,), "z": ()},
        {"x": "int64", "y": "float32", "z": "float32"},
        [],
        {"x": ((0,), (7,))},
    )
    columns, loss = Columns(("x", "y"), ("z",)), losses.resolve("mse")
    signature, _ = sign(network, columns, about, loss)
    assert network.given.sizes.tolist() == [[0], [7]]
    assert network.given.values.shape == (7, 3)
    assert signature.shapes == ((None, 3), (4,))
    assert (signature.stacked, signature.floated) == (False, False)
    zeros = zero_rows(about)
    batch = Batcher(zeros, columns, signature, loss, None, "cpu")(torch.arange(2))
    rehearse(network, Stepper(network, loss, "float32", "cpu"), batch, loss)
    assert network.given.sizes.tolist() == [[0], [7]]


def test_columns_are_kept_as_the_network_takes_them() -> None:
    schema = pa.schema([("a", pa.list_(pa.float64())), ("b", pa.float64()), ("y", pa.float64())])
    columns = Columns(("a", "b"), ("y",))
    plain = storage_for(nn.Linear(1, 1).double(), columns, schema)
    assert (plain.floating, plain.axes, plain.gray) == ("float64", {}, False)
    network = Varies()
    assert storage_for(network, columns, schema).axes == {"a": 1}
    network.channels = 1
    assert storage_for(network, columns, schema).gray
    for features, complaint in (
        (("a",), "ragged_axes are for 2 feature columns.*Received 1: a"),
        (("a", "b", "y"), "ragged_axes are for 2 feature columns.*Received 3: a, b, y"),
        (("b", "a"), "'b' holds double, of which 0 axes can vary"),
        (("a", "a"), "can't vary in two ways"),
    ):
        with pytest.raises(InputError, match=complaint):
            storage_for(network, Columns(features, ("y",)), schema)
