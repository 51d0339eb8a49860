"""The archive of an exported program: a zip of JSON and of tensors as they are in memory.

It is read here, by Python's own zip reader, and checked; torch gets an archive that is written
anew of what was found. Nothing in the given file is unpickled, and no tensor is made that is
larger than its bytes in the file.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch

from farandole.artifact.program.example import DTYPES, example_inputs
from farandole.artifact.program.json_checks import Refused
from farandole.artifact.program.schema import checked_payloads, checked_program

_MODEL = "models/model.json"
_TENSORS = ("data/weights/", "data/constants/")
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_INPUTS = "data/sample_inputs/model.pt"
_FILES = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
_LARGEST_JSON = 256 << 20
_MOST_FILES = 200_000
_PIECE = 16 << 20


@dataclass(frozen=True)
class ProgramContent:
    """A program that has been checked: its document, and its tensors by name."""

    document: dict[str, Any]
    payloads: tuple[dict[str, Any], dict[str, Any]]
    """What torch's archive says of each weight, and of each constant."""
    tensors: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]

    @classmethod
    def read(cls, file: IO[bytes]) -> ProgramContent:
        """Read an archive; Refused, or an error of zip or JSON, if it is no plain program."""
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive)
            document = checked_program(_json(archive, entries, _MODEL))
            payloads = [checked_payloads(_json(archive, entries, name)) for name in _CONFIGS]
            tensors = [
                _tensors(archive, entries, folder, own)
                for folder, own in zip(_TENSORS, payloads, strict=True)
            ]
        return cls(document, (payloads[0], payloads[1]), (tensors[0], tensors[1]))

    def write(self, file: IO[bytes]) -> None:
        """Write an archive that torch.export.load reads, too."""
        self._write(file, self.payloads, self.tensors)

    def skeleton(self) -> io.BytesIO:
        """The archive with one number in the place of each tensor, stretched to its size."""
        stretched: list[dict[str, Any]] = []
        ones: list[dict[str, torch.Tensor]] = []
        for payloads, tensors in zip(self.payloads, self.tensors, strict=True):
            stretched.append({name: _stretched(about) for name, about in payloads.items()})
            ones.append({name: torch.zeros(1, dtype=tensors[name].dtype) for name in payloads})
        file = io.BytesIO()
        self._write(file, stretched, ones)
        file.seek(0)
        return file

    def _write(self, file: IO[bytes], payloads: Any, tensors: Any) -> None:
        inputs = io.BytesIO()
        torch.save(example_inputs(self.document["graph_module"]), inputs)
        with zipfile.ZipFile(file, "w") as archive:
            for folder, prefix, config, about, own in zip(
                _TENSORS, ("weight_", "tensor_"), _CONFIGS, payloads, tensors, strict=True
            ):
                _write_tensors(archive, folder + prefix, config, about, own)
            for name, content in (
                (_MODEL, json.dumps(self.document).encode()),
                (_INPUTS, inputs.getvalue()),
                ("archive_format", b"pt2"),
                ("archive_version", b"0"),
                (".data/version", b"6\n"),
                ("byteorder", b"little"),
            ):
                archive.writestr(f"network/{name}", content)


