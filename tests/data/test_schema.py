from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.data.test_image_decoding import SPARK_IMAGE

from farandole.data import Columns, schema
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


@pytest.mark.parametrize("part", ["features", "labels", "weight"])
@pytest.mark.parametrize("name", ["__farandole_key", "__FARANDOLE_Block_Weight"])
def test_names_of_columns_that_are_added_are_refused(part: str, name: str) -> None:
    parts = {"features": ("x",), part: name if part == "weight" else (name,)}
    with pytest.raises(InputError, match=f"Column '{name}': .* '__farandole_' are kept .* Rename"):
        Columns(**parts).check(pa.schema({name: pa.float32(), "x": pa.float32()}))


def test_all_names_that_are_added_begin_alike() -> None:
    """Each string of the source that looks like one, but for what begins otherwise on purpose."""
    source = Path(schema.__file__).parent.parent
    found = re.findall(r'"(__farandole\w*)"', "".join(f.read_text() for f in source.rglob("*.py")))
    assert len(found) >= 5
    assert all(name.startswith(schema.RESERVED) for name in found)


NUMBERS = pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (pa.float32(), 0),
        (NUMBERS, 1),
        (pa.list_(NUMBERS), 2),
        (pa.list_(pa.list_(pa.float32(), 3)), 2),
        (pa.list_(pa.dictionary(pa.int8(), pa.int64())), 1),
        (pa.list_(pa.binary()), 2),
        (pa.fixed_shape_tensor(pa.float32(), (2, 3, 4)), 3),
        (pa.binary(), 2),
    ],
    ids=str,
)
def test_as_many_axes_may_vary_as_there_are(kind: pa.DataType, most: int) -> None:
    for axes in (None, *range(most + 1)):
        check_type("x", kind, axes)
    with pytest.raises(InputError, match=r"'x' holds .* takes it with .*ragged_axes"):
        check_type("x", kind, most + 1)


def test_an_image_of_spark_is_for_networks_that_take_images() -> None:
    check_type("photo", SPARK_IMAGE, 2)
    for axes in (0, 1, 3):
        with pytest.raises(InputError, match="'photo' holds Spark's images"):
            check_type("photo", SPARK_IMAGE, axes)
    schema = pa.schema([("photo", SPARK_IMAGE), ("y", pa.int64())])
    Columns(("photo",), ("y",)).check(schema)  # nobody knows the network yet
    Columns(("photo",), ("y",)).check(schema, [2])
    for columns, axes in ((Columns(("photo",), ("y",)), [0]), (Columns(("y",), ("photo",)), None)):
        with pytest.raises(InputError, match="'photo' holds Spark's images"):
            columns.check(schema, axes)


def test_a_label_has_one_size() -> None:
    schema = pa.schema([("x", NUMBERS)])
    Columns(("x",), ("x",)).check(schema, [0])
    with pytest.raises(InputError, match="'x' is a label, so its rows must have one size"):
        Columns(("x",), ("x",)).check(schema, [1])


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (Columns(("agee",), ("y",)), "no column 'agee'. Did you mean 'age'?"),
        (Columns(("zzz",), ("y",)), "There are age, y, twin, twin, v"),
        (Columns(("twin",), ("y",)), "There are 2 columns named 'twin'"),
        (Columns(("age",), ("y",), weight="v"), "Weights must be numbers. Column 'v' holds"),
        (
            Columns(("age",), ("y",), weight="s"),
            "Weights must be numbers. Column 's' holds string: c",
        ),
        (Columns(("age",), ("y",), validation="y"), "must be boolean.* Column 'y' holds int64"),
    ],
)
def test_columns_that_do_not_fit_the_schema(columns: Columns, complaint: str) -> None:
    numbers = [(name, pa.int64()) for name in ("age", "y", "twin", "twin")]
    schema = pa.schema([*numbers, ("v", pa.list_(pa.int64())), ("s", pa.string())])
    with pytest.raises(InputError, match=complaint):
        columns.check(schema)
