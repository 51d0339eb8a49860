"""predict_udf: a network as a Spark UDF, for select, withColumn and SQL."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from farandole.errors import InputError
from farandole.inference.application import PackedApplication
from farandole.inference.udf_forms import PredictUdf
from farandole.inference.udf_packages import worker_function
from farandole.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@short_traceback
def predict_udf(
    model: Any,
    *,
    answer: str | Mapping[str, int | str] = "prediction",
    k: int = 5,
    labels: Sequence[str] = (),
    as_vector: bool = False,
    nulls: str = "error",
    batch_size: int | str = "auto",
    precision: str | None = None,
    device: str = "auto",
    head: str | None = None,
    input_shapes: Sequence[tuple[int, ...]] | None = None,
    features: Sequence[str] = (),
    column: str = "prediction",
    folder: str | os.PathLike[str] | None = None,
    allow_pickle: bool = False,
) -> PredictUdf:
    """A UDF that applies a network to columns, vectorised, loading it once a Python worker.

    Args:
        model: a trained model, a module, a saved folder, or a file of torch.export, TorchScript
            or ONNX.
        answer: "prediction" (the class of a classifier, the value of a regression, what a network
            gives about which nothing is known), "class", "probability", "raw", "topk", "all" of
            them as a struct, or {field: output number or key} for a network with several outputs,
            of which the first counts otherwise.
        k: how many classes "topk" gives.
        labels: the names of classes, to get those in place of numbers.
        as_vector: give pyspark.ml Vectors in place of arrays.
        nulls: "error" names the first row with a null or NaN, "null" answers it with null, and
            "nan" lets NaN go through the network, where a null is an error.
        batch_size: rows that the network gets at once; "auto": what needs little memory.
        precision: "bfloat16" or "int8"; None: the network's own.
        device: "auto" is the GPU that Spark granted the task, else the CPU; "cpu" leaves it alone;
            "cuda" and "cuda:N" want one, granted or not. A GPU that isn't there is an error.
        head: of a network without a signature, how its outputs become classes: "softmax",
            "log_softmax", "probabilities" or "sigmoid"; None: what its last layer says, or softmax.
        input_shapes: of a network without a signature, what to make of each column's rows, such as
            [(1, 28, 28)] for arrays of 784.
        features: where whole rows come (`map_arrow` and its kin), the columns to predict from, if
            not those that the network was trained on.
        column: where whole rows go, the column of answers.
        folder: one that driver and workers share, to hold the network; None: Spark brings it.
        allow_pickle: let a folder that holds a pickle, or a TorchScript file, be loaded: that runs
            code.

    >>> from torch import nn
    >>> classify = predict_udf(nn.Linear(4, 3), answer="class")
    >>> classify.returns
    'double'
    >>> predict_udf(nn.Linear(4, 3), answer="klass")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no answer 'klass'. Did you mean 'class'? ...
    """
    application = PackedApplication.of(
        model,
        folder=folder,
        answer=answer,
        k=k,
        labels=labels,
        nulls=nulls,
        batch_size=batch_size,
        precision=precision,
        device=device,
        head=head,
        input_shapes=input_shapes,
        names=(features,) if isinstance(features, str) else features,
        allow_pickle=allow_pickle,
    )
    return PredictUdf(application, as_vector=as_vector, features=features, column=column)


@short_traceback
def register(spark: SparkSession, name: str, model: Any, **options: Any) -> PredictUdf:
    """Make a network a function of SQL: SELECT name(features) FROM table.

    Args:
        spark: the session, classic or Connect.
        name: of the function.
        model: as for `predict_udf`.
        **options: those of `predict_udf`.

    >>> from farandole import _spark
    >>> from torch import nn
    >>> spark = _spark.local_session("example")
    >>> strongest = register(spark, "strongest", nn.Identity(), answer="class")
    >>> spark.sql("SELECT strongest(array(1.0f, 3.0f, 2.0f)) AS found").first()["found"]
    1.0
    """
    if options.get("as_vector"):
        raise InputError("SQL takes arrays, not Vectors: leave as_vector out.")
    made = predict_udf(model, **options)
    spark.udf.register(name, made.spark_udf(spark))
    return made


@short_traceback
def predict_by_group(models: Mapping[Any, Any], **options: Any) -> PredictByGroup:
    """A model for each group, for groupBy().applyInPandas.

    Args:
        models: the value of the grouping column, or a tuple of several → a model.
        **options: those of `predict_udf`; the answers of all models must have one type.

    >>> from torch import nn
    >>> by_city = predict_by_group({"Oslo": nn.Linear(2, 1), "Rome": nn.Linear(2, 1)},
    ...                            features=["features"])
    >>> by_city.returns
    'array<double>'
    """
    if not models:
        raise InputError("There are no models: give one for each group.")
    return PredictByGroup({key: predict_udf(model, **options) for key, model in models.items()})


class PredictByGroup:
    """A model for each group; made by `predict_by_group`."""

    def __init__(self, udfs: Mapping[Any, PredictUdf]) -> None:
        self._udfs = {key if isinstance(key, tuple) else (key,): one for key, one in udfs.items()}
        types = {one.returns for one in udfs.values()}
        if len(types) > 1:
            raise InputError(f"The models answer in different types: {', '.join(sorted(types))}.")
        self.returns = types.pop()
        """The type of the answers, in Spark's words."""

    def schema(self, frame: DataFrame) -> StructType:
        """What `per_group` gives for the rows of a DataFrame."""
        return next(iter(self._udfs.values())).schema(frame)

    @property
    def per_group(self) -> Any:
        """The function for applyInPandas: each group's rows, with its own model's answers."""
        functions = {key: one.per_group for key, one in self._udfs.items()}

        def predict(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
            if key not in functions:
                known = ", ".join(str(known) for known in list(functions)[:10])
                raise InputError(f"There is no model for the group {key}. There are: {known}")
            answered: pd.DataFrame = functions[key](group)
            return answered

        return worker_function(predict)
