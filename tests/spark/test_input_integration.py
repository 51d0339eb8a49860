"""Input that can't be trained on: refused before step 1, with column, value and count."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F
from tests.spark.samples import frame, small_network
from torch import nn

import farandole
from farandole._spark import frames
from farandole.errors import InputError, NotEnoughSlots
from farandole.spark import TorchEstimator
from farandole.training.events import TrainingStarted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

Change = Callable[["DataFrame"], "DataFrame"]


def estimator(**params: Any) -> TorchEstimator:
    return TorchEstimator(**{"network": small_network(), "progress": False, **params})


def put(name: str, value: str, where: str) -> Change:
    """Write a value to some rows of a column."""
    return lambda data: data.withColumn(name, F.expr(f"if({where}, {value}, {name})"))


def item(value: str) -> str:
    return f"transform(features, (x, i) -> if(i = 2, {value}, x))"


def shorter(data: DataFrame) -> DataFrame:
    vector = array_to_vector("features")
    short = array_to_vector(F.slice("features", 1, 3))
    return data.withColumn("features", F.when(F.expr("id % 20 = 0"), short).otherwise(vector))


def refusal(data: DataFrame, **params: Any) -> str:
    """What a fit on two workers says before its first step."""
    heard: list[object] = []
    with pytest.raises(InputError) as caught:
        estimator(numWorkers=2, observer=heard.append, **params).fit(data)
    assert not any(isinstance(event, TrainingStarted) for event in heard)
    assert "Py4J" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_values_that_cannot_be_used_are_counted_over_all_workers(spark: SparkSession) -> None:
    data = frame(spark)
    for name in ("nulls", "holes", "nan", "infinite"):
        data = data.withColumn(name, F.col("features"))
    data = put("nulls", "null", "id % 10 = 0")(data)
    data = put("holes", item("null"), "id % 2 = 0")(data)
    data = put("nan", item("float('nan')"), "id % 20 = 1")(data)
    data = put("infinite", item("float('-inf')"), "id = 77")(data)
    data = put("label", "null", "id < 60")(shorter(data))
    names = ["features", "nulls", "holes", "nan", "infinite"]
    message = refusal(data, featuresCols=names)
    assert "'nulls': 12 rows have null" in message
    assert "'holes': " in message
    assert "'nan': 6 rows have NaN or infinite values (for example nan)" in message
    assert "'infinite': 1 row has NaN or infinite values (for example -inf)" in message
    assert "Labels MUST NOT be Null or NaN (60 rows of column 'label')" in message
    assert "'features': 6 rows have another size" in message


def test_labels_and_weights_that_make_no_sense(spark: SparkSession) -> None:
    data = frame(spark).withColumn("weight", F.expr("if(id < 7, -2.5, 1.0)"))
    data = data.withColumn("label", F.col("label").cast("double"))
    for value, where in [("3", "id % 8 = 0"), ("-1", "id = 9"), ("0.5", "id in (1, 2, 3)")]:
        data = put("label", f"double({value})", where)(data)
    message = refusal(data, weightCol="weight")
    assert "'label': 16 rows have a label outside of 0 … 2" in message
    assert "'label': 3 rows have a fractional label, expected class numbers" in message
    words = "Weights MUST NOT be Negative or Infinity, but got -2.5"
    assert f"{words} (7 rows of column 'weight')" in message


def test_what_is_no_number_in_the_words_of_spark(spark: SparkSession) -> None:
    """Spark's linear regression has labels and weights too: it says the same."""
    data = frame(spark).withColumn("features", array_to_vector("features"))
    data = data.selectExpr("id", "features", "double(label) AS label", "1.0D AS weight")
    spoiled = {
        "label": ["double('inf')", "double('nan')", "string(label)"],
        "weight": ["double('nan')", "double('-inf')", "string(weight)"],
    }
    for column, values in spoiled.items():
        for value in values:
            change = f"if(id = 7, {value}, {column})" if "double" in value else value
            bad = data.withColumn(column, F.expr(change))
            network = small_network(1)
            said = refusal(bad, network=network, loss="mse", weightCol="weight")
            theirs = LinearRegression(weightCol="weight", maxIter=1)
            with pytest.raises(Exception, match=r"MUST NOT|must be of type numeric") as caught:
                theirs.fit(bad)
            spark_says = re.search(
                r"(Labels|Weights) MUST NOT be (Null or NaN|[A-Za-z ]*Infinity, but got -?Infinity)"
                r"|Column \w+ must be of type numeric but was actually of type string",
                str(caught.value),
            )
            assert spark_says is not None, str(caught.value)
            assert spark_says[0] in said
            assert ("StringIndexer" in said) == (value == "string(label)")
            assert ("cast('double')" in said) == (value == "string(weight)")


