"""Texts to tokens on Spark, and on to a network, against the same without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from tests.pretrained.tokenizers import words_file

from farandole import predict_udf
from farandole.errors import ArtifactError, InputError
from farandole.pretrained import SentenceEncoder, Tokenizer
from farandole.spark import TextTokenizer, TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

TEXTS = ["the cat sat", "", "sat", "the unknown cat", "cat cat cat cat cat"]


def frame(spark: SparkSession, texts: list[str | None]) -> DataFrame:
    return spark.createDataFrame(list(enumerate(texts)), "id long, text string").repartition(2)


def lists(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.tokens([text]).values.tolist() for text in TEXTS]


def found(tokens: DataFrame) -> list[list[int] | None]:
    return [row.tokens for row in tokens.orderBy("id").collect()]


def stage(tokenizer: object, **params: object) -> TextTokenizer:
    return TextTokenizer(inputCol="text", outputCol="tokens", tokenizer=tokenizer, **params)


def test_tokens_and_vectors_are_those_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    tokenizer = Tokenizer(words_file(tmp_path), max_length=5)
    tokens = stage(str(tmp_path), maxLength=5).transform(frame(spark, [*TEXTS]))
    assert dict(tokens.dtypes)["tokens"] == "array<int>"
    assert found(tokens) == lists(tokenizer)
    net = SentenceEncoder(None, True, 6, 16, 2, 4, 24, 9, seed=1).eval()
    rows = tokens.withColumn("vector", predict_udf(net, answer="raw")("tokens")).orderBy("id")
    with torch.inference_mode():
        expected = net(tokenizer.tokens(TEXTS))
    vectors = torch.tensor([row.vector for row in rows.collect()])
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)


def test_nulls_by_choice(spark: SparkSession, tmp_path: Path) -> None:
    texts = frame(spark, ["the cat", None, "cat"])
    file = words_file(tmp_path)
    answered = stage(str(file), nulls="null").transform(texts)
    assert found(answered) == [[1, 3, 4, 2], None, [1, 4, 2]]
    with pytest.raises(Exception, match=r"Column 'text': 1 row has no text \(null\)"):
        stage(str(file)).transform(texts).collect()


def test_in_a_pipeline_saved_and_loaded(spark: SparkSession, tmp_path: Path) -> None:
    file = words_file(tmp_path)
    texts = frame(spark, [*TEXTS]).selectExpr("*", "cast(text like '%cat%' as long) as label")
    network = SentenceEncoder(2, False, 6, 16, 1, 4, 24, 9, dropout=0.0, seed=1)
    estimator = TorchEstimator(
        network=network,
        featuresCol="tokens",
        freeze="all but head",
        epochs=3,
        learningRate=0.05,
        progress=False,
    )
    model = Pipeline(stages=[stage(str(file), maxLength=4), estimator]).fit(texts)
    model.save(str(tmp_path / "pipeline"))
    expected = lists(Tokenizer(file, max_length=4))
    file.unlink()
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    rows = loaded.transform(texts).orderBy("id").collect()
    assert [row.tokens for row in rows] == expected
    trained = loaded.stages[1].network
    answers = trained(loaded.stages[0].loaded().tokens(TEXTS)).argmax(1).tolist()
    assert [row.prediction for row in rows] == answers
    old = network.state_dict()
    changed = {
        name for name, one in trained.state_dict().items() if not torch.equal(one, old[name])
    }
    assert changed == {"head.weight", "head.bias"}


def test_a_tokenizer_that_is_gone_is_not_saved(spark: SparkSession, tmp_path: Path) -> None:
    kept = stage(str(words_file(tmp_path)))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match="There is no file or folder"):
        kept.save(str(tmp_path / "stage"))
    assert not (tmp_path / "stage").exists()


def test_columns_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    texts, file = frame(spark, [*TEXTS]), str(words_file(tmp_path))
    with pytest.raises(InputError, match=r"inputCol='id' must be .* strings\. Received: bigint"):
        TextTokenizer(inputCol="id", outputCol="tokens", tokenizer=file).transform(texts)
    with pytest.raises(InputError, match="Received: no such column"):
        TextTokenizer(inputCol="txt", outputCol="tokens", tokenizer=file).transform(texts)
    with pytest.raises(InputError, match="'text' exists already"):
        TextTokenizer(inputCol="text", outputCol="text", tokenizer=file).transform(texts)
    with pytest.raises(InputError, match=r"nulls must be 'error' or 'null'.*'nul'"):
        stage(file, nulls="nul").transform(texts)
