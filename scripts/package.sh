#!/bin/sh
# Usage: scripts/package.sh
# Builds the source archive and, out of it, the wheel into dist/. Then does what a user does with the wheel, in two
# empty virtual environments outside of this checkout:
#   farandole[spark]   `farandole doctor`, and the first example of the README as a script;
#   farandole alone    predictions by the network that the example saved, and training on local processes, with
#                      neither Spark nor Java.
set -eu
cd "$(dirname "$0")/.."
root=$PWD

say() { echo "==> $*"; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
# Nothing of the checkout may be found by accident.
unset PYTHONPATH VIRTUAL_ENV SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON

say "Building"
rm -rf dist
PIP_CONSTRAINT="$root/constraints.txt" .venv/bin/python -m build --outdir dist . >"$folder/build.log" 2>&1 || {
    tail -n 30 "$folder/build.log" >&2
    exit 1
}
ls -1 dist
wheel=$(echo "$root"/dist/farandole-*.whl)

# The README's code under "Ten lines", between what it takes for granted and what the last part needs.
{
    cat <<'PYTHON'
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
flowers = spark.range(150).selectExpr(
    "id % 3 AS label", "5 + id % 3 + 0.3 * randn(1) AS sepal", "1 + 2 * (id % 3) + 0.3 * randn(2) AS petal"
)
PYTHON
    awk '/^## Ten lines/ { here = 1 } inside && /^```$/ { exit } inside { print } here && /^```python/ { inside = 1 }' \
        README.md
    cat <<'PYTHON'
from pyspark.ml.functions import vector_to_array

answers = model.transform(df).select(vector_to_array("features").alias("features"), "prediction")
answers.withColumnRenamed("prediction", "expected").toPandas().to_parquet("flowers.parquet")
spark.stop()
PYTHON
} >"$folder/ten_lines.py"

say "farandole[spark] in an empty environment"
.venv/bin/python -m venv "$folder/spark"
sh scripts/pip_install.sh "$folder/spark" "$wheel[spark]"
JAVA_HOME=$(sh scripts/java.sh)
export JAVA_HOME
cd "$folder"
spark/bin/farandole doctor
say "The README's ten lines"
spark/bin/python ten_lines.py

say "farandole alone in an empty environment"
"$root/.venv/bin/python" -m venv "$folder/alone"
sh "$root/scripts/pip_install.sh" "$folder/alone" "$wheel"
alone() { env -i HOME="$folder" PATH="$folder/alone/bin" "$@"; }
alone farandole --help >/dev/null
alone farandole predict --model flowers-model --input flowers.parquet --output predicted.parquet
cat >alone.py <<'PYTHON'
import importlib.util
import shutil

import pandas
from torch import nn

import farandole

if __name__ == "__main__":
    assert importlib.util.find_spec("pyspark") is None, "pyspark was installed with farandole alone"
    assert shutil.which("java") is None, "there is a Java on the PATH"
    table = pandas.read_parquet("predicted.parquet")
    assert len(table) == 150 and (table["prediction"] == table["expected"]).all(), table
    rows = pandas.DataFrame({"features": table["features"], "label": table["expected"].astype(int)})
    print(farandole.train(nn.Linear(2, 3), rows, epochs=2, num_workers=2, progress=False).history)
PYTHON
alone python alone.py
say "The package works: with Spark, and alone"
