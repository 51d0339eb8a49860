from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.commands import main


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
    assert predict(tmp_path) == 2
    assert "exists. Choose another --output, or --overwrite." in capsys.readouterr().err
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
        (("--batch-size", "0"), "Received: --batch-size 0"),
        (("--batch-size", "many"), "--batch-size must be a whole number or auto"),
        (("--num-workers", "0"), "Received: --num-workers 0"),
        (("--batchsize", "3"), "There is no option --batchsize. Did you mean --batch-size?"),
    ):
        assert predict(tmp_path, *options) == 2
        said = capsys.readouterr().err
        assert complaint in said
        assert len(said.splitlines()) == 1
    assert not (tmp_path / "out.parquet").exists()


def test_all_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "net"]) == 2
    assert capsys.readouterr().err == "farandole: Missing: --input, --output.\n"


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_network(tmp_path)
    good = {"--model": str(tmp_path / "net"), "--input": str(tmp_path / "in.parquet")}
    for option in good:
        given = {**good, option: str(tmp_path / "nowhere")}
        words = [word for pair in given.items() for word in pair]
        assert main(["predict", *words, "--output", str(tmp_path / "out.parquet")]) == 2
        assert f"There is no file or folder '{tmp_path}/nowhere'" in capsys.readouterr().err


def test_an_impossible_place_is_told_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "out")
    assert main(["predict", "--model", "net", "--input", "in", "--output", output]) == 2
    assert f"{str(tmp_path / 'file')!r} is no folder" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_torchscript_needs_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.jit.trace(nn.Linear(2, 3), torch.zeros(1, 2)).save(tmp_path / "net.pt")
    rows = pa.table({"x": pa.array([[0.5, 1.0]], pa.list_(pa.float32()))})
    pq.write_table(rows, tmp_path / "rows.parquet")
    words = ["--model", "net.pt", "--input", "rows.parquet", "--output", "out.parquet"]
    words = [word if word[0] == "-" else str(tmp_path / word) for word in words]
    words = ["predict", *words, "--features", "x", "--quiet"]
    assert main(words) != 0
    assert "--allow-pickle" in capsys.readouterr().err
    assert main([*words, "--allow-pickle"]) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 1
