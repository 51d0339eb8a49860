"""A `.keras` file: a zip of Keras's config and of weights in HDF5.

Keras's own reader would make whatever the config names, and read what else is in the zip. Here the
config is checked first, the model built without memory and compared with the size of the weights;
then Keras reads these, and nothing else.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

from farandole.artifact.regular_files import LARGEST_JSON, open_regular
from farandole.errors import ArtifactError
from farandole.keras_models import KerasNetwork, build_model, model_bytes

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_LARGEST_RATIO = 100
"""How many times as large as in the file an entry may be: weights don't shrink much."""
_SPARE = 1 << 20


def read_keras(path: Path, *, allow_code: bool) -> KerasNetwork:
    """The model in a `.keras` file; with `allow_code` also one with lambdas and custom classes."""
    with open_regular(path, follow=True) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(archive, path, allow_code)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as error:
            raise _damaged(path, error) from error


def _read(archive: zipfile.ZipFile, path: Path, allow_code: bool) -> KerasNetwork:
    config = _config(archive, path)
    size = _entry(archive, path, _WEIGHTS).file_size
    needed = model_bytes(config, allow_code=allow_code)
    if needed > 2 * size + _SPARE:
        raise ArtifactError(
            f"{str(path)!r} has weights of {size:,} bytes, and its config is that of a model with "
            f"{needed:,} bytes. Take the file from where it was saved."
        )
    model = build_model(config, allow_code=allow_code)
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        weights = Path(folder) / _WEIGHTS
        with archive.open(_WEIGHTS) as given, weights.open("wb") as copied:
            _copy(given, copied, size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of optimizers, whose state is left out
                model.load_weights(os.fspath(weights))
        except Exception as error:  # h5py and Keras raise whatever a wrong file leads them to
            raise _damaged(path, error) from error
    network = KerasNetwork(model)
    network.load_state_dict(network.state_dict())
    return network.eval()


def _config(archive: zipfile.ZipFile, path: Path) -> Any:
    about = _entry(archive, path, _CONFIG)
    if about.file_size > LARGEST_JSON:
        raise ArtifactError(f"{str(path)!r} has a config of {about.file_size:,} bytes.")
    try:
        with archive.open(_CONFIG) as file:
            return json.loads(file.read(LARGEST_JSON + 1))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error


def _entry(archive: zipfile.ZipFile, path: Path, name: str) -> zipfile.ZipInfo:
    try:
        found = archive.getinfo(name)
    except KeyError as error:
        raise ArtifactError(
            f"{str(path)!r} is no model of Keras 3: there is no {name} in it. Save it with "
            'model.save("model.keras").'
        ) from error
    if found.file_size > _LARGEST_RATIO * found.compress_size + _SPARE:
        raise ArtifactError(f"{str(path)!r} says that {name} has {found.file_size:,} bytes.")
    return found


def _copy(given: IO[bytes], copied: IO[bytes], size: int) -> None:
    """As many bytes as the zip said."""
    left = size
    while left > 0 and (part := given.read(min(left, 1 << 20))):
        copied.write(part)
        left -= len(part)


def _damaged(path: Path, error: BaseException) -> ArtifactError:
    why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    return ArtifactError(
        f"{str(path)!r} can't be read as a Keras model ({why}). It is damaged, or from another "
        'version of Keras: save it again with model.save("model.keras").'
    )
