"""farandole demo: two real data sets, from Spark DataFrame to trained network to SQL."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.arguments import check_integer
from farandole.commands.exit_codes import DONE
from farandole.commands.output import add_open, check_folder, open_in_browser
from farandole.commands.parser import CommandParser, whole_number
from farandole.errors import MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from farandole.spark import TorchModel


@dataclass(frozen=True)
class Dataset:
    """A data set and how to learn it."""

    name: str
    about: str
    hidden: int
    epochs: int
    batch_size: int
    learning_rate: float


DATASETS = (
    Dataset("iris", "150 flowers, 4 measurements, 3 species", 16, 40, 16, 0.01),
    Dataset("digits", "1,797 handwritten digits, 8×8 pixels", 128, 25, 64, 0.003),
)


def add_options(parser: CommandParser) -> None:
    """Add where to write, and how many workers."""
    parser.description = "Train on Iris and digits with Spark on this machine, in half a minute."
    add = parser.add_argument
    add("--output", default="farandole-demo", metavar="FOLDER", help="for model and picture")
    add(
        "--num-workers", "--workers", type=whole_number, default=2, metavar="N",
        help="how many train together (2)",
    )  # fmt: skip
    add_open(parser, "the picture")


def run(options: argparse.Namespace) -> int:
    """Run the demo, and show its picture if that was asked for."""
    check_integer("num_workers", options.num_workers)
    picture = run_demo(check_folder(options.output), options.num_workers)
    if options.open:
        open_in_browser(picture)
    return DONE


def run_demo(folder: Path, workers: int = 2) -> Path:
    """Train, save, load, query, and draw the learning curves."""
    from rich.console import Console

    console = Console()
    start = time.perf_counter()
    console.print(f"[bold]Farandole[/bold]: a ring of {workers} workers inside Spark")
    session = _spark.local_session("farandole-demo", workers)
    console.print(f"Spark {session.version} is up after {time.perf_counter() - start:.1f} s\n")
    models = {}
    for dataset in DATASETS:
        console.print(f"[bold]{dataset.name}[/bold]: {dataset.about}")
        frame = load_frame(session, dataset.name)
        models[dataset.name] = fit(dataset, frame, workers)
        console.print()
    console.print(closing_table(models))
    query(session, models["digits"], load_frame(session, "digits"), folder / "digits", console)
    picture = draw(models, folder / "learning-curves.png")
    console.print(f"\nThe network: [bold]{folder / 'digits'}[/bold]")
    console.print(f"The picture: [bold]{picture}[/bold]")
    console.print(f"All of it took {time.perf_counter() - start:.0f} s.")
    session.stop()
    return picture


def load_frame(session: SparkSession, name: str) -> DataFrame:
    """One of scikit-learn's data sets as a Spark DataFrame of (features, label)."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackage("scikit-learn", "demo") from error
    import pyarrow as pa

    data: Any = datasets.load_iris() if name == "iris" else datasets.load_digits()
    features = (data.data - data.data.mean(0)) / (data.data.std(0) + 1e-9)
    table = pa.table({"features": list(features.astype("float32")), "label": data.target})
    return session.createDataFrame(table)


def fit(dataset: Dataset, frame: DataFrame, workers: int) -> TorchModel:
    """A multilayer perceptron, on all workers."""
    import torch
    from torch import nn

    from farandole.spark import TorchEstimator

    torch.manual_seed(0)
    inputs, outputs = {"iris": (4, 3), "digits": (64, 10)}[dataset.name]
    network = nn.Sequential(
        nn.Linear(inputs, dataset.hidden), nn.ReLU(), nn.Linear(dataset.hidden, outputs)
    )
    return TorchEstimator(
        network=network,
        loss="cross_entropy",
        epochs=dataset.epochs,
        batchSize=dataset.batch_size,
        learningRate=dataset.learning_rate,
        numWorkers=workers,
        validationFraction=0.2,
        seed=7,
    ).fit(frame)


def closing_table(models: dict[str, TorchModel]) -> Any:
    """What was reached, and what it took."""
    from rich.table import Table

    table = Table(title="What was learned, and what it took")
    phases = ("read", "ring-up", "train", "total")
    for name in ("", "train acc.", "valid. acc.", "rows/s", *(f"{phase} s" for phase in phases)):
        table.add_column(name, justify="right")
    for name, model in models.items():
        last = model.history.iloc[-1]
        table.add_row(
            name,
            f"{last['train_accuracy']:.3f}",
            f"{last['validation_accuracy']:.3f}",
            f"{model.history['rows_per_second'].median():,.0f}",
            *(f"{model.seconds[phase]:.2f}" for phase in phases),
        )
    return table


def query(
    session: SparkSession, model: TorchModel, frame: DataFrame, path: Path, console: Any
) -> None:
    """Save, load, and ask in SQL."""
    from farandole.spark import TorchModel

    model.write().overwrite().save(str(path))
    loaded = TorchModel.load(str(path))
    loaded.transform(frame).createOrReplaceTempView("predictions")
    question = (
        "SELECT label AS digit, count(*) AS seen, "
        "round(avg(int(prediction = label)), 3) AS recognised "
        "FROM predictions GROUP BY label ORDER BY label"
    )
    console.print(f"\nSaved to and loaded from [bold]{path}[/bold], then asked in SQL:\n{question}")
    session.sql(question).show()


def draw(models: dict[str, TorchModel], path: Path) -> Path:
    """The learning curves as a picture."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPackage("matplotlib", "plot") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(models), figsize=(5 * len(models), 3.6), squeeze=False)
    for axis, (name, model) in zip(axes[0], models.items(), strict=True):
        history = model.history
        axis.plot(history["epoch"], history["train_loss"], label="loss, training")
        axis.plot(history["epoch"], history["validation_loss"], label="loss, validation")
        axis.plot(
            history["epoch"], history["validation_accuracy"], "--", label="accuracy, validation"
        )
        axis.set(title=name, xlabel="epoch", ylabel="loss, accuracy", ylim=(0, None))
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
