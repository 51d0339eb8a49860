from __future__ import annotations

import pyarrow as pa
import pytest

from farandole.data import Columns
from farandole.data.schema import check_type
from farandole.errors import InputError


def test_a_column_with_two_parts_is_read_once() -> None:
    columns = Columns(("a", "b"), ("a",), weight="w", validation="v")
    assert columns.names == ("a", "b", "w", "v")


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.string(), "StringIndexer"),
        (pa.large_string(), "StringIndexer"),
        (pa.list_(pa.string()), "StringIndexer"),
        (pa.dictionary(pa.int32(), pa.string()), "StringIndexer"),
        (pa.struct([("a", pa.int32())]), "VectorAssembler"),
        (pa.map_(pa.string(), pa.int32()), "Extract the keys"),
        (pa.timestamp("us"), "unix_timestamp"),
        (pa.date32(), "dayofweek"),
        (pa.null(), "nothing but nulls"),
        (pa.list_view(pa.int64()), "Cast it"),
    ],
    ids=str,
)
def test_a_type_without_tensors_comes_with_advice(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(InputError, match=advice) as caught:
        check_type("city", kind)
    assert "'city'" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (Columns(("agee",), ("y",)), "no column 'agee'. Did you mean 'age'?"),
        (Columns(("zzz",), ("y",)), "There are age, y, twin, twin, v"),
        (Columns(("twin",), ("y",)), "There are 2 columns named 'twin'"),
        (Columns(("age",), ("y",), weight="v"), "Weights must be numbers. Column 'v' holds"),
        (Columns(("age",), ("y",), validation="y"), "must be boolean.* Column 'y' holds int64"),
    ],
)
def test_columns_that_do_not_fit_the_schema(columns: Columns, complaint: str) -> None:
    numbers = [(name, pa.int64()) for name in ("age", "y", "twin", "twin")]
    schema = pa.schema([*numbers, ("v", pa.list_(pa.int64()))])
    with pytest.raises(InputError, match=complaint):
        columns.check(schema)
