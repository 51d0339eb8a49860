"""Arguments that a program takes, made of what it says about them: all zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from farandole.artifact.program.grammar import Nesting
from farandole.artifact.program.json_checks import Refused

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
"""What torch's schema calls the types of tensors."""


def example_inputs(program: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the sizes that it was exported with, in the memory of one number each."""
    values = list(_example_values(program["signature"]["input_specs"], program["graph"]))
    nesting = Nesting.read(program["module_call_graph"][0]["signature"]["in_spec"])
    if nesting.leaves() != len(values):
        raise Refused("its arguments don't fit their nesting")
    made = nesting.fill(iter(values))
    if not (isinstance(made, tuple) and [type(part) for part in made] == [tuple, dict]):
        raise Refused("its arguments are not a tuple and a dict")
    return made


def _example_values(specs: list[Any], graph: Mapping[str, Any]) -> Iterator[Any]:
    for spec in specs:
        if "constant_input" in spec:
            yield _plain(spec["constant_input"]["value"])
        elif "user_input" in spec:
            argument = spec["user_input"]["arg"]
            if "as_tensor" in argument:
                yield _example_tensor(graph, argument["as_tensor"]["name"])
            elif "as_sym_int" in argument:
                size = graph["sym_int_values"].get(argument["as_sym_int"].get("as_name"))
                yield _example_size(size or {"as_int": 2})
            else:
                yield _plain(argument)


def _plain(argument: Mapping[str, Any]) -> Any:
    [(kind, value)] = argument.items()
    if kind not in ("as_none", "as_int", "as_float", "as_bool", "as_string"):
        raise Refused(f"it takes {kind!r} from its user")
    return None if kind == "as_none" else value


def _example_tensor(graph: Mapping[str, Any], name: str) -> torch.Tensor:
    """Zeros that take the memory of one."""
    about = graph["tensor_values"].get(name)
    if about is None or about["dtype"] not in DTYPES:
        raise Refused(f"it takes {name!r}, of which nothing is known")
    sizes = [_example_size(size) for size in about["sizes"]]
    return torch.zeros((), dtype=DTYPES[about["dtype"]]).expand(sizes)


def _example_size(size: Mapping[str, Any]) -> int:
    if "as_int" in size:
        return _bounded(size["as_int"])
    hint = size["as_expr"].get("hint") or {}
    return _bounded(hint.get("as_int", 2))


def _bounded(size: int) -> int:
    if not 0 <= size < 1 << 40:
        raise Refused(f"it takes {size} rows")
    return size
