"""What a network returns: one tensor, or several by number, by name or as an object's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farandole.errors import InputError, suggestion
from farandole.ragged import Ragged

LOGITS = "logits"
"""The field of an object that counts, where the object has such a one."""


def named_outputs(output: Any) -> dict[int | str, Any]:
    """The tensors that a network has returned, by number or by name.

    >>> list(named_outputs((torch.zeros(1), torch.zeros(1)))), list(named_outputs(torch.zeros(1)))
    ([0, 1], [0])
    >>> list(named_outputs({"digit": torch.zeros(1), "loss": None}))
    ['digit']
    """
    if isinstance(output, torch.Tensor | Ragged):
        return {0: output}
    if _has_logits(output):
        return {LOGITS: output.logits}
    pairs: Any = enumerate(output) if isinstance(output, tuple | list) else ()
    if isinstance(output, Mapping):
        pairs = output.items()
    found = {key: one for key, one in pairs if isinstance(one, torch.Tensor | Ragged)}
    if not found:
        raise InputError(
            f"The network returns {type(output).__name__}: expected a tensor, a tuple or a dict of "
            "tensors, or an object with logits."
        )
    return found


def chosen_output(output: Any, part: int | str) -> Any:
    """One output of a network that may have several, in a sequence or by name.

    >>> chosen_output({"scores": torch.ones(1), "hidden": torch.zeros(1)}, "hidden").item()
    0.0
    """
    if part == 0 and isinstance(output, torch.Tensor | Ragged):
        return output
    if part in (0, LOGITS) and _has_logits(output):
        return output.logits
    if isinstance(output, torch.Tensor | Ragged):
        found, names = None, ["0"]
    elif isinstance(output, Mapping):
        names = [str(name) for name in output]
        found = list(output.values())[part] if part == 0 else output.get(part)
    else:
        names = [str(number) for number in range(len(output))]
        found = output[part] if isinstance(part, int) and part < len(output) else None
    if not isinstance(found, torch.Tensor | Ragged):
        raise InputError(f"The network has no output {part!r}. {suggestion(str(part), names)}")
    return found


def _has_logits(output: Any) -> bool:
    """Whether this is an object whose field `logits` counts, as those of many libraries are.

    A named tuple is a tuple: all of its fields count.
    """
    if isinstance(output, tuple | list):
        return False
    return isinstance(getattr(output, LOGITS, None), torch.Tensor)
