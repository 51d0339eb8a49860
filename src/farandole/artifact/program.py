"""An exported program: how a network of one's own is saved without its class.

torch writes it as a zip of tensors and JSON, but its reader would also unpickle what such a zip
holds, evaluate strings in it and call any function of torch by name. So an archive is read here
first, and refused if it has more in it than tensors and the operations of a network.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from farandole.artifact.signature import Signature
from farandole.errors import ArtifactError, InputError

_FILES = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
_OPERATIONS = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+(\.\w+)?|torch\.sym_\w+"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|wrap_with_\w+)"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_FORBIDDEN = re.compile(r"torch\.ops\.aten\.from_file\b.*")  # it can map any file, and write to it
_TEXT = re.compile(r"[\w .,:+-]*")  # no quotes: torch puts it between those, into code that it runs
_SYMPY_TEXT = re.compile(r"\w+|[\d.e+-]+")


def write_program(network: nn.Module, signature: Signature, path: Path) -> None:
    """Export the network for any number of rows."""
    if any(signature.axes):
        raise ArtifactError("it takes rows that differ in size, which no exported program can")
    example = tuple(signature.example(rows=3))
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            network.eval(), example, dynamic_shapes=_dynamic(network, example, batch), strict=False
        )
    program._guards_code = []  # they would be run as Python code by whoever loads this
    torch.export.save(program, path)
    check_program(path)


def read_program(path: Path) -> nn.Module:
    """The program as a module that predicts."""
    check_program(path)
    program = torch.export.load(path)
    program._guards_code = []  # Python code about the sizes of inputs, not to be run
    return Program(program)


def check_program(path: Path) -> None:
    """Raise unless the archive holds nothing but tensors and the operations of a network."""
    try:
        with zipfile.ZipFile(path) as archive:
            complaint = next(_complaints(archive), None)
    except (zipfile.BadZipFile, json.JSONDecodeError, KeyError, OSError) as error:
        complaint = str(error)
    if complaint is not None:
        raise ArtifactError(f"{str(path)!r} is not a program that can be trusted: {complaint}.")


class Program(nn.Module):
    """An exported program as a module: it predicts, and refuses to train."""

    def __init__(self, exported: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.program = exported.module()
        self._exported = exported
        self.training = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to Spark's workers as an archive: the module of a program doesn't pickle."""
        archive = io.BytesIO()
        torch.export.save(self._exported, archive)
        return _from_archive, (archive.getvalue(),)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Apply the program."""
        try:
            return self.program(*inputs)
        except AssertionError as error:  # the sizes and types that it was exported for
            raise InputError(
                f"The exported program can't take these rows ({error}). For any number of rows, "
                'export it with dynamic_shapes=({0: torch.export.Dim("rows")},).'
            ) from error

    def train(self, mode: bool = True) -> Program:
        """Refuse."""
        if mode:
            raise ArtifactError(
                "A network that was loaded as an exported program can only predict. To train it "
                "further, load its weights into your own class: load(path, network=MyNetwork())."
            )
        return self


def _from_archive(archive: bytes) -> nn.Module:
    return Program(torch.export.load(io.BytesIO(archive)))


def _dynamic(network: nn.Module, example: tuple[Any, ...], batch: Any) -> Any:
    """The first dimension of every argument; those of *args are one argument to torch."""
    shapes = tuple({0: batch} for _ in example)
    parameters = list(inspect.signature(network.forward).parameters.values())
    named = [p for p in parameters if p.kind is not p.VAR_POSITIONAL][: len(example)]
    if len(named) < len(example):
        return (*shapes[: len(named)], shapes[len(named) :])
    return shapes


def _complaints(archive: zipfile.ZipFile) -> Iterator[str]:
    names = [name.partition("/")[2] for name in archive.namelist()]
    if len(set(names)) != len(names):
        yield "it has two files of the same name"
    yield from (f"it holds {name!r}" for name in names if not _FILES.fullmatch(name))
    contents = {
        name: archive.read(full)
        for name, full in zip(names, archive.namelist(), strict=True)
        if name.endswith((".json", ".pt"))
    }
    try:
        torch.load(io.BytesIO(contents["data/sample_inputs/model.pt"]), weights_only=True)
    except Exception as error:
        yield f"its sample inputs are more than tensors ({type(error).__name__})"
    for name, data in contents.items():
        if name.endswith(".json"):
            yield from _complaints_about(json.loads(data))


def _complaints_about(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("use_pickle"):
            yield "it holds a pickle"
        if isinstance(node.get("as_string"), str) and not _TEXT.fullmatch(node["as_string"]):
            yield f"it has the text {node['as_string']!r}"
        if isinstance(node.get("expr_str"), str) and not _is_plain(node["expr_str"]):
            yield f"it has the expression {node['expr_str']!r}"
        target = node.get("target")
        if isinstance(target, str) and "inputs" in node and not _is_operation(target):
            yield f"it calls {target!r}"
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _complaints_about(child)


def _is_operation(target: str) -> bool:
    return bool(_OPERATIONS.fullmatch(target)) and not _FORBIDDEN.fullmatch(target)


def _is_plain(expression: str) -> bool:
    """Whether this is an expression of sympy: constructors of numbers, symbols and each other."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return False
    return _is_plain_node(tree.body)


def _is_plain_node(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return bool(_SYMPY_TEXT.fullmatch(text))
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return bool(re.fullmatch(r"[su]\d+|true|false|oo|int_oo", name))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_plain_node(inner)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            values = [*args, *(keyword.value for keyword in keywords)]
            return bool(re.fullmatch("[A-Z][A-Za-z]*", name)) and all(map(_is_plain_node, values))
        case _:
            return False
