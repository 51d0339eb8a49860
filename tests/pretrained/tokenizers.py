"""A tokenizer of six words, made with the package that reads them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "cat": 4, "sat": 5}


def words_file(folder: Path) -> Path:
    """Write a tokenizer.json that pads and truncates, as those of published networks often do."""
    made = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_padding(length=8)
    made.enable_truncation(6)
    file = folder / "tokenizer.json"
    made.save(str(file))
    return file
