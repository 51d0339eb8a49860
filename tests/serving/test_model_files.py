"""Bare files with a signature, and what is said of those without."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from farandole.errors import ArtifactError, InputError
from farandole.serving.batching import Batching
from farandole.serving.model_files import ModelFiles, read_signature
from farandole.serving.repository import Repository, versions_in

SAID = {
    "features": ["x"], "shapes": [[4]], "dtypes": ["float32"], "head": "softmax", "outputs": 3,
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(nn.Linear(4, 3), torch.zeros(2, 4)), tmp_path / "net.pt")
    return tmp_path / "net.pt"


def test_a_script_is_served_with_a_signature_and_the_word(script: Path, tmp_path: Path) -> None:
    (tmp_path / "signature.json").write_text(json.dumps(SAID))
    signature = read_signature(str(tmp_path / "signature.json"))
    files = ModelFiles(allow_pickle=True, signature=signature)
    found = files.load("net", "1", script).answer([np.ones((2, 4), np.float32)])
    torch.manual_seed(0)
    wanted = nn.Linear(4, 3)(torch.ones(2, 4)).detach().numpy()
    np.testing.assert_allclose(found.raw, wanted, 1e-6)
    with pytest.raises(ArtifactError, match="runs code"):
        ModelFiles(signature=signature).load("net", "1", script)
    with pytest.raises(InputError, match="Give a signature file"):
        ModelFiles(allow_pickle=True).load("net", "1", script)


def test_a_signature_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "signature.json"
    for text, words in (("{", "can't be read"), ("[]", "is no signature"), ("{}", "no 'features'")):
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            read_signature(str(file))


def test_names_are_given_or_taken_from_the_path(script: Path) -> None:
    load = ModelFiles().load
    assert list(Repository([str(script)], load, Batching()).available()) == ["net"]
    assert list(Repository([f"mine={script}"], load, Batching()).available()) == ["mine"]
    for wrong in (f"../x={script}", f"={script}", f"a b={script}", f"{'a' * 129}={script}"):
        with pytest.raises(InputError, match="can't be called"):
            Repository([wrong], load, Batching())
    with pytest.raises(InputError, match="two models 'net'"):
        Repository([str(script), f"net={script}"], load, Batching())
    assert versions_in(script) == {}
