"""A file of weights → tensors by name. No code from the file runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from farandole.errors import ArtifactError

# What training scripts put weights under, next to the state of an optimizer and the like.
WRAPPERS = ("state_dict", "model_state_dict", "model")


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a network.

    Args:
        file: a state dict that torch saved, or safetensors; also inside of a checkpoint under
            "state_dict" or "model", and with the "module." and "_orig_mod." that DataParallel and
            torch.compile add to names.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "net.pth"
    >>> torch.save({"state_dict": {"module.fc.bias": torch.zeros(2)}}, file)
    >>> read_weights(file)
    {'fc.bias': tensor([0., 0.])}
    """
    if not file.is_file():
        raise ArtifactError(f"There is no file {str(file)!r}.")
    content: Any = _content(file)
    for name in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if (
        not isinstance(content, dict)
        or not content
        or not all(map(torch.is_tensor, content.values()))
    ):
        raise ArtifactError(
            f"{str(file)!r} holds no state dict (names and their tensors), but "
            f"{type(content).__name__}. Save one with torch.save(network.state_dict(), path)."
        )
    return {_plain(str(name)): tensor for name, tensor in content.items()}


def _plain(name: str) -> str:
    """The name without what torch.compile and DataParallel, in either order, put around it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _content(file: Path) -> Any:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ArtifactError(
            f"{str(file)!r} holds more than weights, or is damaged, and reading it could run code. "
            "Where you trust it, load it with torch and save its state_dict() alone."
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise ArtifactError(f"{str(file)!r} can't be read as weights: {error}") from error
