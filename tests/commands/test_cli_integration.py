"""The commands, as a person runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.commands.cli import main
from farandole.networks import CNN


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert farandole.__version__ in capsys.readouterr().out


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_doctor_of_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-spark"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("torch" in line for line in lines)


@pytest.mark.integration
def test_the_demo_learns_saves_loads_asks_and_draws(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole.commands.cli", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    row = re.search(r"digits\s*│\s*([\d.]+)\s*│\s*([\d.]+)", done.stdout)
    assert row is not None, done.stdout
    assert float(row[2]) >= 0.95
    assert "recognised" in done.stdout
    assert "epoch 1/" in done.stderr
    picture = tmp_path / "farandole-demo" / "learning-curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    network = tmp_path / "farandole-demo" / "digits" / "network"
    assert Artifact.load(network).signature.num_classes == 10


def saved_network(folder: Path) -> Path:
    """Save a network that answers with the larger of two columns, and a table for it."""
    signature = Signature(
        features=("a", "b"), shapes=((), ()), dtypes=("float32",) * 2,
        head="softmax", outputs=2, stacked=True,
    )  # fmt: skip
    Artifact(nn.Sequential(nn.Identity()), signature).save(folder / "net")
    table = pa.table({"id": [7, 8, 9], "a": [1.0, 5.0, 2.0], "b": [3.0, 4.0, 1.0]})
    pq.write_table(table, folder / "in.parquet")
    return folder / "net"


def predict(folder: Path, *options: str) -> int:
    files = ["--model", "net", "--input", "in.parquet", "--output", "out.parquet"]
    return main(["predict", *(str(folder / f) if "--" not in f else f for f in files), *options])


def test_predict_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_network(tmp_path)
    (tmp_path / "names.txt").write_text("first\nsecond\n")
    labels = str(tmp_path / "names.txt")
    assert predict(tmp_path, "--keep", "id", "--labels", labels, "--workers", "1") == 0
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert found == {"id": [7, 8, 9], "prediction": ["second", "first", "first"]}
    assert "3 rows" in capsys.readouterr().out
    assert predict(tmp_path) == 1
    assert "overwrite" in capsys.readouterr().err
    assert predict(tmp_path, "--overwrite", "--keep", "none", "--answer", "topk", "--k", "1") == 0
    (best, *_) = pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist()
    assert [entry["class"] for entry in best] == [1.0]


def test_predict_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_network(tmp_path)
    for options, complaint in (
        (("--features", "a,c"), "There is no column 'c'"),
        (("--labels", "nowhere.txt"), "labels can't be read"),
        (("--answer", "klass"), "Did you mean 'class'"),
        (("--precision", "int7"), "int8"),
    ):
        assert predict(tmp_path, *options) == 1
        said = capsys.readouterr().err
        assert complaint in said
        assert "Traceback" not in said
    with pytest.raises(SystemExit) as ended:
        predict(tmp_path, "--batch-size", "many")
    assert ended.value.code == 2
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.integration
def test_predict_for_photos_in_a_process_of_its_own(tmp_path: Path) -> None:
    signature = Signature(
        features=("image",), shapes=((None, None, 3),), dtypes=("uint8",), head="softmax", outputs=2
    )
    Artifact(CNN(channels=3, outputs=2), signature).save(tmp_path / "net")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (32, 24), "red").save(tmp_path / "photos" / "red.png")
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no photo")
    command = "predict --model net --input photos --output out.parquet --answer probability"
    done = subprocess.run(
        [sys.executable, "-m", "farandole.commands.cli", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 could not be answered" in done.stdout
    broken, red = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (broken["path"], broken["prediction"]) == (str(Path("photos", "broken.jpg")), None)
    assert "UnidentifiedImageError" in broken["error"]
    assert sum(red["prediction"]) == pytest.approx(1.0)
