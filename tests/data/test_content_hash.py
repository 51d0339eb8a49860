from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from farandole.data.content_hash import content_keys, has_key
from farandole.errors import InputError


def test_a_list_counts_as_its_elements_and_null_as_nothing() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3)
    uneven = pa.concat_arrays(
        [lists.cast(pa.list_(pa.float32())), pa.array([[1.0, None]], pa.list_(pa.float32()))]
    )
    apart = content_keys([pa.array(column) for column in rows.T])
    assert content_keys([lists]).tolist() == apart.tolist()
    assert content_keys([uneven])[:4].tolist() == apart.tolist()
    assert content_keys([uneven])[4] == content_keys([pa.array([1.0], pa.float32())])[0]


def test_batches_make_no_difference() -> None:
    texts = pa.array([("é" * (number % 40)) for number in range(5000)])
    whole = content_keys([texts])
    assert content_keys([texts.slice(4321)]).tolist() == whole[4321:].tolist()


def test_what_can_t_be_hashed_is_said() -> None:
    with pytest.raises(InputError, match=r"duration\[s\] can't be hashed"):
        content_keys([pa.array([1], pa.duration("s"))])


ONE_OF_EACH = [
    pa.array([True]),
    pa.array([1], pa.uint8()),
    pa.array([1.5], pa.float16()),
    pa.array(["a"]),
    pa.array(["a"], pa.large_string()),
    pa.array([b"a"]),
    pa.array([b"a"], pa.large_binary()),
    pa.array([1], pa.date32()),
    pa.array([1], pa.timestamp("ns")),
    pa.array([1], pa.time32("s")),
    pa.array([1], pa.duration("s")),
    pa.array([1], pa.decimal128(5)),
    pa.array([[1]]),
    pa.array([[1]], pa.list_(pa.time32("s"))),
    pa.array([{"a": 1}]),
    pa.array([{"a": 1}], pa.struct([("a", pa.duration("s"))])),
    pa.array(["a"]).dictionary_encode(),
]


@pytest.mark.parametrize("column", ONE_OF_EACH, ids=lambda column: str(column.type))
def test_which_types_have_a_key(column: pa.Array) -> None:
    if has_key(column.type):
        assert len(content_keys([column])) == 1
    else:
        with pytest.raises(InputError, match="can't be hashed"):
            content_keys([column])