def test_features_that_the_network_does_not_take(spark: SparkSession) -> None:
    message = refusal(frame(spark), network=nn.Linear(5, 3))
    assert "'features' with shape (4,)" in message
    assert "first layer" in message


def test_a_stopped_session_is_no_matter_of_types(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frame(spark)

    def stopped(session: object) -> None:
        raise InputError("The Spark session has been stopped.")

    monkeypatch.setattr(frames, "check_running", stopped)
    with pytest.raises(InputError, match=r"^The Spark session has been stopped"):
        estimator().fit(data)


def test_an_empty_dataframe(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="no rows"):
        estimator(numWorkers=2).fit(frame(spark).limit(0))


COLUMNS = {
    "string": ("string(id)", "'odd' holds strings.*StringIndexer"),
    "struct": ("struct(id)", "'odd' holds structs.*select"),
    "map": ("map('a', id)", "'odd' holds maps"),
    "timestamp": ("timestamp_seconds(id)", "'odd' holds timestamp.*unix_timestamp"),
    "date": ("date_from_unix_date(int(id))", "'odd' holds date"),
    "strings": ("array(string(id))", "'odd' holds strings"),
    "void": ("null", "'odd' holds nothing but nulls"),
}


@pytest.mark.parametrize("role", ["featuresCol", "labelCol"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_types_that_cannot_become_tensors(spark: SparkSession, kind: str, role: str) -> None:
    expression, message = COLUMNS[kind]
    data = frame(spark).withColumn("odd", F.expr(expression))
    with pytest.raises(InputError, match=message):
        estimator(**{role: "odd"}).fit(data)


def test_columns_that_are_missing_or_there_twice(spark: SparkSession) -> None:
    data = frame(spark)
    with pytest.raises(InputError, match=r"no column 'lable'\. Did you mean 'label'"):
        estimator(labelCol="lable").fit(data)
    with pytest.raises(InputError, match="2 columns named 'label'"):
        estimator().fit(data.select("*", "label"))
    with pytest.raises(InputError, match="2 columns named 'label'"):
        estimator().fit(data.select("*", F.lit(1).alias("label")))
    with pytest.raises(InputError, match="no column 'weight'"):
        estimator(weightCol="weight").fit(data)
    with pytest.raises(InputError, match="no column 'held_out'"):
        estimator(validationIndicatorCol="held_out").fit(data)


@pytest.mark.parametrize("param", ["predictionCol", "probabilityCol", "rawPredictionCol"])
def test_output_columns_that_exist(spark: SparkSession, param: str) -> None:
    with pytest.raises(InputError, match=f"'id' exists already, but {param}"):
        estimator(**{param: "id"}).fit(frame(spark))


def test_two_outputs_of_one_name(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="'p' is predictionCol, but probabilityCol"):
        estimator(predictionCol="p", probabilityCol="p").fit(frame(spark))


def test_more_workers_than_slots(spark: SparkSession) -> None:
    with pytest.raises(NotEnoughSlots, match=r"3 workers .* 2 tasks"):
        estimator(numWorkers=3).fit(frame(spark))


def test_fewer_rows_than_workers_and_one_class_warn(spark: SparkSession) -> None:
    one = spark.createDataFrame([(Vectors.dense(1, 2, 3, 4), 1.0)], ["features", "label"])
    with (
        pytest.warns(UserWarning, match="1 rows for 2 workers"),
        pytest.warns(UserWarning, match="All labels are 1: there is only one class"),
    ):
        model = estimator(numWorkers=2).fit(one)
    assert len(model.history) == 1


def test_a_refusal_costs_no_worker(spark: SparkSession) -> None:
    def processes() -> set[int]:
        return set(farandole.run(os.getpid, num_workers=2, engine="spark"))

    before = processes()
    bad = put("label", "null", "id = 3")(frame(spark))
    with pytest.raises(InputError, match=r"Labels MUST NOT be Null or NaN \(1 row of"):
        estimator(numWorkers=2).fit(bad)
    assert before <= {process.pid for process in psutil.process_iter()}
