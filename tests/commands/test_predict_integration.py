"""Photos, as a person predicts for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from farandole.artifact import Artifact, Signature
from farandole.networks import CNN


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
        [sys.executable, "-m", "farandole", *command.split()],
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
