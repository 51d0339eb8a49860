from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

import farandole
from farandole.api import train
from farandole.artifact import Artifact
from farandole.commands import main
from farandole.commands.cli import find_command
from farandole.networks import MLP
from farandole.training import INTERRUPTED, RECIPE_DOCS, Recipe

NETWORK = ("--network", "MLP", "--layers", "2,8,2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with rows whose label says which of two numbers is larger."""
    rows = np.random.default_rng(0).normal(size=(200, 2))
    table = pa.table({"a": rows[:, 0], "b": rows[:, 1], "label": rows.argmax(1)})
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "def pair(): return nn.Sequential(nn.Linear(2, 2))\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x) if x.sum().item() > 0 else self.layer(-x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return tmp_path


def run(*options: str) -> int:
    return main(["train", "--data", "rows.parquet", "--output", "net", "--quiet", *options])


def test_what_is_trained_is_saved_and_predicts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "30", "--learning-rate", "0.05", "--validation", "0.2", "--seed", "3"]
    assert run(*NETWORK, *options) == 0
    printed = capsys.readouterr().out
    assert "The last 10 of 30 epochs:" in printed
    assert "validation_accuracy" in printed
    assert "The network: net\n" in printed
    assert len(Artifact.load("net").history) == 30
    assert farandole.load("net")({"a": [1.0, 0.0], "b": [0.0, 1.0]}).prediction.tolist() == [0, 1]
    line = ["predict", "--model", "net", "--input", "rows.parquet", "--output", "out.parquet"]
    assert main([*line, "--quiet"]) == 0
    found = pq.read_table("out.parquet").to_pandas()
    assert (found["prediction"] == found["label"]).mean() > 0.9


def test_it_trains_as_the_function_does(here: Path) -> None:
    """The same seed, network and options give the same weights, to the last bit."""
    import torch

    assert run(*NETWORK, "--optimizer", "sgd", "--optimizer-options", "momentum=0.9", "--seed", "7",
               "--batch-size", "16", "--features", "a,b", "--no-shuffle") == 0  # fmt: skip
    torch.manual_seed(7)
    result = train(
        MLP([2, 8, 2]), "rows.parquet", features=["a", "b"], optimizer="sgd", seed=7,
        optimizer_options={"momentum": 0.9}, batch_size=16, shuffle=False, progress=False,
    )  # fmt: skip
    saved = Artifact.load("net").network.state_dict()
    assert all(
        torch.equal(value, saved[name]) for name, value in result.network.state_dict().items()
    )


def test_a_network_of_one_s_own(here: Path) -> None:
    assert run("--network", "own_networks:pair") == 0
    assert isinstance(Artifact.load("net").network, nn.Sequential)


def test_a_saved_network_goes_on_learning(here: Path) -> None:
    assert run(*NETWORK) == 0
    assert run("--network", "net", "--overwrite", "--epochs", "2") == 0
    assert len(Artifact.load("net").history) == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--label", "lable"), "There is no column 'lable'. Did you mean 'label'?"),
        (("--features", "a,c"), "There is no column 'c'"),
        (("--data", "nowhere.parquet"), "There is no file or folder 'nowhere.parquet' to train"),
        (("--data", "own_networks.py"), "'own_networks.py' can't be read as Parquet"),
        (("--network", "own_networks:nobody"), "--network own_networks:nobody can't be found"),
        (("--initial-weights", "nowhere"), "'nowhere' to take weights from"),
        (("--epochs", "0"), "--epochs must be a positive integer. Received: --epochs 0"),
        (("--epochs", "two"), "--epochs must be a whole number. Received: 'two'"),
        (("--epoch", "2"), "There is no option --epoch. Did you mean --epochs?"),
        (("--num-workers", "0"), "--num-workers must be a positive integer"),
        (("--validation", "1.5"), "--validation must be a fraction between 0 and 1"),
        (("--optimizer", "adamm"), "There is no optimizer 'adamm'. Did you mean 'adam'?"),
        (("--optimizer-options", "momentum"), "--optimizer-options must be names with values"),
        (("--strategy", "rng"), "There is no strategy 'rng'. Did you mean 'ring'?"),
        (("--min-delta", "3"), "--min-delta is for early stopping: only with --patience"),
        (("--output", "rows.parquet/net"), "rows.parquet' is no folder"),
        (("--output", "own_networks.py"), "'own_networks.py' exists. Choose another --output, or"),
        (("--output", ".", "--overwrite"), "'.' holds no network, so it stays."),
    ],
)
def test_a_wrong_call_is_a_sentence(
    options: tuple[str, ...], complaint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = () if "--network" in options else NETWORK
    assert run(*network, *options) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.splitlines()) == 1
    assert not (here / "net").exists()


