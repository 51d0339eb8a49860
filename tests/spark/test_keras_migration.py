"""The guide's table for those who come from Horovod: complete, and true of our params."""

from __future__ import annotations

import re
from pathlib import Path

from farandole.spark import KerasEstimator

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "keras.md"

# The constructor of horovod.spark.keras.KerasEstimator, read in its source.
HOROVOD = [
    "num_proc",
    "model",
    "backend",
    "store",
    "custom_objects",
    "optimizer",
    "loss",
    "loss_weights",
    "sample_weight_col",
    "gradient_compression",
    "metrics",
    "feature_cols",
    "label_cols",
    "validation",
    "callbacks",
    "batch_size",
    "val_batch_size",
    "epochs",
    "verbose",
    "random_seed",
    "shuffle_buffer_size",
    "shuffle",
    "partitions_per_process",
    "run_id",
    "train_steps_per_epoch",
    "validation_steps_per_epoch",
    "transformation_fn",
    "train_reader_num_workers",
    "val_reader_num_workers",
    "reader_pool_type",
    "label_shapes",
    "checkpoint_callback",
    "inmemory_cache_all",
    "backend_env",
    "use_gpu",
    "mp_start_method",
]


def table() -> dict[str, tuple[str, str]]:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ?(.*?) ?\|$", GUIDE.read_text(), re.MULTILINE)
    return {name: (here, why) for name, here, why in rows}


def test_every_param_of_horovods_has_a_row() -> None:
    assert sorted(table()) == sorted(HOROVOD)


def test_what_it_becomes_is_a_param_and_what_is_gone_has_a_reason() -> None:
    known = {param.name for param in KerasEstimator().params}
    for name, (here, why) in table().items():
        if here == "gone":
            assert why, name
        else:
            assert set(re.findall(r"`(\w+)`", here)) <= known, name
            assert "`" in here, name
