"""Few labelled photos, few labelled texts: a network that has learned before, and one that hasn't.

    .venv/bin/python benchmarks/transfer.py [--seeds 0 1 2]

Photos: CIFAR-10, 20 of each class to learn from and 1,000 others to test with, MobileNetV2 at
96×96 with weights that were learned on ImageNet. Texts: every second of the 20 Newsgroups, 20
messages of each to learn from and 500 others to test with, the first 32 tokens of each, MiniLM-L6
as a sentence encoder. In each: only a new last layer learns ("frozen"); then all of it, slowly
("fine-tuned"); and the same network from random weights ("from scratch"). The latter two have the
better of two learning rates, chosen by the first seed's test rows, which is to their advantage;
"frozen" has one rate, that was not tuned. Nothing is augmented. A seed draws the rows, the
last layer and the order of batches. Data and weights are fetched from package registries, under
conditions of research, and are not shipped.
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from support import cifar, newsgroups, packages, reporting
from torch import nn

import farandole
from farandole.features import Cut
from farandole.inference import Predictor
from farandole.pretrained import MobileNetV2, SentenceEncoder, Tokenizer, backbone, sentence_encoder

Table = pa.Table
WAYS = ("frozen", "fine-tuned", "from scratch")


@dataclass(frozen=True)
class Subject:
    """A kind of data with its network, learned and random, and how each is trained."""

    title: str
    rows: Callable[[str, int], Table]
    """Of "train" or "test", drawn by a seed."""
    learned: Callable[[int], nn.Module]
    random: Callable[[int], nn.Module]
    body: tuple[str, ...]
    """The layers below the last one."""
    rates: dict[str, tuple[float, ...]]
    """Learning rates to try: of all layers from scratch, of the body in fine-tuning."""
    scratch: dict[str, Any]
    """Further options from scratch."""
    features: str
    """The layer whose output the last one takes."""


def photos(part: str, seed: int) -> Table:
    images, labels = cifar.few(part, 20 if part == "train" else 100, seed)
    return pa.table({"features": [png(image) for image in images], "label": labels})


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def texts(part: str, seed: int) -> Table:
    messages, groups, _ = newsgroups.load(part)
    rows = cifar.balanced(groups, 20 if part == "train" else 50, seed)
    rows = rows[groups[rows] % 2 == 0]
    tokens = Tokenizer(packages.minilm(), max_length=32).tokens([messages[row] for row in rows])
    offsets = np.concatenate([[0], tokens.lengths.cumsum(0).numpy()]).astype(np.int32)
    lists = pa.ListArray.from_arrays(offsets, tokens.values.numpy())
    return pa.table({"features": lists, "label": groups[rows] // 2})


SUBJECTS = {
    "photos": Subject(
        title="photos: 10 classes, 200 labelled",
        rows=photos,
        learned=lambda seed: backbone(
            "mobilenet_v2", packages.mobilenet_weights(), outputs=10, size=96, seed=seed
        ),
        random=lambda seed: MobileNetV2(outputs=10, size=96, seed=seed),
        body=("features",),
        rates={"fine-tuned": (3e-5, 3e-4), "from scratch": (1e-3, 4e-3)},
        scratch={"epochs": 30, "schedule": "cosine"},
        features="features",
    ),
    "texts": Subject(
        title="texts: 10 groups, 200 labelled",
        rows=texts,
        learned=lambda seed: sentence_encoder(
            packages.minilm(), outputs=10, normalize=False, seed=seed
        ),
        random=lambda seed: SentenceEncoder(outputs=10, normalize=False, seed=seed),
        body=("embeddings", "encoder"),
        rates={"fine-tuned": (2e-5, 1e-4), "from scratch": (2e-4, 1e-3)},
        scratch={"epochs": 15, "schedule": "cosine", "warmup": 10},
        features="pooling",
    ),
}


def fit(network: nn.Module, table: Table, seed: int, **options: Any) -> farandole.TrainingResult:
    shared = {"seed": seed, "batch_size": 32, "progress": False, "num_workers": 1}
    return farandole.train(network, table, features="features", **shared, **options)


def accuracy(result: farandole.TrainingResult, test: Table) -> float:
    found = result.predictor(test).prediction
    return float((found == test["label"].to_numpy()).mean())


def learn(subject: Subject, way: str, train: Table, seed: int, rate: float) -> Any:
    """Train in one way; the rate is that of what has to be found out by trying."""
    frozen: dict[str, Any] = {"freeze": "all but head", "learning_rate": 5e-3}
    if way == "from scratch":
        return fit(subject.random(seed), train, seed, learning_rate=rate, **subject.scratch)
    if way == "frozen":
        return fit(subject.learned(seed), train, seed, epochs=30, **frozen)
    rates = dict.fromkeys(subject.body, rate)
    late = {"epochs": 15, "unfreeze_at": 11, "learning_rates": rates}
    return fit(subject.learned(seed), train, seed, **frozen, **late)


def tries(subject: Subject, way: str, seed: int, rates: tuple[float, ...]) -> list[dict[str, Any]]:
    """What each rate leads to: accuracy on rows that were not learned from, and seconds."""
    train, test = subject.rows("train", seed), subject.rows("test", seed)
    found = []
    for rate in rates:
        result = learn(subject, way, train, seed, rate)
        found.append(
            {
                "seed": seed,
                "rate": rate,
                "accuracy": accuracy(result, test),
                "seconds": result.seconds["total"],
                "train_loss": float(result.history["train_loss"].iloc[-1]),
            }
        )
        print(subject.title, way, found[-1], flush=True)
    return found


def compare(subject: Subject, seeds: list[int]) -> dict[str, Any]:
    """All ways with all seeds; the first one chooses a rate where there are two."""
    found: dict[str, Any] = {"rejected": []}
    for way in WAYS:
        first = tries(subject, way, seeds[0], subject.rates.get(way, (5e-3,)))
        best = max(first, key=lambda one: one["accuracy"])
        found["rejected"] += [{"way": way, **one} for one in first if one is not best]
        others = (tries(subject, way, seed, (best["rate"],)) for seed in seeds[1:])
        found[way] = [best, *(one for (one,) in others)]
    return found


def epochs(subject: Subject, repeats: int = 3) -> dict[str, list[float]]:
    """What an epoch over the rows costs, while the layers below the last one are frozen."""
    table, network = subject.rows("train", 0), subject.learned(0)
    known, sizes = vectors(subject, table), head_sizes(network)
    options: dict[str, Any] = {"freeze": "all but head", "learning_rate": 5e-3}
    found: dict[str, list[float]] = {"first": [], "later": [], "head": [], "uncached": []}
    for _ in range(repeats):  # by turns, so that what else the machine does hits all of them
        cached = fit(network, table, 0, epochs=30, **options)
        first = cached.seconds["features"] + float(cached.history["seconds"].iloc[0])
        found["first"].append(first)
        found["later"].append(middle(cached))
        found["head"].append(middle(fit(nn.Linear(*sizes), known, 0, epochs=30)))
        plain = fit(network, table, 0, epochs=3, cache_features=False, **options)
        found["uncached"].append(middle(plain))
    return found


def head_sizes(network: nn.Module) -> tuple[int, int]:
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    return head.in_features, head.out_features


def vectors(subject: Subject, table: Table) -> Table:
    """What the last layer takes, made by a Cut."""
    cut = Cut(subject.learned(0), subject.features).eval()
    found = Predictor(cut, batch_size=64)({"features": table["features"]})
    rows = list(np.asarray(found.outputs[0], np.float32))
    return pa.table({"features": rows, "label": table["label"]})


def middle(result: farandole.TrainingResult) -> float:
    """The median of an epoch's seconds, the first one left out."""
    return float(statistics.median(result.history["seconds"].iloc[1:]))


