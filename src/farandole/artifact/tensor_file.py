"""Weights in a safetensors file: their sizes first, then they themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from farandole.artifact.regular_files import open_regular
from farandole.errors import ArtifactError


def tensor_sizes(file: Path) -> dict[str, tuple[int, ...]]:
    """The sizes of the tensors, from the head of the file."""
    with _reading(file), safe_open(file, "pt") as content:
        names = list(content.keys())
        return {name: tuple(content.get_slice(name).get_shape()) for name in names}


def read_tensors(file: Path, *, follow: bool = False) -> dict[str, torch.Tensor]:
    """The tensors, which are mapped: what nobody uses is not read."""
    with _reading(file, follow=follow):
        found: dict[str, torch.Tensor] = load_file(file)
        return found


@contextmanager
def _reading(file: Path, *, follow: bool = False) -> Iterator[None]:
    """safetensors refuses tensors that overlap, or lie outside of the file, and long heads."""
    open_regular(file, follow=follow).close()
    try:
        yield
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ArtifactError(
            f"{str(file)!r} can't be read as weights ({str(error)[:200]}). It is damaged or no "
            "safetensors file: take it from where it was saved, or save the network again."
        ) from error
    except (AttributeError, RecursionError, MemoryError, OverflowError) as error:
        raise ArtifactError(f"{str(file)!r} can't be read as weights: {error!r}") from error
