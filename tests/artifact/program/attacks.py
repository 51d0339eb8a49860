"""Exported programs that a stranger has changed: each would run code, read or write a file.

An attack changes the document of a good program, or its archive. The code that it brings makes a
folder, `trap`, or imports the module `canary`, which makes that folder too.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Document = dict[str, Any]
Files = dict[str, bytes]


class Net(nn.Module):
    """With sizes that aren't known, an operator with a text, and two outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.scale = torch.tensor([2.0])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.einsum("ij,kj->ik", x, self.layer.weight) * self.scale
        return {"scores": hidden, "rows": hidden.reshape(x.shape[0] * 3)}


ROWS = torch.arange(20.0).reshape(5, 4)


def good_files() -> Files:
    """The files of a good program, as torch has written them."""
    archive = io.BytesIO()
    rows = torch.export.Dim("rows")
    program = torch.export.export(Net(), (ROWS,), dynamic_shapes=({0: rows},), strict=False)
    torch.export.save(program, archive)
    with zipfile.ZipFile(archive) as content:
        return {name.partition("/")[2]: content.read(name) for name in content.namelist()}


def write(files: Files, path: Path, *, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(f"net/{name}", data)
    return path


MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
INPUTS = "data/sample_inputs/model.pt"


class Bomb:
    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.trap,)


def torch_bomb(trap: Path) -> bytes:
    file = io.BytesIO()
    torch.save((Bomb(trap), {}), file)
    return file.getvalue()


def code(trap: Path) -> str:
    """Without quotes, which JSON and torch would have to escape."""
    spelled = "+".join(f"chr({ord(letter)})" for letter in str(trap))
    return f"__import__(chr(111)+chr(115)).mkdir({spelled})"


Attack = Callable[[Files, Path], None]
ATTACKS: dict[str, Attack] = {}
"""By what they change."""
LIVE: list[str] = []
"""Those that torch's own reader falls for, so that they are known to be attacks."""
HARMLESS: list[str] = []
"""Those in what is left out on reading: the program loads, and predicts what it should."""


def attack(label: str, *, live: bool = False, harmless: bool = False) -> Callable[[Attack], Attack]:
    def keep(function: Attack) -> Attack:
        ATTACKS[label] = function
        LIVE.extend([label] if live else [])
        HARMLESS.extend([label] if harmless else [])
        return function

    return keep


def in_document(
    label: str, *, file: str = MODEL, live: bool = False
) -> Callable[[Callable[[Document, Path], None]], None]:
    """An attack that changes one of the JSON documents."""

    def keep(function: Callable[[Document, Path], None]) -> None:
        def change(files: Files, trap: Path) -> None:
            document = json.loads(files[file])
            function(document, trap)
            files[file] = json.dumps(document).encode()

        attack(label, live=live)(change)

    return keep


def graph(document: Document) -> Document:
    found: Document = document["graph_module"]["graph"]
    return found


