from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from farandole.data import shards
from farandole.data.schema import KEY
from farandole.data.shard_writer import Storage, write_shard
from farandole.ragged import Ragged


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = {name: pa.array(values) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    return pa.RecordBatch.from_pydict({**arrays, KEY: pa.array(np.arange(rows))})


def files_in(folder: Path) -> list[str]:
    """Open files that were in a folder, deleted ones too."""
    links = [os.readlink(fd.path) for fd in os.scandir("/proc/self/fd") if os.path.islink(fd.path)]
    return [link for link in links if link.startswith(str(folder))]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/not/there,{tmp_path}")
    return tmp_path


def test_batches_come_back_as_tensors_of_their_own_type() -> None:
    big = 2**53 + 1
    one = batch(x=[[1.0, 2.0]], i=[big], b=[True])
    two = batch(x=[[3.0, 4.0], [5.0, 6.0]], i=[1, 2], b=[False, True])
    empty = one.slice(0, 0)
    shard = write_shard([empty, one, empty, two], ("x", "i", "b"), Storage("float32"))
    assert len(shard) == 3
    assert shard.columns["x"].dtype == torch.float32
    assert shard.columns["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert shard.columns["i"].dtype == torch.int64
    assert shard.columns["i"].tolist() == [big, 1, 2]
    assert shard.columns["b"].dtype == torch.bool
    shard.close()


WORDS = [[1.0, 2.0, 3.0], [], [4.0], [5.0, 6.0]]
SPANS = [[[1, 2]], [], [[3, 4], [5, 6]], []]


def test_rows_of_different_sizes_come_back_in_any_order() -> None:
    one, two = batch(x=WORDS[:2], y=SPANS[:2]), batch(x=WORDS[2:], y=SPANS[2:])
    shard = write_shard([one, two], ("x", "y"), Storage("float64", {"x": 1, "y": 1}))
    assert (len(shard), shard.problems) == (4, [])
    assert (shard.shape("x"), shard.shape("y")) == ((None,), (None, 2))
    for numbers in ([0, 1, 2, 3], [3, 0], [1], [2, 2], []):
        words = shard.take("x", torch.tensor(numbers, dtype=torch.int64))
        assert isinstance(words, Ragged)
        assert words.values.tolist() == [word for n in numbers for word in WORDS[n]]
        assert words.lengths.tolist() == [len(WORDS[n]) for n in numbers]
    spans = shard.take("y", slice(1, 4))
    assert isinstance(spans, Ragged)
    assert spans.values.tolist() == [[3, 4], [5, 6]]
    assert spans.values.dtype == torch.int64
    shard.close()


def test_rows_without_any_element() -> None:
    nested = pa.list_(pa.list_(pa.int16()))
    empty = pa.record_batch({"x": pa.array([[], []], nested), KEY: pa.array([0, 1])})
    full = pa.record_batch({"x": pa.array([[[1, 2]]], nested), KEY: pa.array([2])})
    storage = Storage(axes={"x": 1})
    for batches, shape in (([], ()), ([empty], ()), ([empty, full], (2,)), ([full, empty], (2,))):
        shard = write_shard(batches, ("x",), storage)
        column = shard.ragged["x"]
        assert column.values.shape[1:] == shape
        assert column.sizes.shape == (len(shard), 1)
        assert not batches or column.values.dtype == torch.int16
        shard.close()


def test_problems_of_rows_that_differ_in_size_count_rows() -> None:
    batches = [
        batch(x=[[[1.0, 2.0]], [[np.nan, np.nan], [np.inf, 0.0]], []]),
        batch(x=[[[1.0, 2.0, 3.0]] * 3, []]),
        batch(x=[[[1e300, 0.0], [0.0, 1e300]], None]),
        batch(x=[[[1e300, 0.0], [0.0, 1e300]]]),
    ]
    shard = write_shard(batches, ("x",), Storage(axes={"x": 1}))
    assert {bad.problem: bad.count for bad in shard.problems} == {
        "NaN or infinite values": 1,
        "another size": 1,
        "null": 1,
        "values too large for float32": 1,
    }
    assert {bad.kind for bad in shard.problems} == {"not finite", "", "null"}
    shard.close()


def test_a_slice_of_a_column_is_a_view() -> None:
    shard = write_shard([batch(x=[1.0, 2.0, 3.0])], ("x",), Storage())
    part = shard.take_tensor("x", slice(1, 3))
    assert part.tolist() == [2, 3]
    assert part.data_ptr() == shard.columns["x"].data_ptr() + 4
    shard.close()


def test_floating_point_columns_take_the_precision_of_the_network() -> None:
    third = 1 / 3
    for floating in ("float32", "float64"):
        shard = write_shard([batch(x=[third])], ("x",), Storage(floating))
        assert shard.columns["x"].numpy()[0] == np.dtype(floating).type(third)
        shard.close()


def test_problems_are_added_up_over_batches() -> None:
    batches = [
        batch(x=[[1.0, 2.0]], y=[1.0]),
        batch(x=[[1.0, 2.0, 3.0]] * 4, y=[np.inf, 0.0, 0.0, np.inf]),
        batch(x=[[1.0]] * 2, y=[None, -np.inf]),
        batch(x=[[1.0, 2.0], [1.0]], y=[1e300, 1.0]),
    ]
    shard = write_shard(batches, ("x", "y"), Storage())
    found = {(bad.column, bad.problem): bad.count for bad in shard.problems}
    assert found == {
        ("x", "another size"): 7,
        ("y", "NaN or infinite values"): 2,
        ("y", "null"): 1,
        ("y", "values too large for float32"): 1,
    }
    shard.close()


def test_columns_of_numbers_share_a_file(scratch: Path) -> None:
    names = [f"c{number}" for number in range(100)]
    numbers = {name: [n + 0.5, n - 0.5] for n, name in enumerate(names)}
    rows = batch(**numbers, i=[1, 2], v=[[1.0], [2.0]], b=[True, False], j=[3, 4])
    shard = write_shard([rows, rows], [*names, "i", "v", "b", "j"], Storage())
    assert list(shard.columns) == [*names, "i", "v", "b", "j"]
    assert len(files_in(scratch)) == 4  # of float64, int64, lists and booleans
    for n, name in enumerate(names):
        assert shard.columns[name].tolist() == [n + 0.5, n - 0.5] * 2
        assert shard.take_tensor(name, torch.tensor([3, 0])).tolist() == [n - 0.5, n + 0.5]
    assert shard.columns["i"].dtype == torch.int64
    assert shard.columns["j"].tolist() == [3, 4, 3, 4]
    assert shard.columns["b"].tolist() == [True, False, True, False]
    assert shard.nbytes == 4 * (100 * 4 + 8 + 4 + 1 + 8)
    shard.close()


def test_a_problem_of_one_column_leaves_its_neighbours_alone() -> None:
    one, two = batch(x=[1.0, None], y=[3.0, np.nan]), batch(x=[5.0, 6.0], y=[7.0, 1e300])
    shard = write_shard([one, two], ("y", "x"), Storage())
    found = [(bad.column, bad.kind, bad.count) for bad in shard.problems]
    assert found == [("y", "not finite", 1), ("y", "", 1), ("x", "null", 1)]
    assert shard.columns["x"].tolist() == [0, 0, 5, 6]
    assert shard.columns["y"][[0, 2]].tolist() == [3, 7]
    shard.close()


def test_files_have_no_name_and_are_closed(scratch: Path) -> None:
    shard = write_shard([batch(x=[1.0, 2.0])], ("x",), Storage())
    assert files_in(scratch)
    assert list(scratch.iterdir()) == []
    shard.close()
    del shard
    assert files_in(scratch) == []


def test_a_source_that_fails_half_way_leaves_nothing(scratch: Path) -> None:
    def batches() -> Any:
        yield batch(x=[1.0])
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_shard(batches(), ("x",), Storage())
    assert list(scratch.iterdir()) == []
    assert files_in(scratch) == []


def test_a_killed_process_leaves_nothing(scratch: Path) -> None:
    script = """if True:
        import os, signal, pyarrow as pa
        from farandole.data.schema import KEY
        from farandole.data.shard_writer import Storage, write_shard
        rows = pa.RecordBatch.from_pydict({"x": [1.0] * 1000, KEY: range(1000)})
        shard = write_shard([rows], ("x",), Storage())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    assert list(scratch.iterdir()) == []


def mapped_bytes(folder: Path) -> int:
    """The resident pages of files in a folder that this process has mapped, and of no others."""
    maps = psutil.Process().memory_maps(grouped=False)
    return sum(one.rss for one in maps if one.path.startswith(str(folder)))


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("rows", [torch.tensor([0, 1]), slice(0, 2)], ids=["numbers", "slice"])
def test_mapped_pages_are_given_back(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, vary: bool, rows: torch.Tensor | slice
) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(8 << 20, np.float32)), 1 << 10)
    table = pa.RecordBatch.from_pydict({"x": lists, KEY: pa.array(np.arange(len(lists)))})
    shard = write_shard([table], ("x",), Storage(axes={"x": 1} if vary else {}))
    everything = shard.ragged["x"].values if vary else shard.columns["x"]
    assert everything.sum() == 8 << 20  # touches all 32 MB
    whole = mapped_bytes(scratch)
    assert whole >= 32 << 20

    def total() -> float:
        taken = shard.take("x", rows)
        return float((taken.values if isinstance(taken, Ragged) else taken).sum())

    assert total() == 2 << 10
    assert mapped_bytes(scratch) > whole - (4 << 20), "below the limit: kept"
    monkeypatch.setattr(shards, "RESIDENT_LIMIT", 1 << 20)
    assert total() == 2 << 10
    assert mapped_bytes(scratch) < 4 << 20
    assert everything.sum() == 8 << 20  # what was given back is still there
    shard.close()


def test_what_numpy_has_no_type_for_is_kept_in_single_precision() -> None:
    shard = write_shard([batch(x=[1 / 3])], ("x",), Storage("bfloat16"))
    assert shard.columns["x"].numpy()[0] == np.float32(1 / 3)
    shard.close()


def test_columns_that_stand_side_by_side_are_taken_together() -> None:
    numbers = np.arange(40.0).reshape(10, 4)
    batch = pa.RecordBatch.from_pydict(
        {**{name: numbers[:, i] for i, name in enumerate("abcd")}, "n": range(10), KEY: range(10)}
    )
    shard = write_shard([batch], ("a", "b", "c", "d", "n"), Storage())
    rows = torch.tensor([7, 2])
    for names in (("a", "b", "c", "d"), ("b", "c")):
        joined = shard.take_joined(names, rows)
        assert joined is not None
        assert joined.is_contiguous()
        assert joined.tolist() == numbers[[7, 2]][:, ["abcd".index(n) for n in names]].tolist()
    for names in (("a", "c"), ("b", "a"), ("d", "n"), ("n",)):
        assert shard.take_joined(names, rows) is None
    shard.close()


def test_columns_that_share_a_file_can_t_change_their_type() -> None:
    one, two = batch(x=[1, 2], y=[3, 4]), batch(x=[1, 2], y=[0.5, 1.5])
    with pytest.raises(TypeError, match="float64 came after rows of int64"):
        write_shard([one, two], ("x", "y"), Storage("float32"))
