"""A row's key from its content: the same number that Spark's xxhash64 gives, for whole batches.

So rows of a data set that isn't Spark's fall into the same virtual shards as they would there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farandole.data.schema import is_list, is_number
from farandole.errors import InputError

Array = np.ndarray[Any, Any]
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(number)
    for number in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_SEED = 42
_ROWS = 2048
"""At once: what they need stays in the processor's cache."""
_STRIPE = 32


_KINDS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def content_keys(columns: Sequence[pa.Array]) -> Array:
    """The key of each row, from all columns in their order.

    >>> content_keys([pa.array([1, 2]), pa.array(["a", None])]).tolist()
    [-8527884376001292090, -3341702809300393011]
    """
    rows = len(columns[0])
    keys = np.full(rows, _SEED, np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, rows, _ROWS):
            for column in columns:
                part = keys[start : start + _ROWS]
                _fold(column.slice(start, _ROWS), part, np.arange(len(part)))
    return keys.view(np.int64)


def has_key(kind: pa.DataType) -> bool:
    """Whether `content_keys` takes columns of this type.

    >>> has_key(pa.list_(pa.int8())), has_key(pa.decimal128(5))
    (True, False)
    """
    if is_list(kind):
        return has_key(kind.value_type)
    if pa.types.is_struct(kind):
        return all(has_key(field.type) for field in kind)
    return any(is_one(kind) for is_one in _KINDS)


def _fold(column: pa.Array, keys: Array, owners: Array) -> None:
    """Hash each value on top of the key of the row that owns it; nulls leave it as it is.

    No row owns two values here.
    """
    kind = column.type
    if is_list(kind):
        _fold_lists(column, keys, owners)
        return
    if pa.types.is_struct(kind):
        valid = _valid(column)
        for field in column.filter(pa.array(valid)).flatten():
            _fold(field, keys, owners[valid])
        return
    valid = _valid(column)
    if not valid.all():
        column, owners = column.filter(pa.array(valid)), owners[valid]
    if not len(column):
        return
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        keys[owners] = _hash_bytes(column.cast(pa.binary()), keys[owners])
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        keys[owners] = _hash_bytes(column.cast(pa.large_binary()), keys[owners])
    else:
        bits, is_long = _bits(column)
        keys[owners] = (_hash_long if is_long else _hash_int)(bits, keys[owners])


def _fold_lists(column: pa.Array, keys: Array, owners: Array) -> None:
    """Element after element: first all the first ones, then all the second ones, and so on."""
    valid = _valid(column)
    lists, owners = column.filter(pa.array(valid)), owners[valid]
    lengths = np.asarray(pc.list_value_length(lists), np.int64)
    values = lists.flatten()
    if is_number(values.type) and not values.null_count and len(set(lengths.tolist())) == 1:
        bits, is_long = _bits(values)
        found = keys[owners]
        for place in np.ascontiguousarray(bits.reshape(len(lists), -1).T):
            found = (_hash_long if is_long else _hash_int)(place, found)
        keys[owners] = found
        return
    starts = np.cumsum(lengths) - lengths
    for number in range(int(lengths.max(initial=0))):
        longer = lengths > number
        _fold(values.take(pa.array(starts[longer] + number)), keys, owners[longer])


def _valid(column: pa.Array) -> Array:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def _bits(column: pa.Array) -> tuple[Array, bool]:
    """Numbers, as Spark takes them for hashing, and whether as 64 bits."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.uint64), False
    if pa.types.is_floating(kind):
        is_long = bool(pa.types.is_float64(kind))
        floats = np.asarray(column.to_numpy(zero_copy_only=False), "f8" if is_long else "f4") + 0
        floats[np.isnan(floats)] = np.nan  # all of them are one to Java
        floats[floats == 0] = 0  # -0 too
        return floats.view("u8" if is_long else "u4").astype(np.uint64), is_long
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise InputError(
            f"Rows of a Ray data set get their places by their content, and {kind} can't be hashed "
            "here. Cast the column first, or write the rows as Parquet files."
        )
    is_long = column.type.bit_width == 64 or column.type == pa.uint32()
    values = np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)
    bits = values.view(np.uint64)
    return (bits if is_long else bits & np.uint64(0xFFFFFFFF)), is_long


def _rotated(values: Any, bits: int) -> Array:
    return np.asarray((values << np.uint64(bits)) | (values >> np.uint64(64 - bits)))


def _mixed(keys: Array) -> Array:
    keys = (keys ^ (keys >> np.uint64(33))) * _P2
    keys = (keys ^ (keys >> np.uint64(29))) * _P3
    return np.asarray(keys ^ (keys >> np.uint64(32)))


def _hash_int(bits: Array, seeds: Array) -> Array:
    keys = (seeds + _P5 + np.uint64(4)) ^ (bits * _P1)
    return _mixed(_rotated(keys, 23) * _P2 + _P3)


def _hash_long(bits: Array, seeds: Array) -> Array:
    keys = (seeds + _P5 + np.uint64(8)) ^ (_rotated(bits * _P2, 31) * _P1)
    return _mixed(_rotated(keys, 27) * _P1 + _P4)


def _hash_bytes(column: pa.Array, seeds: Array) -> Array:
    """XXH64 of texts: rows of one length at a time, so that all steps are the same for them."""
    lengths = np.asarray(pc.binary_length(column), np.int64)
    keys = np.empty_like(seeds)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        joined = b"".join(column.take(pa.array(rows)).to_pylist())
        matrix = np.frombuffer(joined, np.uint8).reshape(len(rows), length)
        keys[rows] = _hash_matrix(matrix, seeds[rows])
    return keys


def _hash_matrix(texts: Array, seeds: Array) -> Array:
    length = texts.shape[1]
    stripes, words = length // _STRIPE, length % _STRIPE // 8
    keys = seeds + _P5 if not stripes else _hash_stripes(texts[:, : stripes * _STRIPE], seeds)
    keys = keys + np.uint64(length)
    at = stripes * _STRIPE
    for word in _numbers(texts[:, at : at + 8 * words], "<u8"):
        keys = _rotated(keys ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4
    at += 8 * words
    if length - at >= 4:
        (word,) = _numbers(texts[:, at : at + 4], "<u4")
        keys = _rotated(keys ^ (word * _P1), 23) * _P2 + _P3
        at += 4
    for number in range(at, length):
        keys = _rotated(keys ^ (texts[:, number].astype(np.uint64) * _P5), 11) * _P1
    return _mixed(keys)


def _hash_stripes(texts: Array, seeds: Array) -> Array:
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for number, word in enumerate(_numbers(texts, "<u8")):
        place = number % 4
        lanes[place] = _rotated(lanes[place] + word * _P2, 31) * _P1
    keys = np.zeros_like(seeds)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        keys += _rotated(lane, bits)
    for lane in lanes:
        keys = (keys ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    return keys


def _numbers(texts: Array, kind: str) -> list[Array]:
    """The bytes as numbers, those of each place in the rows as one array."""
    numbers = np.ascontiguousarray(texts).view(kind).astype(np.uint64)
    return list(np.ascontiguousarray(numbers.T))