def check_archive(file: IO[bytes]) -> None:
    """Raise as `ProgramContent.read` does, but for the tensors, which aren't looked at."""
    with zipfile.ZipFile(file) as archive:
        checked_program(_json(archive, _entries(archive), _MODEL))


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The files by their name behind the archive's own; Refused if it has others than it should."""
    found: dict[str, zipfile.ZipInfo] = {}
    room = archive.fp.seek(0, io.SEEK_END) if archive.fp is not None else 0
    if len(archive.infolist()) > _MOST_FILES:
        raise Refused(f"it has {len(archive.infolist()):,} files")
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2]
        if not _FILES.fullmatch(name):
            raise Refused(f"it holds {entry.filename[:80]!r}")
        if name in found:
            raise Refused(f"it has two files of the name {name!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise Refused(f"its file {name!r} is compressed or encrypted")
        room -= entry.file_size
        if room < 0 or entry.file_size != entry.compress_size:
            raise Refused(f"its file {name!r} is larger than the archive has room for")
        found[name] = entry
    return found


def _json(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> Any:
    if name not in entries:
        raise Refused(f"it has no file {name!r}")
    if entries[name].file_size > _LARGEST_JSON:
        raise Refused(f"its file {name!r} has {entries[name].file_size:,} bytes")
    return json.loads(archive.read(entries[name]))


def _tensors(
    archive: zipfile.ZipFile,
    entries: Mapping[str, zipfile.ZipInfo],
    folder: str,
    payloads: Mapping[str, Any],
) -> dict[str, torch.Tensor]:
    """The tensors; those that shared their memory when they were written share it again."""
    read: dict[str, torch.Tensor] = {}
    made = {}
    for name, about in payloads.items():
        file = folder + about["path_name"]
        if file not in entries or file in _CONFIGS:
            raise Refused(f"it has no file {file!r} for {name!r}")
        shape = _Shape.of(name, about["tensor_meta"], entries[file].file_size)
        if file not in read:
            read[file] = _bytes(archive, entries[file])
        empty = torch.empty(0, dtype=shape.dtype)
        flat = read[file].view(shape.dtype) if len(read[file]) else empty
        made[name] = flat.as_strided(shape.sizes, shape.strides, shape.offset)
    return made


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> torch.Tensor:
    if entry.file_size == 0:
        return torch.empty(0, dtype=torch.uint8)
    content = bytearray(entry.file_size)
    place = 0
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):  # to the end, where the zip's own sum is checked
            content[place : place + len(piece)] = piece
            place += len(piece)
    if place != entry.file_size:
        raise Refused(f"its file {entry.filename!r} is not as long as it says")
    return torch.frombuffer(content, dtype=torch.uint8)


@dataclass(frozen=True)
class _Shape:
    """Where a tensor's numbers are among those of its file."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, name: str, about: Mapping[str, Any], size: int) -> _Shape:
        """As the archive says it; Refused unless the file has all these numbers."""
        if about["dtype"] not in DTYPES:
            raise Refused(f"the type of {name!r} is none that weights have")
        dtype = DTYPES[about["dtype"]]
        sizes = tuple(_constant(name, one) for one in about["sizes"])
        strides = tuple(_constant(name, one) for one in about["strides"])
        offset = _constant(name, about["storage_offset"])
        made = cls(dtype, sizes, strides, offset)
        room, left_over = divmod(size, dtype.itemsize)
        if len(sizes) != len(strides) or min((0, offset, *sizes, *strides)) < 0:
            raise Refused(f"the sizes of {name!r} are wrong")
        if left_over or made._last() > room or math.prod(sizes) > room:
            raise Refused(f"{name!r} says to be {list(sizes)}, and has {size:,} bytes")
        return made

    def _last(self) -> int:
        """How many numbers there are up to the last one."""
        if 0 in self.sizes:
            return 0
        steps = zip(self.sizes, self.strides, strict=True)
        return 1 + self.offset + sum((size - 1) * stride for size, stride in steps)


def _constant(name: str, size: Mapping[str, Any]) -> int:
    if "as_int" not in size:
        raise Refused(f"the size of {name!r} is not known")
    value: int = size["as_int"]
    return value


def _stretched(about: Mapping[str, Any]) -> dict[str, Any]:
    """The same sizes, all of one number."""
    meta = about["tensor_meta"]
    still = {"as_int": 0}
    flat = {**meta, "strides": [still for _ in meta["sizes"]], "storage_offset": still}
    return {**about, "tensor_meta": flat}


def _write_tensors(
    archive: zipfile.ZipFile,
    prefix: str,
    config: str,
    payloads: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Each memory once, under a number, and what is where."""
    numbers: dict[int, str] = {}
    written = {}
    for name, about in payloads.items():
        storage = tensors[name].untyped_storage()
        place = storage.data_ptr() or id(storage)
        if place not in numbers:
            numbers[place] = f"{prefix}{len(numbers)}"
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            with archive.open(f"network/{numbers[place]}", "w", force_zip64=True) as file:
                file.write(flat.numpy().data)
        written[name] = {**about, "path_name": numbers[place].rpartition("/")[2]}
    archive.writestr(f"network/{config}", json.dumps({"config": written}))
