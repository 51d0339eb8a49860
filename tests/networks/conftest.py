from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def bfloat16() -> Iterator[torch.autocast]:
    """Give torch's autocast, without oneDNN.

    Its bfloat16 kernels kill the process on machines whose processor promises AMX and whose
    system doesn't grant it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching says that there is no Intel GPU
        with torch.backends.mkldnn.flags(enabled=False):
            yield torch.autocast("cpu", torch.bfloat16)
