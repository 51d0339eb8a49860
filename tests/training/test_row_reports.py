from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.artifact import Head
from farandole.data import Columns
from farandole.data.columns import BadRows
from farandole.data.shards import Shard
from farandole.errors import InputError
from farandole.training import losses
from farandole.training.row_reports import RowReport, check_labels, merge_reports, raise_for


def with_heads(loss: Any, *widths: int) -> losses.Loss:
    """The loss with a head for each output of so many values."""
    found = losses.resolve(loss)
    heads = [
        losses.TrainedHead(Head(kind=(part and part.head) or "identity", outputs=width), number)
        for number, width in enumerate(widths)
        for part in [found.part_of(number)]
    ]
    return replace(found, heads=tuple(heads))


def report(rows: int = 1, *problems: BadRows, **shapes: tuple[int, ...]) -> RowReport:
    return RowReport(rows, shapes, dict.fromkeys(shapes, "float32"), list(problems))


def test_workers_without_rows_have_no_say() -> None:
    together = merge_reports([RowReport(0, {}, {}, []), report(3, x=(2,)), report(4, x=(2,))])
    assert (together.rows, together.shapes) == (7, {"x": (2,)})


def test_no_rows_anywhere() -> None:
    with pytest.raises(InputError, match="the data set is empty"):
        merge_reports([RowReport(0, {}, {}, [])] * 2)


def test_sizes_that_differ_between_workers() -> None:
    with pytest.raises(InputError, match=r"'x': 5 rows have another size \(shape \(3,\)"):
        merge_reports([report(4, x=(2,)), report(5, x=(3,))])


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
    found = check_labels(shard(y=labels), Columns((), ("y",)), with_heads(loss, 3))
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
    found = check_labels(shard(y=labels), Columns((), ("y",)), with_heads(loss, 3))
    assert found.problems == []
    assert len(found.classes) != 1


def test_each_label_is_held_against_its_own_output() -> None:
    table = shard(a=[0, 4], b=[1, 4], c=[9.0, -9.0])
    columns = Columns((), ("a", "b", "c"))
    loss = with_heads(["cross_entropy", "cross_entropy", "mse"], 5, 2, 1)
    found = check_labels(table, columns, loss)
    with pytest.raises(InputError, match=r"Column 'b': 1 row has a label outside of 0 … 1") as e:
        raise_for(found.problems)
    assert "'a'" not in str(e.value)


def test_weighted_classes_are_no_probabilities() -> None:
    table, columns = shard(y=[0.0, 1.0, 0.3]), Columns((), ("y",))
    loss = with_heads("binary_cross_entropy", 1)
    assert not check_labels(table, columns, loss).problems
    found = check_labels(table, columns, loss, weighted=True)
    with pytest.raises(InputError, match=r"1 row has no class, 0 or 1.*example 0.3"):
        raise_for(found.problems)


def test_negative_weights() -> None:
    columns = Columns((), ("y",), weight="w")
    found = check_labels(shard(y=[0.0, 0, 0], w=[1, -2, -3]), columns, with_heads("mse", 1))
    with pytest.raises(InputError, match=r"Column 'w': 2 rows have a negative weight.*example -2"):
        raise_for(found.problems)


def facts(rows: int, shape: tuple[int | None, ...], few: int, many: int) -> RowReport:
    return RowReport(rows, {"x": shape}, {"x": "float32"}, [], {"x": ((few,), (many,))})


def test_workers_without_elements_learn_their_shape_from_the_others() -> None:
    empty, full = facts(2, (None,), 0, 0), facts(3, (None, 4), 1, 9)
    for reports in ([empty, full], [full, empty], [empty, facts(1, (None, 4), 7, 7), full]):
        together = merge_reports(reports)
        assert together.shapes == {"x": (None, 4)}
        assert together.sizes == {"x": ((0,), (9,))}
    assert merge_reports([empty, empty]).shapes == {"x": (None,)}
    with pytest.raises(InputError, match=r"\(None, 5\) where other rows have \(None, 4\)") as e:
        merge_reports([empty, full, facts(2, (None, 5), 1, 1)])
    assert "ragged_axes" not in str(e.value)


def test_sizes_that_vary_come_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"networks.RNN, CNN or GNN, or .* `ragged_axes`"):
        merge_reports([report(4, x=(2,)), report(5, x=(3,))])
    with pytest.raises(InputError, match=r"networks.RNN, CNN or GNN, or .* `ragged_axes`"):
        raise_for([BadRows("x", "another size", 3, "2 where", "size")])
    with pytest.raises(InputError) as caught:
        raise_for([BadRows("x", "null", 3, "row 1", "null")])
    assert "ragged_axes" not in str(caught.value)