def test_an_output_that_exists_is_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*NETWORK) == 0
    assert run(*NETWORK) == 2
    assert "'net' exists. Choose another --output, or --overwrite." in capsys.readouterr().err


def test_training_that_diverges_has_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*NETWORK, "--optimizer", "sgd", "--learning-rate", "1e30") == 1
    assert "Lower --learning-rate (it was 1e+30)" in capsys.readouterr().err


def test_if_only_weights_can_be_saved_they_are(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--network", "own_networks:Odd") == 1
    said = capsys.readouterr().err
    assert "--allow-pickle" in said
    assert "The weights alone are in 'net.safetensors'." in said
    assert (here / "net.safetensors").exists()
    assert run("--network", "own_networks:Odd", "--allow-pickle") == 0


def test_interrupted_training_is_saved_and_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    def interrupted(*arguments: Any, **options: Any) -> Any:
        return replace(train(*arguments, **options), reason=INTERRUPTED)

    monkeypatch.setattr("farandole.api.train", interrupted)
    assert run(*NETWORK) == 130
    assert (here / "net").exists()


def test_every_field_of_a_recipe_is_an_option() -> None:
    names = {field.name for field in fields(Recipe)}
    assert set(RECIPE_DOCS) == names
    _, parser = find_command("train")
    assert {f"--{name.replace('_', '-')}" for name in names} <= set(parser.options)


def test_help_tells_the_defaults_of_a_recipe() -> None:
    _, parser = find_command("train")
    told = {name: str(action.help) for name, action in parser.options.items()}
    default = Recipe()
    assert told["--learning-rate"].endswith(f"({default.learning_rate})")
    assert told["--batch-size"].endswith(f"({default.batch_size})")
    assert told["--loss"].endswith(f"({default.loss})")
    assert told["--restore-best"].endswith("(yes)")
    assert told["--sync-batch-norm"].endswith("(no)")
    assert told["--patience"] == RECIPE_DOCS["patience"]


def test_options_are_read_as_the_recipe_has_them() -> None:
    _, parser = find_command("train")
    line = (
        "--network x --data x --output x --epochs 3 --learning-rate 1e-3 --no-shuffle "
        "--metrics a,b --class-weights 1,2 --freeze a,b --learning-rates a=0.5 --schedule cosine "
        "--patience 2"
    )
    found = vars(parser.parse_args(line.split()))
    wanted: dict[str, Any] = {
        "epochs": 3, "learning_rate": 1e-3, "shuffle": False, "metrics": ["a", "b"],
        "class_weights": [1.0, 2.0], "freeze": ["a", "b"], "learning_rates": {"a": 0.5},
        "schedule": "cosine", "patience": 2,
    }  # fmt: skip
    assert {name: found[name] for name in found if name in RECIPE_DOCS} == wanted
    alone = parser.parse_args([*line.split()[:6], "--freeze", "all but head"])
    assert alone.freeze == "all but head"


def test_options_of_heads() -> None:
    _, parser = find_command("train")
    line = (
        "--network x --data x --output x --loss digit=cross_entropy,size=mse --no-label "
        "--loss-weights size=0.1 --task digit=classification --loss-scope batch"
    )
    read = vars(parser.parse_args(line.split()))
    assert read["loss"] == {"digit": "cross_entropy", "size": "mse"}
    assert read["loss_weights"] == {"size": 0.1}
    assert read["task"] == {"digit": "classification"}
    assert (read["loss_scope"], read["label"]) == ("batch", None)
    one = "--network x --data x --output x --loss mse --task regression"
    read = vars(parser.parse_args(one.split()))
    assert (read["loss"], read["task"]) == ("mse", "regression")
