"""POST /predict: rows with names, as people have them, and answers in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.data import RaggedArray
from farandole.errors import suggestion
from farandole.serving.answers import Answers
from farandole.serving.batching import Batcher
from farandole.serving.datatypes import DATATYPES, json_types
from farandole.serving.http_body import aside, read_body
from farandole.serving.image_text import check_pixels, image_from_text
from farandole.serving.json_text import read_json, write_json
from farandole.serving.model import MOST_ROWS, Model, Rows
from farandole.serving.protocol_routes import answers
from farandole.serving.refusal import Refusal, malformed
from farandole.serving.reply import Reply, Request
from farandole.serving.tensor_specs import TensorSpec

if TYPE_CHECKING:
    from farandole.serving.app import App

_FIELDS = ("rows", "model", "version")
_OBJECT = 64
"""Bytes of a value that has a name."""


async def predict(app: App, request: Request) -> Reply:
    """Answer for rows that are objects: a field for each column."""
    body = await read_body(request.receive, request.headers, app.limits.max_body, app.limits.slow)
    said = await aside(len(body), read_json, body)
    if type(said) is not dict:
        raise malformed('The body must be an object, such as {"rows": [{"age": 3}]}.')
    for name in said:
        if name not in _FIELDS:
            raise malformed(f"There is no field {name!r}. {suggestion(name, _FIELDS)}")
    batcher = _batcher(app, said)
    request.metrics = batcher.metrics
    model = batcher.model
    columns = await aside(model.unpacked(len(body)), columns_of_rows, model, said.get("rows"))
    names = [name for name in model.outputs if not name.endswith("raw")]
    model.check_answer(columns, names, _OBJECT)
    found = await answers(batcher, request, columns, names, app.limits.timeout)
    return await aside(max(len(body), found.size(names)), _reply, model, found, names)


def _reply(model: Model, found: Answers, names: list[str]) -> Reply:
    said = predictions(model, found, names)
    return Reply(
        200, write_json({"model": model.name, "version": model.version, "predictions": said})
    )


def _batcher(app: App, said: dict[str, Any]) -> Batcher:
    name, version = said.get("model"), said.get("version")
    for field, value in (("model", name), ("version", version)):
        if value is not None and type(value) is not str:
            raise malformed(f"The field {field!r} must be a text.")
    served = list(app.repository.served)
    if name is None and len(served) != 1:
        if not served:
            app.repository.check_loaded()
            raise Refusal(404, "No model is loaded.")
        raise malformed(f"Say which model is asked. There are {', '.join(served)}.")
    return app.repository.find(served[0] if name is None else name, version)


def columns_of_rows(model: Model, rows: Any) -> list[Rows]:
    """The network's columns; an error names row and field, counted from 0."""
    if type(rows) is not list or not rows:
        raise malformed("'rows' must be a list with something in it.")
    if len(rows) > MOST_ROWS:
        raise malformed(f"A request can have {MOST_ROWS:,} rows. Received: {len(rows):,}")
    names = [spec.name for spec in model.inputs]
    known = set(names)
    for number, row in enumerate(rows):
        if type(row) is not dict:
            raise malformed(f"Row {number} must be an object with the fields {', '.join(names)}.")
        if row.keys() != known:
            raise malformed(_misfit(number, row, names, known))
    return [_column(model, spec, [row[spec.name] for row in rows]) for spec in model.inputs]


def _misfit(number: int, row: dict[str, Any], names: list[str], known: set[str]) -> str:
    """What is wrong with a row's fields: one too many may be a misspelt one, so it comes first."""
    other = next((name for name in row if name not in known), None)
    if other is not None:
        return f"Row {number}: no field {other!r} is known. {suggestion(other, names)}"
    missing = next(name for name in names if name not in row)
    return f"Row {number} has no field {missing!r}."


def _column(model: Model, spec: TensorSpec, values: list[Any]) -> Rows:
    axes = spec.shape[1:].count(-1)
    arrays, pixels = [], 0
    for number, value in enumerate(values):
        where = f"Row {number}, field {spec.name!r}"
        arrays.append(_value(where, spec, value, encoded=model.takes_images))
        if model.takes_images:
            pixels += math.prod(arrays[-1].shape[:2])
            check_pixels(pixels)
    return RaggedArray.of_rows(arrays, axes) if axes else np.stack(arrays)


def _value(where: str, spec: TensorSpec, value: Any, *, encoded: bool) -> np.ndarray[Any, Any]:
    if encoded and type(value) is str:
        return image_from_text(where, value, gray=len(spec.shape) == 3)
    flat, shape = _flattened(where, value)
    wanted = spec.shape[1:]
    fits = len(shape) == len(wanted) and all(
        size in (own, -1) for own, size in zip(shape, wanted, strict=True)
    )
    if not fits:
        expected = f"a list of shape {list(wanted)}" if wanted else "one value"
        raise malformed(f"{where}: expected {expected}. Received: {_kind(value, shape)}")
    dtype, allowed = DATATYPES[spec.datatype], json_types(spec.datatype)
    for one in flat:
        if type(one) not in allowed:
            raise malformed(f"{where}: expected {_WORDS[dtype.kind]}. Received: {_shown(one)}")
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype).reshape(shape)
    except OverflowError:
        raise malformed(f"{where}: the number is no {spec.datatype}.") from None


_WORDS = {"b": "true or false", "f": "a number", "i": "a whole number", "u": "a whole number"}


def _flattened(where: str, value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """All values, and the shape of the lists that they came in."""
    flat, shape = [value], []
    while flat and type(flat[0]) is list:
        width = len(flat[0])
        if not all(type(one) is list and len(one) == width for one in flat):
            raise malformed(f"{where}: its lists differ in length.")
        shape.append(width)
        flat = [one for inner in flat for one in inner]
    return flat, tuple(shape)


def _kind(value: Any, shape: tuple[int, ...]) -> str:
    return f"a list of shape {list(shape)}" if type(value) is list else _shown(value)


def _shown(value: Any) -> str:
    if type(value) in (list, dict):
        return "a list" if type(value) is list else "an object"
    return write_json(value)[:60].decode("utf-8", "ignore")


def predictions(model: Model, found: Answers, names: list[str]) -> list[dict[str, Any]]:
    """What is said of each row, an object with a field for each output."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(found))]
    for name in names:
        spec = model.outputs[name]
        classes = name.endswith("prediction") and f"{name[:-10]}probability" in model.outputs
        for row, value in zip(rows, found.by_row(name), strict=True):
            row[name] = _plain(value, spec.datatype, classes)
    if model.labels:
        for row in rows:
            row["probability"] = _by_label(model, row["probability"])
    return rows


def _by_label(model: Model, probability: Any) -> Any:
    """{label: probability} for one class a row."""
    if model.signature.positions:
        return probability
    return dict(zip(model.labels, probability, strict=True))


def _plain(value: Any, datatype: str, classes: bool) -> Any:
    if datatype == "BYTES":
        return _texts(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not classes:
        return plain
    return _whole(plain)


def _whole(value: Any) -> Any:
    """The numbers of classes as whole numbers."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return None if math.isnan(value) else int(value)


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_texts(one) for one in value]
