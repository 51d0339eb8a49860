"""PredictUdf: every form in which Spark calls a Python function, over one application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from farandole import _spark
from farandole.arguments import check_choice
from farandole.data import unpacked
from farandole.errors import FarandoleError, InputError
from farandole.inference.application import Application, PackedApplication
from farandole.inference.pandas_batches import (
    AGGREGATES,
    aggregated,
    answers_for,
    answers_for_each,
    batches_with_answers,
    frame_with_answers,
    frames_with_answers,
)
from farandole.inference.prefetch import prefetch
from farandole.inference.udf_packages import worker_function

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OF_NUMBERS = ("mean", "sum")


class PredictUdf:
    """A network as a function of columns, in all the forms that Spark knows; made by `predict_udf`.

    What is called with columns gives a column. What is called with rows, from `map_arrow` on,
    goes to a method of a DataFrame together with `schema`. The answers are the same in each.
    """

    def __init__(
        self,
        application: PackedApplication,
        *,
        features: Sequence[str] = (),
        column: str = "prediction",
        as_vector: bool = False,
        groups: Sequence[tuple[str, ...]] = (),
    ) -> None:
        signature = application.predictor.signature
        self.application = application
        self.returns = application.answer.spark_type(signature)
        """The type of its answers, in Spark's words."""
        own = signature.features if signature else ()
        self.features = (features,) if isinstance(features, str) else tuple(features) or own
        """The columns to predict from, where whole rows come."""
        self.column = column
        """The column of answers, where whole rows go."""
        self.as_vector = as_vector
        self._groups = list(groups)
        """The features that come as one array, where some do."""
        if as_vector and self.returns != "array<double>":
            raise InputError(f"as_vector is for arrays of numbers. This gives {self.returns}.")

    def __repr__(self) -> str:
        return f"predict_udf({', '.join(self.features) or 'columns'}) → {self.returns}"

    def __call__(self, *columns: Column | str) -> Column:
        """The predictions, as a column: of the features in their order, or of one struct."""
        if not columns:
            raise InputError("There are no columns to predict from: name those of the features.")
        return self._as_asked(self.spark_udf()(*columns))

    def spark_udf(self, session: SparkSession | None = None) -> Any:
        """The UDF itself, as `spark.udf.register` takes it."""
        from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

        session = session or _spark.require_session()
        _spark.set_up_python(session)
        _spark.read_by_row(session)
        application, features, groups = self.distributed(session), self.features, self._groups

        def predict(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            columns: Iterator[tuple[Any, ...]] = map(_columns_of, batches)
            if any(len(group) > 1 for group in groups):
                columns = (_each(features, unpacked(groups, batch)) for batch in columns)
            return _in_short(loaded(application).stream(columns, _spark.task_place()))

        return arrow_udf(worker_function(predict), self.returns)

    def distributed(self, session: SparkSession | None = None) -> PackedApplication:
        """The application as workers of the session find it."""
        packed = self.application.predictor
        session = session or _spark.require_session()
        near = _spark.is_local(session) and not _spark.is_connect(session)
        if not packed.path or packed.shared or near:
            return self.application
        _spark.distribute(session, packed.path)
        return replace(self.application, predictor=packed.to_be_distributed())

    def series(self, *columns: Column | str) -> Column:
        """Series → Series."""
        return self._of_batches(pd.Series, columns)

    def frame(self, struct: Column | str) -> Column:
        """DataFrame → Series: the features are the fields of one struct."""
        return self._of_batches(pd.DataFrame, (struct,))

    def iterator(self, column: Column | str) -> Column:
        """Iterator of Series → iterator of Series."""
        return self._of_iterators(pd.Series, (column,))

    def iterator_of_several(self, *columns: Column | str) -> Column:
        """Iterator of several Series → iterator of Series."""
        return self._of_iterators(tuple[pd.Series, ...], columns)

    def iterator_of_frames(self, struct: Column | str) -> Column:
        """Iterator of DataFrame → iterator of Series."""
        return self._of_iterators(pd.DataFrame, (struct,))

    def aggregate(self, *columns: Column | str, how: str) -> Column:
        """Series → scalar, for groupBy().agg: the predictions of a group, put together.

        `how` is one of "mode" (the most frequent), "mean", "min", "max" and "sum".
        """
        text = self.returns == "string"
        check_choice("how", how, [n for n in AGGREGATES if not text or n not in _OF_NUMBERS])
        if self.returns not in ("double", "string"):
            raise InputError(f"Only single values can be put together, not {self.returns}.")
        application = self.distributed()

        def predict(*series: Any) -> Any:
            return aggregated(answers_for(loaded(application), series), how)

        return self._pandas_udf(predict, pd.Series, str if text else float, columns)

    def schema(self, frame: DataFrame) -> StructType:
        """What the forms below give for the rows of a DataFrame."""
        from pyspark.sql.types import DataType, StructField, StructType

        if self.column in frame.columns:
            raise InputError(
                f"The column {self.column!r} exists already. Drop it, or name another: column=."
            )
        if self.as_vector:
            raise InputError("Whole rows can't go with Vectors: leave as_vector out.")
        if not self.features:
            raise InputError("This network doesn't tell which columns it takes: features=[…].")
        return StructType([*frame.schema, StructField(self.column, DataType.fromDDL(self.returns))])

    @property
    def map_arrow(self) -> Any:
        """For mapInArrow: record batches → record batches."""
        application, features, column = self.distributed(), self.features, self.column

        def predict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            place = _spark.task_place()
            return _in_short(
                batches_with_answers(
                    loaded(application), prefetch(batches), features, column, place
                )
            )

        return worker_function(predict)

    @property
    def map_pandas(self) -> Any:
        """For mapInPandas: DataFrames → DataFrames."""
        application, features, column = self.distributed(), self.features, self.column

        def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            return frames_with_answers(
                loaded(application), batches, features, column, _spark.task_place()
            )

        return worker_function(predict)

    @property
    def per_group(self) -> Any:
        """For groupBy().applyInPandas: all rows of a group → the same with answers."""
        application, features, column = self.distributed(), self.features, self.column

        def predict(group: pd.DataFrame) -> pd.DataFrame:
            return frame_with_answers(loaded(application), group, features, column)

        return worker_function(predict)

    def per_cogroup(self, join: Any = pd.merge) -> Any:
        """For cogroup().applyInPandas: two groups, joined by a function of both → answers."""
        application, features, column = self.distributed(), self.features, self.column

        def predict(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
            return frame_with_answers(loaded(application), join(left, right), features, column)

        return worker_function(predict)

    def _of_batches(self, hint: Any, columns: Sequence[Any]) -> Column:
        application = self.distributed()

        def predict(*given: Any) -> Any:
            return answers_for(loaded(application), given)

        return self._pandas_udf(predict, hint, self._answer_hint, columns)

    def _of_iterators(self, hint: Any, columns: Sequence[Any]) -> Column:
        application = self.distributed()

        def predict(batches: Iterator[Any]) -> Iterator[Any]:
            given = map(_columns_of, batches)
            return answers_for_each(loaded(application), given, _spark.task_place())

        given, gives = (GenericAlias(Iterator, (one,)) for one in (hint, self._answer_hint))
        return self._pandas_udf(predict, given, gives, columns)

    @property
    def _answer_hint(self) -> Any:
        return pd.DataFrame if self.returns.startswith("struct") else pd.Series

    def _pandas_udf(self, function: Any, given: Any, gives: Any, columns: Sequence[Any]) -> Column:
        """The column of a pandas UDF; Spark goes by type hints to tell which form it has."""
        from pyspark.sql.pandas.functions import pandas_udf

        session = _spark.require_session()
        _spark.set_up_python(session)
        _spark.read_by_row(session)
        (argument,) = (name for name in function.__annotations__ if name != "return")
        function.__annotations__ = {argument: given, "return": gives}
        make: Any = pandas_udf  # its overloads can't see hints that come so late
        return self._as_asked(make(worker_function(function), self.returns)(*columns))

    def _as_asked(self, column: Column) -> Column:
        """The column in the form that was asked for."""
        from pyspark.ml.functions import array_to_vector

        return array_to_vector(column) if self.as_vector else column


def loaded(application: PackedApplication) -> Application:
    """The application in the Python worker that runs it, loaded once for all batches of a task."""
    with _short_errors():
        return application.load(_spark.distributed_path, _spark.task_device(application.device))


def _in_short(answers: Iterator[Any]) -> Iterator[Any]:
    with _short_errors():
        yield from answers


@contextmanager
def _short_errors() -> Iterator[None]:
    """An error of ours is a sentence about rows, columns or a GPU, and needs no frames."""
    try:
        yield
    except FarandoleError:
        _spark.hide_traceback()
        raise


def _each(features: Sequence[str], columns: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns in the order of the features."""
    return tuple(columns[name] for name in features)


def _columns_of(batch: Any) -> tuple[Any, ...]:
    """A batch's columns; where there is only one, Spark gives it without a tuple."""
    return batch if isinstance(batch, tuple) else (batch,)
