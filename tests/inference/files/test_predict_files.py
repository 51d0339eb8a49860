"""Networks applied to files; the oracle is plain torch on the whole table."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.inference.files import parquet_writer as writing
from farandole.inference.files import tables as reading
from farandole.inference.files.threads import map_in_order
from farandole.networks import CNN
from farandole.ragged import Ragged

ROWS = 3000


@pytest.fixture
def rows(tmp_path: Path) -> np.ndarray[Any, Any]:
    """Write in.parquet with features x and an id, and give the features."""
    values = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    table = pa.table({"id": range(ROWS), "x": list(values), "note": ["n"] * ROWS})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=700)
    return values


def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 100)


def trained() -> tuple[nn.Module, Signature]:
    torch.manual_seed(0)
    about = Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
    )
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), about


def run(folder: Path, model: Any, source: str = "in.parquet", **options: Any) -> pa.Table:
    out = folder / "out.parquet"
    done = farandole.predict(model, folder / source, out, progress=False, **options)
    found = pq.read_table(out)
    assert (done.rows, done.path) == (found.num_rows, str(out))
    return found


def left_behind(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != "in.parquet")


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_torchs_in_the_order_of_the_rows(
    tmp_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    small_batches(monkeypatch)
    network, about = trained()
    Artifact(network, about).save(tmp_path / "net")
    before = torch.get_num_threads()
    found = run(tmp_path, tmp_path / "net", answer="all", num_workers=workers)
    assert torch.get_num_threads() == before
    assert found.schema.names == ["id", "x", "note", "prediction"]
    assert found["id"].to_pylist() == list(range(ROWS))
    with torch.no_grad():
        scores = network(torch.tensor(rows))
    answers = found["prediction"].combine_chunks()
    raw = np.stack(answers.field("raw").to_pylist())
    np.testing.assert_allclose(raw, scores.numpy(), rtol=1e-5, atol=1e-6)
    assert answers.field("prediction").to_pylist() == scores.argmax(1).tolist()
    shares = np.stack(answers.field("probability").to_pylist())
    np.testing.assert_allclose(shares, scores.softmax(1).numpy(), rtol=1e-5, atol=1e-6)


def test_only_what_is_asked_for_is_read_and_written(tmp_path: Path, rows: Any) -> None:
    network, _ = trained()
    found = run(
        tmp_path, network, features=["x"], keep=["id"], column="best", answer="topk", k=2,
        labels=["a", "b", "c"],
    )  # fmt: skip
    assert found.schema.names == ["id", "best"]
    with torch.no_grad():
        expected = network(torch.tensor(rows)).softmax(1).topk(2)
    first = found["best"][0].as_py()
    assert [entry["label"] for entry in first] == ["abc"[n] for n in expected.indices[0].tolist()]
    assert first[0]["probability"] == pytest.approx(expected.values[0, 0].item(), rel=1e-5)


def test_csv_columns_of_numbers(tmp_path: Path, rows: Any) -> None:
    lines = ["a,b,c,d", *(",".join(map(repr, map(float, row))) for row in rows)]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    network, _ = trained()
    found = run(tmp_path, network, "in.csv", features=list("abcd"), keep=[], answer="raw")
    with torch.no_grad():
        expected = network(torch.tensor(rows)).numpy()
    np.testing.assert_allclose(np.stack(found["prediction"].to_pylist()), expected, rtol=1e-4)


def test_nulls_are_named_by_file_and_row_or_answered_with_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_batches(monkeypatch)
    network, about = trained()
    values: list[Any] = [[float(n), 0.0, 0.0, 1.0] for n in range(1000)]
    values[:150] = [None] * 150  # so that at first nothing can be answered
    pq.write_table(pa.table({"x": [*values[150:700], None]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"row 550 of '.*in\.parquet'"):
        run(tmp_path, Artifact(network, about))
    assert left_behind(tmp_path) == []
    pq.write_table(pa.table({"x": values}), tmp_path / "in.parquet")
    found = run(tmp_path, network, nulls="null", answer="topk", k=1)["prediction"]
    assert found.null_count == 150
    assert found.slice(0, 150).null_count == 150


def test_no_rows_give_a_file_without_rows(tmp_path: Path) -> None:
    empty = pa.table({"x": pa.array([], pa.list_(pa.float32()))})
    pq.write_table(empty, tmp_path / "in.parquet")
    network, about = trained()
    found = run(tmp_path, Artifact(network, about))
    assert found.num_rows == 0
    assert found.schema.field("prediction").type == pa.float64()


class Failing(nn.Module):
    """Fails for the row whose first value is 2,500."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x[:, 0] == 2500).any():
            raise RuntimeError("no such number")
        return x