def renamed(value: Any, old: str, new: str) -> Any:
    """The document with another name everywhere."""
    if isinstance(value, dict):
        return {
            new if key == old else key: renamed(inner, old, new) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [renamed(inner, old, new) for inner in value]
    return new if value == old else value


def rename(document: Document, old: str, new: str) -> None:
    changed = renamed(document, old, new)
    document.clear()
    document.update(changed)


@in_document("a placeholder with a default", live=True)
def _(document: Document, trap: Path) -> None:
    rename(document, "x", f"x={code(trap)}")


@in_document("a node's name that ends a line")
def _(document: Document, trap: Path) -> None:
    rename(document, "einsum", f"einsum = 1; {code(trap)}\n    einsum")


@in_document("a node's own name")
def _(document: Document, trap: Path) -> None:
    graph(document)["nodes"][0]["name"] = f"x; {code(trap)}"


@in_document("a keyword as a name")
def _(document: Document, trap: Path) -> None:
    rename(document, "einsum", "import")


@in_document("a name with letters that Python makes others of")
def _(document: Document, trap: Path) -> None:
    rename(document, "einsum", "__ｉmport__")


@in_document("names of arguments")
def _(document: Document, trap: Path) -> None:
    call = document["graph_module"]["module_call_graph"][0]["signature"]
    call["forward_arg_names"] = [f"x={code(trap)}"]


@in_document("the name of a parameter")
def _(document: Document, trap: Path) -> None:
    rename(document, "layer.weight", f'layer."),{code(trap)},getattr(self,"weight')


@in_document("the name of a keyword argument")
def _(document: Document, trap: Path) -> None:
    node = graph(document)["nodes"][0]
    node["target"] = "torch.ops.higher_order.cond"
    node["inputs"][0] |= {"name": f"a={code(trap)}, b", "kind": 2}


@in_document("a size that sympy evaluates", live=True)
def _(document: Document, trap: Path) -> None:
    for about in graph(document)["tensor_values"].values():
        for size in about["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["expr_str"] = code(trap)


def _sized(expression: str) -> Callable[[Document, Path], None]:
    def change(document: Document, trap: Path) -> None:
        for about in graph(document)["tensor_values"].values():
            for size in about["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = expression

    return change


for _label, _expression in {
    "a power that never ends": "Pow(Integer(9), Pow(Integer(9), Integer(99)))",
    "a function of sympy's that parses text": "Poly('x')",
    "sympy's own evaluation": "S('__import__(\"os\")')",
    "a lambda": "Lambda(Symbol('s0'), Symbol('s0'))",
    "an attribute": "Symbol('s0').__class__",
    "a subscript": "Symbol('s0')[0]",
    "a comprehension": "[x for x in (1,)]",
    "a symbol that is code": "Symbol('__import__')",
    "an assumption that is code": "Symbol('s0', integer=exit())",
    "a formatted text": "f'{exit()}'",
    "deep nesting": "Abs(" * 900 + "1" + ")" * 900,
    "a long number": "Integer(" + "9" * 3000 + ")",
}.items():
    in_document(f"size: {_label}")(_sized(_expression))


def _nested(spec: Any, where: str) -> Callable[[Document, Path], None]:
    def change(document: Document, trap: Path) -> None:
        call = document["graph_module"]["module_call_graph"][0]["signature"]
        call[where] = spec(trap) if callable(spec) else spec

    return change


def _tree(kind: str, context: Any, children: int = 1) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    inner = {"type": kind, "context": context, "children_spec": [leaf] * children}
    return json.dumps([1, inner])


_ENUM = json.dumps([{"__enum__": True, "fqn": "canary:Canary", "name": "x"}])
_FACTORY = {
    "default_factory_module": "canary",
    "default_factory_name": "Canary",
    "dict_context": json.dumps(["scores", "rows"]),
}
in_document("a tree with an enum", live=True)(_nested(_tree("builtins.dict", _ENUM), "out_spec"))
in_document("a tree with a default factory", live=True)(
    _nested(_tree("collections.defaultdict", _FACTORY, 2), "out_spec")
)
in_document("a tree of an unknown class")(_nested(_tree("canary.Canary", "null"), "out_spec"))
in_document("a tree that is no tree")(_nested("[1, 3]", "in_spec"))
in_document("a tree of another protocol")(_nested("[7, {}]", "in_spec"))
in_document("a tree without end")(
    _nested('[1, {"type":"builtins.list","context":"null","children_spec":[' * 500, "in_spec")
)
in_document("a key of a dict that is code")(
    _nested(_tree("builtins.dict", "[\"' + exit() + '\"]"), "out_spec")
)


@in_document("named tuples by their class")
def _(document: Document, trap: Path) -> None:
    call = document["graph_module"]["module_call_graph"][0]["signature"]
    call["out_spec"] = _tree("canary.Point", '"canary.Point"', 2)
    document["graph_module"]["treespec_namedtuple_fields"] = {
        "canary.Point": {"field_names": ["x", "y"]}
    }


def _calls(target: str) -> Callable[[Document, Path], None]:
    def change(document: Document, trap: Path) -> None:
        graph(document)["nodes"][0]["target"] = target

    return change


for _target in (
    "torch.load",
    "torch.hub.load",
    "torch.ops.load_library",
    "torch.utils.cpp_extension.load_inline",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.set_.source_Storage",
    "torch.ops.aten.resize_.default",
    "torch.ops.aten._sparse_coo_tensor_unsafe.default",
    "torch.ops.aten.add.out",
    "torch.ops.aten.add.__init__",
    "torch.ops.aten.__class__.default",
    "torch.ops.farandole.anything.default",
    "torch.ops.higher_order.triton_kernel_wrapper_mutation",
    "torch.sym_not.__globals__",
    "math.__loader__.load_module",
    "_operator.methodcaller",
    "_operator.attrgetter",
    "#canary:run",
    "os.system",
    "",
):
    in_document(f"calls {_target or 'nothing'}")(_calls(_target))


@in_document("an operator as an argument")
def _(document: Document, trap: Path) -> None:
    graph(document)["nodes"][0]["inputs"][0]["arg"] = {"as_operator": "torch.load"}


@in_document("a text with a quote")
def _(document: Document, trap: Path) -> None:
    argument = graph(document)["nodes"][1]["inputs"][0]["arg"]
    argument.clear()
    argument["as_string"] = f"' + str({code(trap)}) + '"


@attack("a text as an input", live=True)
def _(files: Files, trap: Path) -> None:
    document = json.loads(files[MODEL])
    value = {"as_string": f"' or {code(trap)} or '"}
    graph(document)["inputs"].append(value)
    specs = document["graph_module"]["signature"]["input_specs"]
    specs.append({"constant_input": {"name": "y", "value": value}})
    call = document["graph_module"]["module_call_graph"][0]["signature"]
    protocol, tree = json.loads(call["in_spec"])
    tree["children_spec"][0]["children_spec"] *= 2
    call["in_spec"] = json.dumps([protocol, tree])
    call["forward_arg_names"] = ["x", "y"]
    files[MODEL] = json.dumps(document).encode()
    inputs = io.BytesIO()
    torch.save(((ROWS, "y"), {}), inputs)
    files[INPUTS] = inputs.getvalue()


@in_document("a custom object")
def _(document: Document, trap: Path) -> None:
    graph(document)["custom_obj_values"] = {"x": {"name": "x", "class_fqn": "canary.Canary"}}


@in_document("a custom object as an argument")
def _(document: Document, trap: Path) -> None:
    graph(document)["nodes"][0]["inputs"][0]["arg"] = {
        "as_custom_obj": {"name": "x", "class_fqn": "canary.Canary"}
    }


@in_document("an unknown verifier")
def _(document: Document, trap: Path) -> None:
    document["verifiers"] = ["canary"]


@attack("weights that are pickles", live=True)
def _(files: Files, trap: Path) -> None:
    document = json.loads(files[WEIGHTS])
    about = document["config"]["layer.weight"]
    about["use_pickle"] = True
    files[WEIGHTS] = json.dumps(document).encode()
    files[f"data/weights/{about['path_name']}"] = torch_bomb(trap)


def _constant(path_name: str) -> Attack:
    def change(files: Files, trap: Path) -> None:
        document = json.loads(files[CONSTANTS])
        [about] = document["config"].values()
        about |= {"path_name": path_name, "use_pickle": True}
        files[CONSTANTS] = json.dumps(document).encode()
        files[f"data/constants/{path_name}"] = pickle.dumps(Bomb(trap))

    return change


attack("a constant that is an opaque object", live=True)(_constant("opaque_obj_0"))
attack("a constant that is a custom object")(_constant("custom_obj_0"))


@attack("weights in the old way", live=True)
def _(files: Files, trap: Path) -> None:
    files["data/weights/model.pt"] = torch_bomb(trap)


@attack("constants in the old way", live=True)
def _(files: Files, trap: Path) -> None:
    files["data/constants/model.pt"] = torch_bomb(trap)


@attack("a compiled library")
def _(files: Files, trap: Path) -> None:
    files["data/aotinductor/model/model.so"] = b"\x7fELF"


@attack("a second program")
def _(files: Files, trap: Path) -> None:
    files["models/other.json"] = files[MODEL]


@attack("a path that leads elsewhere")
def _(files: Files, trap: Path) -> None:
    files["../../../../tmp/canary"] = b"x"


@attack("the format of before")
def _(files: Files, trap: Path) -> None:
    bomb = torch_bomb(trap)
    files.clear()
    files |= {"version": b"8.8", "serialized_exported_program.json": b"{}"}
    files |= {f"serialized_{part}.pt": bomb for part in ("state_dict", "constants")}


def _sizes(**changes: Any) -> Callable[[Document, Path], None]:
    def change(document: Document, trap: Path) -> None:
        document["config"]["layer.weight"]["tensor_meta"] |= changes

    return change


def _as_ints(*sizes: int) -> list[dict[str, int]]:
    return [{"as_int": size} for size in sizes]


for _label, _changes in {
    "larger than its bytes": {"sizes": _as_ints(40000, 40000), "strides": _as_ints(40000, 1)},
    "one number stretched": {"sizes": _as_ints(40000, 40000), "strides": _as_ints(0, 0)},
    "beyond its end": {"storage_offset": {"as_int": 1}},
    "before its beginning": {"storage_offset": {"as_int": -1}},
    "backwards": {"strides": _as_ints(-4, 1)},
    "negative": {"sizes": _as_ints(-3, 4)},
    "past 64 bits": {"sizes": _as_ints(1 << 62, 1 << 62), "strides": _as_ints(1, 1)},
    "of an unknown type": {"dtype": 99},
    "sparse": {"layout": 1},
    "on another device": {"device": {"type": "meta", "index": None}},
}.items():
    in_document(f"weights: {_label}", file=WEIGHTS)(_sizes(**_changes))


@attack("weights of no bytes that ask for 6 GB")
def _(files: Files, trap: Path) -> None:
    ATTACKS["weights: larger than its bytes"](files, trap)
    name = json.loads(files[WEIGHTS])["config"]["layer.weight"]["path_name"]
    files[f"data/weights/{name}"] = b""


@in_document("weights from another folder", file=WEIGHTS)
def _(document: Document, trap: Path) -> None:
    document["config"]["layer.weight"]["path_name"] = "../../../../etc/passwd"


@in_document("a thousand unknown sizes")
def _(document: Document, trap: Path) -> None:
    document["range_constraints"] = {"u999999999": {"min_val": 0, "max_val": None}}


@attack("guards in Python", live=True, harmless=True)
def _(files: Files, trap: Path) -> None:
    document = json.loads(files[MODEL])
    document["guards_code"] = [f"{code(trap)} is None"]
    files[MODEL] = json.dumps(document).encode()


@attack("sample inputs that are a pickle", live=True, harmless=True)
def _(files: Files, trap: Path) -> None:
    files[INPUTS] = torch_bomb(trap)
