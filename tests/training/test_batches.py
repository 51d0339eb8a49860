from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from farandole.artifact import Signature
from farandole.data import Columns
from farandole.data.schema import KEY
from farandole.data.shard_writer import Storage, write_shard
from farandole.ragged import Ragged
from farandole.training import losses
from farandole.training.batches import Batcher


def test_a_slice_is_the_same_batch_as_its_row_numbers() -> None:
    table = pa.table({"x": [[1.0], [2.0, 3.0], [], [4.0]], "y": [0, 1, 0, 1], "w": [1, 2, 3, 4.0]})
    keyed = table.append_column(KEY, pa.array(np.arange(4)))
    shard = write_shard(keyed.to_batches(), ("x", "y", "w"), Storage(axes={"x": 1}))
    signature = Signature(
        features=("x",), shapes=((None,),), dtypes=("float32",), head="softmax", outputs=2
    )
    columns = Columns(("x",), ("y",), weight="w")
    batcher = Batcher(shard, columns, signature, losses.resolve("cross_entropy"), [1, 3], "cpu")
    for part, numbers in ((slice(1, 3), [1, 2]), (slice(None), [0, 1, 2, 3]), (slice(2, 2), [])):
        one, other = batcher(part), batcher(torch.tensor(numbers, dtype=torch.int64))
        assert one.rows == other.rows == len(numbers)
        assert one.weight == other.weight
        assert torch.equal(one.targets[0], other.targets[0])
        found, expected = one.arguments[0], other.arguments[0]
        assert isinstance(found, Ragged)
        assert isinstance(expected, Ragged)
        assert torch.equal(found.values, expected.values)
        assert torch.equal(found.sizes, expected.sizes)
    shard.close()