def test_a_failure_late_in_the_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_batches(monkeypatch)
    pq.write_table(pa.table({"x": [[float(n)] for n in range(ROWS)]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"rows 2,500 … 2,599 of '.*': RuntimeError: no such"):
        run(tmp_path, Failing())
    assert left_behind(tmp_path) == []
    (tmp_path / "out.parquet").write_text("precious")
    with pytest.raises(InputError, match="no such number"):
        run(tmp_path, Failing(), overwrite=True)
    assert (tmp_path / "out.parquet").read_text() == "precious"
    assert left_behind(tmp_path) == ["out.parquet"]


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return x


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 10)
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Slow(), features=["x"], num_workers=1)
    timer.join()
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"features": ["y"]}, "no column 'y'"),
        ({"features": ["note"]}, "holds strings"),
        ({"features": ["x", "id"]}, "takes 1 columns"),
        ({"keep": ["idd"]}, "Did you mean 'id'"),
        ({"keep": "id"}, 'keep must be "all"'),
        ({"column": "note"}, "exists already"),
        ({"answer": "klass"}, "Did you mean 'class'"),
        ({"num_workers": 0}, "num_workers must be"),
        ({"nulls": "drop"}, "nulls must be"),
        ({"head": "softmax"}, "without a signature"),
        ({"k": 4, "answer": "topk"}, "3 classes"),
    ],
)
def test_wrong_options_are_told_before_anything_is_done(
    tmp_path: Path, rows: Any, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        run(tmp_path, Artifact(*trained()), **options)
    assert left_behind(tmp_path) == []


def test_memory_is_bounded_whatever_the_size_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1 << 18)
    monkeypatch.setattr(writing, "_GROUP_BYTES", 1 << 20)
    part = pa.array(np.random.default_rng(0).random(10_000 * 784, np.float32))
    whole = pa.table({"x": pa.FixedSizeListArray.from_arrays(part, 784)})
    with pq.ParquetWriter(tmp_path / "in.parquet", whole.schema, use_dictionary=False) as writer:
        for _ in range(4):
            writer.write_table(whole)
    size = whole.nbytes * 4
    del whole, part
    process, over = psutil.Process(), threading.Event()
    seen: list[int] = []
    resident: list[int] = []

    def watch() -> None:
        while not over.wait(0.005):
            seen.append(pa.total_allocated_bytes())
            resident.append(process.memory_info().rss)

    def predict(keep: Any) -> None:
        target = tmp_path / "out.parquet"
        options: dict[str, Any] = {"progress": False, "overwrite": True, "num_workers": 2}
        farandole.predict(nn.Linear(784, 1), tmp_path / "in.parquet", target, keep=keep, **options)

    predict([])  # what the first call loads and keeps is no part of the bound
    watcher = threading.Thread(target=watch)
    resident.append(process.memory_info().rss)
    held = pa.total_allocated_bytes()
    watcher.start()
    try:
        predict("all")
    finally:
        over.set()
        watcher.join()
    assert size > 110 << 20
    assert max(seen) - held < 40 << 20
    assert max(resident) - resident[0] < 96 << 20  # allocators keep some of what they had


def test_few_tasks_are_under_way_and_results_keep_their_order() -> None:
    taken: list[int] = []

    def tasks() -> Any:
        for number in range(20):
            taken.append(number)
            yield number

    def work(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        return number

    results = map_in_order(work, tasks(), workers=2)
    for expected, found in enumerate(results):
        assert found == expected
        assert len(taken) <= expected + 3


def photo(height: int, width: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.png").write_bytes(photo(20 + number, 30, number))
    (folder / "more" / "5.png").write_bytes(photo(40, 20, 5))
    (folder / "2.png").write_bytes(photo(22, 30, 2)[:200])
    (folder / "3.jpg").touch()
    return folder


def network_for_photos() -> CNN:
    torch.manual_seed(0)
    return CNN(channels=3, outputs=4)


def test_broken_photos_are_rows_with_an_error(tmp_path: Path, photos: Path) -> None:
    network = network_for_photos()
    out = tmp_path / "out.parquet"
    done = farandole.predict(network, photos, out, answer="raw", progress=False)
    assert (done.rows, done.errors) == (7, 2)
    found = pq.read_table(out).to_pylist()
    names = [os.path.relpath(row["path"], photos) for row in found]
    assert names == ["0.png", "1.png", "2.png", "3.jpg", "3.png", "4.png", "more/5.png"]
    assert [row["error"] is None for row in found] == [True, True, False, False, True, True, True]
    assert found[3]["error"] == "an empty file"
    assert found[2]["prediction"] is None
    pixels = torch.tensor(np.asarray(Image.open(photos / "more" / "5.png")))
    with torch.no_grad():
        alone = network(Ragged(pixels.reshape(-1, 3), torch.tensor([[40, 20]])))
    np.testing.assert_allclose(found[6]["prediction"], alone[0].numpy(), rtol=1e-4, atol=1e-5)


class Picky(nn.Module):
    """Takes no photo of one line."""

    ragged_axes = (2,)

    def forward(self, images: Any) -> torch.Tensor:
        if (images.sizes[:, 0] == 1).any():
            raise ValueError("one line is no photo")
        return images.sizes.float()


def test_a_photo_that_the_network_refuses_costs_no_other_one(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, height in enumerate((4, 1, 3)):
        (folder / f"{number}.png").write_bytes(photo(height, 5, number))
    found = run(tmp_path, Picky(), "photos").to_pylist()
    assert [row["prediction"] for row in found] == [[4.0, 5.0], None, [3.0, 5.0]]
    assert found[1]["error"] == "ValueError: one line is no photo"
    (tmp_path / "one.png").write_bytes(photo(1, 5, 0))
    with pytest.raises(ValueError, match="one line"):
        run(tmp_path, Picky(), "one.png", overwrite=True)


def test_photos_need_a_network_for_them(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(InputError, match="ragged_axes"):
        run(tmp_path, nn.Flatten(), "photos")
    with pytest.raises(InputError, match="photos have no columns"):
        run(tmp_path, network_for_photos(), "photos", keep=["path"])