def comparison_table(comparisons: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, found in comparisons.items():
        for way in WAYS:
            percent = [100 * one["accuracy"] for one in found[way]]
            rate = f" (rate {found[way][0]['rate']:g})"
            seconds = reporting.spread([one["seconds"] for one in found[way]], 1)
            rows.append(
                [SUBJECTS[name].title, way + rate, f"{reporting.spread(percent, 1)} %", seconds]
            )
    return reporting.markdown(["data", "network", "accuracy", "seconds to train"], rows)


def margin(found: dict[str, Any]) -> list[float]:
    """Percentage points, seed by seed, that a frozen network is ahead of a random one."""
    pairs = zip(found["frozen"], found["from scratch"], strict=True)
    return [100 * (one["accuracy"] - other["accuracy"]) for one, other in pairs]


def epoch_table(costs: dict[str, dict[str, list[float]]]) -> str:
    rows = [
        [SUBJECTS[name].title, *(_milliseconds(values) for values in cost.values())]
        for name, cost in costs.items()
    ]
    header = ["data", "first epoch, with the frozen layers", "later ones", "the last layer alone"]
    return reporting.markdown([*header, "every epoch without the cache"], rows)


def _milliseconds(seconds: list[float]) -> str:
    return f"{reporting.spread([1000 * one for one in seconds], 0)} ms"


def page(comparisons: dict[str, Any], costs: dict[str, Any], note: str) -> str:
    """What is written down."""
    leads = "; ".join(
        f"{name}: {reporting.spread(margin(found), 1)}" for name, found in comparisons.items()
    )
    seeds = len(comparisons["photos"]["frozen"])
    head = "# Transfer learning\n\n" + str(__doc__).split("\n\n", 2)[2]
    return (
        f"{head}\nMedians (and ranges) of {seeds} seeds; seconds include reading. The rate of a "
        f"fine-tuned network is that of its body.\n\n{comparison_table(comparisons)}\n\nPoints "
        f"by which the frozen network is ahead of the one from scratch, seed by seed: {leads}.\n\n"
        "## What an epoch costs\n\nWhile layers are frozen, they see each row once, and the first "
        "epoch pays for that. Medians of later epochs in three runs, taken by turns.\n\n"
        f"{epoch_table(costs)}\n\nThreads of torch: {torch.get_num_threads()}. {note}\n"
    )


def main() -> None:
    """Compare, measure epochs, and write both down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--note", default="", help="what readers should know about this run")
    options = parser.parse_args()
    torch.manual_seed(0)
    costs = {name: epochs(subject) for name, subject in SUBJECTS.items()}
    comparisons = {name: compare(subject, options.seeds) for name, subject in SUBJECTS.items()}
    figures = {"threads": torch.get_num_threads(), "note": options.note}
    figures |= {"comparisons": comparisons, "epochs": costs}
    reporting.write("transfer", figures, page(comparisons, costs, options.note))


if __name__ == "__main__":
    main()
