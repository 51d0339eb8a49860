from __future__ import annotations

import numpy as np
import pytest
import torch

from farandole.data import chunking as module
from farandole.data.chunking import RowSizes, chunk_rows
from farandole.data.loader import Loader, Rows
from farandole.data.mapped_array import RaggedColumn
from farandole.data.order import VIRTUAL_SHARDS
from farandole.data.shards import Shard
from farandole.ragged import Ragged


def test_no_chunk_is_too_large_and_none_could_take_another_row() -> None:
    sizes = np.random.default_rng(0).integers(0, 4000, (500, 2))
    columns = [RowSizes(sizes, width=3), RowSizes.of_one_size(500, (8, 90_000))]

    def padded(first: int, stop: int) -> int:
        images = (stop - first) * int(sizes[first:stop].max(0).prod()) * 3
        return max(images, (stop - first) * 720_000)

    parts = list(chunk_rows(columns, max_rows=7))
    rows = [row for part in parts for row in range(part.start, part.stop)]
    assert rows == list(range(500))
    for part in parts:
        count = part.stop - part.start
        assert count == 1 or padded(part.start, part.stop) <= module.PADDED_VALUES
        full = count == 7 or part.stop == 500
        assert full or padded(part.start, part.stop + 1) > module.PADDED_VALUES


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), 1024), ((784,), 1024), ((4096,), 1024), ((224, 224, 3), 27), ((1 << 23,), 1)],
)
def test_rows_of_one_size(shape: tuple[int, ...], expected: int) -> None:
    first = next(chunk_rows([RowSizes.of_one_size(5000, shape)], max_rows=1024))
    assert first == slice(0, expected)


def test_no_rows() -> None:
    assert list(chunk_rows([RowSizes.of_one_size(0, (3,))], max_rows=9)) == []


def test_a_loader_gives_a_long_row_to_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PADDED_VALUES", 100)
    lengths = [3] * 20 + [60] + [3] * 20
    words = RaggedColumn.of(Ragged.of([torch.zeros(length) for length in lengths]))
    keys = np.arange(41)
    shard = Shard({"y": torch.zeros(41)}, keys, ragged={"x": words})
    rows = Rows.of(keys[keys != 5], keys, np.zeros(41, np.int64))
    loader = Loader(shard, rows, rows.sizes, rank=0, size=1, batch_size=4, seed=0)
    assert len(rows.sizes) == VIRTUAL_SHARDS
    parts = [part.tolist() for part in loader.chunks(rows, 1024)]
    assert [row for part in parts for row in part] == [n for n in range(41) if n != 5]
    assert [20] in parts
    assert max(len(part) for part in parts) > 10
