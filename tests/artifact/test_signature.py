from __future__ import annotations

import json

import pytest
import torch

from farandole.artifact import Head, Signature
from farandole.artifact.signature import zero_column
from farandole.errors import ArtifactError
from farandole.ragged import Ragged


def signature(*shapes: tuple[int | None, ...], dtype: str = "float32", **more: bool) -> Signature:
    return Signature(
        features=tuple("abc"[: len(shapes)]),
        shapes=shapes,
        dtypes=(dtype,) * len(shapes),
        head="identity",
        outputs=1,
        **more,
    )


def test_axes_that_vary_survive_json() -> None:
    about = signature((None, 8), (4,), (None, None, 3))
    text = json.dumps(about.to_json())
    assert "[[null, 8], [4], [null, null, 3]]" in text
    assert Signature.from_json(json.loads(text)) == about
    assert about.axes == (1, 0, 2)


def test_elements_take_the_precision_of_the_network() -> None:
    words = Ragged(torch.tensor([1, 2, 3]), torch.tensor([[2], [1]]))
    numbers = Ragged(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), words.sizes)
    for floated, dtype in ((False, torch.int64), (True, torch.float32)):
        found = signature((None,), (None,), floated=floated).arguments([words, numbers])
        assert all(isinstance(one, Ragged) for one in found)
        assert [one.values.dtype for one in found] == [dtype, torch.float32]
        assert found[0].values.tolist() == [1, 2, 3]
        assert found[0].sizes.tolist() == [[2], [1]]


def test_an_example_has_rows_of_different_sizes() -> None:
    words, plain, image = signature((None, 8), (4,), (None, None, 3), dtype="uint8").example()
    assert isinstance(words, Ragged)
    assert isinstance(plain, torch.Tensor)
    assert isinstance(image, Ragged)
    assert (len(words), len(plain), len(image)) == (2, 2, 2)
    assert len(set(words.lengths.tolist())) == len(set(image.lengths.tolist())) == 2
    assert words.padded().shape[2:] == (8,)
    assert image.padded().dim() == 4
    assert words.values.dtype == torch.uint8
    assert not image.values.any()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_an_example_of_given_sizes(rows: int) -> None:
    found = signature((None, 2)).example(rows, {"a": [(3,), (0,)]})[0]
    assert isinstance(found, Ragged)
    assert found.lengths.tolist() == [3, 0, 3, 0, 3][:rows]
    assert found.values.shape == (sum([3, 0, 3, 0, 3][:rows]), 2)
    cube = zero_column((None, None, None), "int64", rows)
    assert isinstance(cube, Ragged)
    assert (len(cube), cube.axes) == (rows, 3)


def test_signatures_of_before_there_were_heads() -> None:
    """As folders hold them that were saved before a network could have several."""
    old = {
        "features": ["x"], "shapes": [[4]], "dtypes": ["float32"], "head": "softmax",
        "outputs": 3, "labels": ["y"], "stacked": False, "floated": False,
        "floating": "float32", "thresholds": [],
    }  # fmt: skip
    found = Signature.from_json(old)
    assert found.heads == ()
    assert found.all_heads == (Head(kind="softmax", outputs=3),)
    assert found.num_classes == 3


def test_heads_as_json_and_back() -> None:
    heads = (
        Head(name="digit", output="digit", kind="softmax", outputs=10),
        Head(name="tags", output="tags", kind="softmax", outputs=2, positions=(None,)),
    )
    plain = Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head="identity", outputs=1
    )
    made = plain.with_heads(heads)
    document = json.loads(json.dumps(made.to_json()))
    assert Signature.from_json(document) == made
    document["heads"][0]["kind"] = "import os"
    with pytest.raises(ArtifactError, match="heads can't be"):
        Signature.from_json(document)
