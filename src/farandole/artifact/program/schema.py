"""The document of an exported program (models/model.json), read by a closed schema.

Each check takes a value of JSON and gives back what it has understood of it, or refuses it. So
what torch's reader gets later is written anew from what was understood: a field that isn't named
here (stack traces, guards in Python, custom objects, notes of any kind) never reaches it.
"""

from __future__ import annotations

import re
from typing import Any

from farandole.artifact.program.grammar import Nesting, expression, name, path, symbol, text
from farandole.artifact.program.json_checks import (
    Check,
    Refused,
    among,
    boolean,
    integer,
    list_of,
    mapping,
    nothing,
    nullable,
    number,
    one_of,
    record,
)
from farandole.artifact.program.operators import is_operator

_DEEPEST = 24
STRIDED = 7
"""What torch's schema calls the layout of an ordinary tensor."""


def operator(value: Any) -> str:
    """Something of the closed list of operators."""
    if not isinstance(value, str) or not is_operator(value):
        raise Refused(f"it calls {repr(value)[:80]}")
    return value


def _graph(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise Refused("its graphs are nested too deeply")
    arguments = {**_VALUES, "as_graph": _inner_graph(depth)}
    named = record(
        {"name": lambda own: own if own == "" else name(own), "arg": one_of(arguments)},
        {"kind": nullable(among(0, 1, 2))},
    )
    node = record(
        {
            "target": operator,
            "inputs": list_of(named),
            "outputs": list_of(ARGUMENT),
            "metadata": _metadata,
        },
        {"is_hop_single_tensor_return": nullable(boolean), "name": nullable(name)},
    )
    return record(
        {
            "inputs": list_of(ARGUMENT),
            "outputs": list_of(ARGUMENT),
            "nodes": list_of(node),
            "tensor_values": mapping(name, TENSOR),
            "sym_int_values": mapping(name, _size("as_int", integer)),
            "sym_bool_values": mapping(name, _size("as_bool", boolean)),
        },
        {
            "sym_float_values": mapping(name, _size("as_float", number)),
            "is_single_tensor_return": boolean,
            "custom_obj_values": nothing,
        },
    )(value)


def _inner_graph(depth: int) -> Check:
    return record({"name": name, "graph": lambda inner: _graph(inner, depth + 1)})


def _size(constant: str, check: Check) -> Check:
    hint = one_of({"as_int": integer, "as_bool": boolean, "as_float": number})
    symbolic = record({"expr_str": expression}, {"hint": nullable(hint)})
    return one_of({"as_expr": symbolic, constant: check})


def _argument(constant: str, check: Check) -> Check:
    return one_of({"as_name": name, constant: check})


_STACK = re.compile(r"[\w.@'\[\]()]*,[\w.@]*,[\w.<>]*(;[\w.@'\[\]()]*,[\w.@]*,[\w.<>]*)*", re.ASCII)


def _metadata(value: Any) -> dict[str, str]:
    """Which layers an operator belongs to, if that can be read; of their classes, the last name."""
    stack = value.get("nn_module_stack") if isinstance(value, dict) else None
    if not isinstance(stack, str) or not _STACK.fullmatch(stack):
        return {}
    layers = [layer.split(",") for layer in stack.split(";")]
    short = [f"{key},{place},{kind.rpartition('.')[2]}" for key, place, kind in layers]
    return {"nn_module_stack": ";".join(short)}


def _nesting(value: Any) -> str:
    return Nesting.read(value).write()


def _layer(value: Any) -> str:
    """The path of a layer; the network itself has none, and a later call of one a number."""
    called, _, number = value.partition("@") if isinstance(value, str) else (value, "", "")
    if called == "" or number.isdecimal():
        return value if called == "" else f"{path(called)}@{number}"
    return path(value)


_NAMED = record({"name": name})
_NONE = boolean  # torch writes true for None
_DEVICE = record(
    {"type": among("cpu", "cuda", "mps", "xpu")}, {"index": nullable(among(*range(64)))}
)
SCALAR_TYPES = (*range(1, 14), *range(28, 36))
_OPTIONAL = one_of({"as_tensor": _NAMED, "as_none": _NONE})
TENSOR = record(
    {
        "dtype": among(*SCALAR_TYPES),
        "sizes": list_of(_size("as_int", integer)),
        "requires_grad": boolean,
        "device": _DEVICE,
        "strides": list_of(_size("as_int", integer)),
        "storage_offset": _size("as_int", integer),
        "layout": among(STRIDED),
    }
)
"""The type and the sizes of a tensor."""
_VALUES: dict[str, Check] = {
    "as_none": _NONE,
    "as_tensor": _NAMED,
    "as_tensors": list_of(_NAMED),
    "as_int": integer,
    "as_ints": list_of(integer),
    "as_float": number,
    "as_floats": list_of(number),
    "as_string": text,
    "as_strings": list_of(text),
    "as_sym_int": _argument("as_int", integer),
    "as_sym_ints": list_of(_argument("as_int", integer)),
    "as_scalar_type": among(*SCALAR_TYPES),
    "as_memory_format": among(1, 2, 3, 4),
    "as_layout": among(STRIDED),
    "as_device": _DEVICE,
    "as_bool": boolean,
    "as_bools": list_of(boolean),
    "as_sym_bool": _argument("as_bool", boolean),
    "as_sym_bools": list_of(_argument("as_bool", boolean)),
    "as_optional_tensor": _OPTIONAL,
    "as_optional_tensors": list_of(_OPTIONAL),
    "as_operator": operator,
    "as_sym_float": _argument("as_float", number),
    "as_sym_floats": list_of(_argument("as_float", number)),
    "as_complex": record({"real": number, "imag": number}),
    "as_nested_tensors": list_of(list_of(_NAMED)),
    "as_int_lists": list_of(list_of(integer)),
    "as_float_lists": list_of(list_of(number)),
}
ARGUMENT = one_of(_VALUES)
_CONSTANT = one_of(
    {
        "as_none": _NONE,
        "as_int": integer,
        "as_float": number,
        "as_string": text,
        "as_bool": boolean,
    }
)
_USER = record({"arg": ARGUMENT})
_INPUT = one_of(
    {
        "user_input": _USER,
        "parameter": record({"arg": _NAMED, "parameter_name": path}),
        "buffer": record({"arg": _NAMED, "buffer_name": path, "persistent": boolean}),
        "tensor_constant": record({"arg": _NAMED, "tensor_constant_name": path}),
        "constant_input": record({"name": name, "value": _CONSTANT}),
    }
)
_OUTPUT = one_of(
    {
        "user_output": _USER,
        "buffer_mutation": record({"arg": _NAMED, "buffer_name": path}),
        "user_input_mutation": record({"arg": _NAMED, "user_input_name": name}),
    }
)
_CALL = record(
    {
        "inputs": list_of(ARGUMENT),
        "outputs": list_of(ARGUMENT),
        "in_spec": _nesting,
        "out_spec": _nesting,
    },
    {"forward_arg_names": nullable(list_of(name))},
)
_MODULE = record(
    {"fqn": _layer},
    {"signature": nullable(_CALL)},
)
_RANGE = record({"min_val": nullable(integer), "max_val": nullable(integer)})
_PROGRAM = record(
    {
        "graph_module": record(
            {
                "graph": _graph,
                "signature": record(
                    {"input_specs": list_of(_INPUT), "output_specs": list_of(_OUTPUT)}
                ),
                "module_call_graph": list_of(_MODULE),
            }
        ),
        "opset_version": mapping(name, integer),
        "range_constraints": mapping(symbol, _RANGE),
        "schema_version": record({"major": integer, "minor": integer}),
    },
    {"verifiers": list_of(among("TRAINING", "ATEN")), "torch_version": text},
)
_PAYLOADS = record(
    {
        "config": mapping(
            path,
            record(
                {
                    "path_name": text,
                    "is_param": boolean,
                    "use_pickle": among(False),
                    "tensor_meta": TENSOR,
                }
            ),
        )
    }
)


def checked_program(document: Any) -> dict[str, Any]:
    """The document with what is understood of it; Refused, if a network needs no such thing."""
    made: dict[str, Any] = _PROGRAM(document)
    calls = made["graph_module"]["module_call_graph"]
    if not calls or calls[0]["fqn"] != "" or not calls[0].get("signature"):
        raise Refused("it doesn't say how its arguments are nested")
    made["guards_code"] = []
    return made


def checked_payloads(document: Any) -> dict[str, Any]:
    """The names of tensors, and where in the archive each of them is."""
    made: dict[str, Any] = _PAYLOADS(document)["config"]
    return made
