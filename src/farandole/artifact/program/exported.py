"""An exported program: how a network of one's own is saved without its class.

torch writes it as a zip of tensors and JSON, but its reader would also unpickle what such a zip
holds, run names in it as code, evaluate its sizes and import the classes that it names. So an
archive is read and checked here (`archive`, `schema`), and torch reads one that is written anew
from what was understood.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from farandole.artifact.program.archive import ProgramContent, check_archive
from farandole.artifact.program.json_checks import Refused
from farandole.artifact.program.trimmed import trim
from farandole.artifact.regular_files import open_regular
from farandole.artifact.signature import Signature
from farandole.errors import ArtifactError, InputError
from farandole.keras_models import as_network, unwrapped


def write_program(network: nn.Module, signature: Signature, path: Path) -> None:
    """Export the network for any number of rows.

    What torch notes besides (source lines and paths of the author, guards in Python) is left out.
    """
    content = _content(_archive(network, signature), str(path))
    with path.open("wb") as file:
        content.write(file)
    _build(content, str(path))  # what can't be read again is not worth saving


def to_program(network: nn.Module, signature: Signature) -> Program:
    """The network as an exported program, in memory: as it would be if it were saved and loaded."""
    content = _content(_archive(network, signature), type(network).__name__)
    return _build(content, type(network).__name__)


def check_exportable(network: nn.Module, signature: Signature) -> None:
    """Raise if `write_program` would. It takes no memory for weights, and changes nothing."""
    try:
        check_archive(_archive(_weightless(network), signature))
    except Refused as error:
        raise ArtifactError(str(error)) from error


def _weightless(network: nn.Module) -> nn.Module:
    """A copy in which one number stands for all of a tensor's: as a program it is the same."""
    memo: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        one = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(one, tensor.requires_grad) if is_parameter else one
    return copy.deepcopy(network, memo)


_EXPORTING = threading.Lock()
"""torch exports one network at a time, and several fits may be under way in one process."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the graph that torch prints when it gives up: its error says what is wrong."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    heard = [one for one in loggers if one.name.startswith("torch.") and not one.disabled]
    try:
        for one in heard:
            one.disabled = True
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        for one in heard:
            one.disabled = False


def _archive(network: nn.Module, signature: Signature) -> io.BytesIO:
    """What torch writes of the network."""
    network = as_network(network)
    if any(signature.axes):
        raise ArtifactError("it takes rows that differ in size, which no exported program can")
    example = tuple(signature.example(rows=3))
    batch = torch.export.Dim("batch", min=1)
    archive = io.BytesIO()
    with _EXPORTING, _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(
                network.eval(),
                example,
                dynamic_shapes=_dynamic(network, example, batch),
                strict=False,
            )
        finally:
            unwrapped(network)  # a Keras model gets its own tensors back
        trim(program)
        torch.export.save(program, archive)
    return archive


def read_program(path: Path, *, follow: bool = True) -> Program:
    """The program in a file, as a module that predicts."""
    with open_regular(path, follow=follow) as file:
        return _build(_content(file, str(path)), str(path))


def _content(file: IO[bytes], place: str) -> ProgramContent:
    try:
        return ProgramContent.read(file)
    except Refused as error:
        raise ArtifactError(
            f"{place!r} is not a program that can be trusted: {error}. Export the network again "
            "with torch.export, from tensors to tensors in tuples, lists and dicts."
        ) from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as error:
        raise _damaged(place, error) from error
    except (RecursionError, MemoryError, OverflowError, RuntimeError) as error:
        raise _damaged(place, error) from error


def _build(content: ProgramContent, place: str) -> Program:
    try:
        return Program(content)
    except Refused as error:
        raise ArtifactError(f"{place!r} is not a program that can be trusted: {error}.") from error
    except Exception as error:  # torch's reader raises whatever a wrong graph leads it to
        raise _damaged(place, error) from error


def _damaged(place: str, error: BaseException) -> ArtifactError:
    why = f"{type(error).__name__}: {str(error)[:200]}"
    return ArtifactError(
        f"{place!r} can't be read as an exported program ({why}). It is damaged, or from another "
        "version of torch: export and save the network again."
    )


class Program(nn.Module):
    """An exported program as a module: it predicts, and refuses to train."""

    def __init__(self, content: ProgramContent) -> None:
        super().__init__()
        self._content = content
        self._exported = _exported(content)
        self.program = self._exported.module()
        self._tensors = _number_of_tensors(self.program)
        self.training = False
        self.forward = _named(self.forward, self.program)  # type: ignore[method-assign]

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to Spark's workers as what was read: the module of a program doesn't pickle."""
        return Program, (self._content,)

    @property
    def exported(self) -> torch.export.ExportedProgram:
        """The program as torch has it."""
        return self._exported

    def state_dict(  # type: ignore[override]
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The weights under the names that they have in the class that was saved."""
        state: dict[str, Any] = {} if destination is None else destination
        for name, tensor in self._exported.state_dict.items():
            state[prefix + name] = tensor if keep_vars else tensor.detach()
        return state

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Apply the program.

        Before it runs, torch compares how inputs are nested, which takes longer than a row through
        a small network. Of plain tensors there is nothing to compare but their number; their sizes
        are looked at by the program itself.
        """
        is_plain = len(inputs) == self._tensors and all(type(x) is torch.Tensor for x in inputs)
        try:
            return self.program.forward(*inputs) if is_plain else self.program(*inputs)
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


def _number_of_tensors(program: nn.Module) -> int | None:
    """How many tensors a program takes that takes nothing else and checks their sizes itself."""
    spec: Any = getattr(program, "_in_spec", None)
    if spec is None or not hasattr(program, "_guards_fn"):
        return None
    positional, named = spec.children()
    is_plain = named.num_leaves == 0 and all(one.is_leaf() for one in positional.children())
    return int(positional.num_children) if is_plain else None


def _named(forward: Callable[..., Any], program: nn.Module) -> Callable[..., Any]:
    """`forward` with the program's own arguments: torch.export and torch.onnx go by their names."""

    def apply(*inputs: torch.Tensor) -> Any:
        return forward(*inputs)

    apply.__signature__ = inspect.signature(program.forward)  # type: ignore[attr-defined]
    return apply


def _exported(content: ProgramContent) -> torch.export.ExportedProgram:
    """The program without its tensors by torch's reader, and then those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(content.skeleton())
    for own, tensors, payloads in zip(
        (program.state_dict, program.constants), content.tensors, content.payloads, strict=True
    ):
        for name, tensor in tensors.items():
            learned = payloads[name]["tensor_meta"]["requires_grad"]
            is_parameter = payloads[name]["is_param"]
            own[name] = nn.Parameter(tensor, requires_grad=learned) if is_parameter else tensor
    return program


def _dynamic(network: nn.Module, example: tuple[Any, ...], batch: Any) -> Any:
    """The first dimension of every argument; those of *args are one argument to torch."""
    shapes = tuple(_dynamic_argument(argument, batch) for argument in example)
    parameters = list(inspect.signature(network.forward).parameters.values())
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in several][: len(example)]
    if len(named) < len(example):
        return (*shapes[: len(named)], shapes[len(named) :])
    return shapes


def _dynamic_argument(argument: Any, batch: Any) -> Any:
    if isinstance(argument, dict):
        return {name: {0: batch} for name in argument}
    return None if argument is None else {0: batch}
