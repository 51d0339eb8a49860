"""TextTokenizer: a column of texts → a column of tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa
from pyspark.ml import Transformer
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole import _spark
from farandole.arguments import check_choice
from farandole.data import BadRows, quote_name
from farandole.errors import InputError
from farandole.inference import NULLS, UnusableInput, null_rows, restore_nulls, worker_function
from farandole.pretrained import MINILM, TOKENIZER_FILE, Tokenizer
from farandole.spark.file_systems import reading, writing
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.io import Reader, Writer
from farandole.spark.metadata import write_metadata
from farandole.spark.options import TextTokenizerOptions, with_signature
from farandole.spark.params import ParamInfo, declare, set_checked, text, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARAMS: dict[str, ParamInfo] = {
    "tokenizer": ParamInfo(
        TypeConverters.identity, "a tokenizer.json, its folder, a package, or a Tokenizer", MINILM
    ),
    "maxLength": ParamInfo(whole, "the most tokens of a text; what is longer loses its end", 128),
    "nulls": ParamInfo(text, "'error', or 'null' for null tokens where the text is null", "error"),
}


@declare(PARAMS)
class TextTokenizerParams(HasInputCol, HasOutputCol):
    """What a tokenizer needs to know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(**{name: info.default for name, info in PARAMS.items()})


@entry_points("transform")
@with_signature(TextTokenizerOptions)
class TextTokenizer(TextTokenizerParams, Transformer, MLWritable, MLReadable["TextTokenizer"]):
    """Adds a column with the tokens of each text, as a network's own tokenizer splits it.

    The tokenizer goes to the workers by content: the file has to be on the driver only.

    Args:
        **params: any param by name: `inputCol` (strings), `outputCol` (array<int>), `tokenizer` (a
            tokenizer.json, the folder with it, an installed package, or a
            `farandole.pretrained.Tokenizer`), `maxLength`, `nulls`.

    >>> TextTokenizer(inputCol="text", outputCol="tokens").getMaxLength()
    128
    """

    def __init__(self, **params: Unpack[TextTokenizerOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[TextTokenizerOptions]) -> TextTokenizer:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    def loaded(self) -> Tokenizer:
        """The tokenizer itself, for use without Spark."""
        return Tokenizer(self.getOrDefault("tokenizer"), self.getOrDefault("maxLength"))

    @illegal_arguments
    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

        source, target = self.getInputCol(), self.getOutputCol()
        _check_columns(dataset, source, target)
        nulls, tokenizer = check_choice("nulls", self.getOrDefault("nulls"), NULLS), self.loaded()
        _spark.set_up_python(dataset.sparkSession)

        def split(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            # Each task has a core of its own, and others run beside it.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            return (tokens_of(batch, tokenizer, source, nulls) for batch in batches)

        tokens = arrow_udf(worker_function(split), "array<int>")(F.col(quote_name(source)))
        return dataset.withColumn(target, tokens)

    def write(self) -> MLWriter:
        """A writer of a folder with the tokenizer's file."""
        return TextTokenizerWriter(self)

    @classmethod
    def read(cls) -> MLReader[TextTokenizer]:
        """A reader that runs no code from the folder."""
        return TextTokenizerReader(cls)


def tokens_of(texts: pa.Array, tokenizer: Tokenizer, column: str, nulls: str) -> pa.Array:
    """The tokens of a column's batch, as lists."""
    missing = null_rows([texts])
    if missing is not None and nulls == "error":
        rows = BadRows(column, "no text (null)", int(missing.sum()), "null", kind="null")
        raise UnusableInput(rows, int(np.argmax(missing)))
    found = tokenizer.tokens((texts if missing is None else texts.drop_null()).to_pylist())
    offsets = np.concatenate([[0], np.cumsum(found.lengths.numpy())]).astype(np.int32)
    lists = pa.ListArray.from_arrays(offsets, found.values.numpy())
    return lists if missing is None else restore_nulls(lists, missing)


def _check_columns(dataset: DataFrame, source: str, target: str) -> None:
    kind = dataset.schema[source].dataType if source in dataset.columns else None
    if kind is None or kind.typeName() not in ("string", "varchar", "char"):
        received = "no such column" if kind is None else kind.simpleString()
        raise InputError(f"inputCol={source!r} must be a column of strings. Received: {received}")
    if target in dataset.columns:
        raise InputError(
            f"The column {target!r} exists already, but outputCol would write to it. Drop it, or "
            "set outputCol to another name."
        )


class TextTokenizerWriter(Writer):
    """Writes a TextTokenizer."""

    def __init__(self, instance: TextTokenizer) -> None:
        super().__init__()
        self._instance = instance
        self.uid = instance.uid

    def saveImpl(self, path: str) -> None:
        """The file first, then the metadata."""
        instance = self._instance
        plain = {p.name: value for p, value in instance._paramMap.items() if p.name != "tokenizer"}
        with writing(self.sparkSession, path) as folder:
            (folder / TOKENIZER_FILE).write_bytes(instance.loaded().content)
        write_metadata(instance, path, self.sparkSession, plain)


class TextTokenizerReader(Reader):
    """Reads a TextTokenizer."""

    def loaded(self, path: str) -> Any:
        """Params, then the file."""
        instance = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            instance._set(tokenizer=Tokenizer(folder / TOKENIZER_FILE))
        return instance
