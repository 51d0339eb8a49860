"""predict: a network applied to files, without Spark and without holding them in memory.

Two threads read ahead, some compute, and the caller's writes what they give in the order of the
input. A few batches of some megabytes are under way at any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.errors import InputError
from farandole.freed_memory import freed_memory_kept
from farandole.inference.application import Application
from farandole.inference.files.base import FilePredictor
from farandole.inference.files.formats import PHOTOS, check_output, list_files
from farandole.inference.files.image_predictor import ImagePredictor
from farandole.inference.files.parquet_writer import AtomicParquetWriter
from farandole.inference.files.table_predictor import TablePredictor
from farandole.inference.files.tables import Tables
from farandole.inference.files.threads import count_workers, map_in_order, one_thread_each
from farandole.inference.precision import check_precision, supported
from farandole.inference.prefetch import prefetch
from farandole.progress import row_progress
from farandole.tracebacks import short_traceback


@dataclass(frozen=True)
class Predicted:
    """What came of applying a network to files.

    >>> print(Predicted("out.parquet", rows=1000, errors=2, seconds=0.5))
    out.parquet: 1,000 rows in 0.5 s, 2,000 rows/s; 2 could not be answered
    """

    path: str
    rows: int
    errors: int
    """How many photos could not be answered; the column `error` says why."""
    seconds: float

    def __str__(self) -> str:
        rate = self.rows / max(self.seconds, 1e-9)
        failed = f"; {self.errors:,} could not be answered" if self.errors else ""
        return (
            f"{self.path}: {self.rows:,} rows in {self.seconds:.1f} s, {rate:,.0f} rows/s{failed}"
        )


@short_traceback
def predict(
    model: Any,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    features: Sequence[str] | None = None,
    keep: str | Sequence[str] = "all",
    column: str = "prediction",
    answer: str | Mapping[str, int | str] = "prediction",
    k: int = 5,
    labels: Sequence[str] = (),
    nulls: str = "error",
    batch_size: int | str = "auto",
    precision: str | None = None,
    head: str | None = None,
    input_shapes: Sequence[tuple[int, ...]] | None = None,
    num_workers: int | str = "auto",
    overwrite: bool = False,
    progress: bool = True,
    allow_pickle: bool = False,
) -> Predicted:
    """Apply a network to the rows of files, or to photos, and write a Parquet file.

    Rows come out in the order of the input. The file appears when it is complete, or not at all.

    Args:
        model: a trained model, a module, a saved folder, or a file of torch.export, TorchScript
            or ONNX.
        input: a file or a folder of Parquet, CSV, JSON lines or Arrow, or of photos.
        output: the file to write. For photos its columns are path, the answer and error.
        features: the columns to predict from, if not those that the network was trained on.
        keep: the columns to write beside the answers, "all", "none" or a list. Others aren't read.
        column: the column of answers.
        answer: "prediction", "class", "probability", "raw", "topk", "all", or a dict, as for
            `predict_udf`.
        k: how many classes "topk" gives.
        labels: the names of classes, to get those in place of numbers.
        nulls: "error" names the first row with a null or NaN, "null" answers it with null, and
            "nan" lets NaN go through the network, where a null is an error.
        batch_size: rows that the network gets at once; "auto": what needs little memory.
        precision: "bfloat16" or "int8"; None: the network's own.
        head: of a network without a signature, how its outputs become classes.
        input_shapes: of a network without a signature, what to make of each column's rows.
        num_workers: threads that compute; "auto": one a core.
        overwrite: replace an output that exists.
        progress: show how far it is: a bar on a terminal, lines elsewhere.
        allow_pickle: let a folder that holds a pickle, or a TorchScript file, be loaded: that runs
            code.

    >>> import tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> from torch import nn
    >>> folder = Path(tempfile.mkdtemp())
    >>> pq.write_table(pa.table({"x": [[1.0, 3.0], [4.0, 2.0]]}), folder / "in.parquet")
    >>> done = predict(nn.Identity(), folder / "in.parquet", folder / "out.parquet",
    ...                answer="class", progress=False)
    >>> done.rows, pq.read_table(folder / "out.parquet")["prediction"].to_pylist()
    (2, [1.0, 0.0])
    """
    start = time.perf_counter()
    target = check_output(input, output, overwrite=overwrite)
    workers = count_workers(num_workers)
    check_precision(precision)
    with one_thread_each(), supported(precision):
        application = Application.of(
            model,
            answer=answer,
            k=k,
            labels=labels,
            nulls=nulls,
            head=head,
            input_shapes=input_shapes,
            batch_size=batch_size,
            precision=precision,
            allow_pickle=allow_pickle,
        )
        predictor = _file_predictor(application, input, features=features, keep=keep, column=column)
        rows, errors = _write(predictor, target, workers, progress)
    return Predicted(str(target), rows, errors, time.perf_counter() - start)


def _file_predictor(
    application: Application,
    path: str | os.PathLike[str],
    *,
    features: Sequence[str] | None,
    keep: str | Sequence[str],
    column: str,
) -> FilePredictor:
    files = list_files(path)
    if files.format != PHOTOS:
        tables = Tables(files)
        return TablePredictor(application, tables, features=features, keep=keep, column=column)
    if features is not None or keep != "all":
        raise InputError("features and keep are for tables: photos have no columns.")
    return ImagePredictor(application, files, column=column)


def _write(predictor: FilePredictor, target: Path, workers: int, progress: bool) -> tuple[int, int]:
    """Predict for all batches, and count the rows and those that could not be answered."""
    rows = errors = 0
    shown = row_progress(predictor.count()) if progress else None
    batches = prefetch(predictor.batches())
    try:
        with (
            freed_memory_kept(),
            AtomicParquetWriter(target, predictor.schema) as writer,
            closing(prefetch(map_in_order(predictor, batches, workers))) as results,  # type: ignore[type-var]
        ):
            for predicted in results:
                writer.write(predicted.rows)
                rows += predicted.rows.num_rows
                errors += predicted.errors
                if shown is not None:
                    shown(rows)
            predictor.check()
    finally:
        if shown is not None:
            shown.close()
    return rows, errors
