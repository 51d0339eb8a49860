"""The words of an exported program: names, texts, sizes, and how arguments are nested.

torch's reader puts names and texts into Python code that it runs, hands sizes to sympy, which
evaluates them, and imports the classes that a nesting names. So each has a narrow grammar here.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.artifact.program.json_checks import Refused

_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,511}", re.ASCII)
_PATH = re.compile(r"(?!__)[A-Za-z0-9_]{1,255}(\.(?!__)[A-Za-z0-9_]{1,255}){0,63}", re.ASCII)
_TEXT = re.compile(r"[A-Za-z0-9_ .,:+>/=-]{0,255}", re.ASCII)  # torch puts it between quotes
_SYMBOL = re.compile(r"[a-z]{1,4}\d{1,5}", re.ASCII)
_LONGEST_SIZE = 4000


def name(value: Any) -> str:
    """A name that is a plain identifier of Python's, and no word of the language."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or keyword.iskeyword(value):
        raise Refused(f"it has the name {_shown(value)}")
    return value


def path(value: Any) -> str:
    """Names joined by dots, of which some may be numbers: layers.0.weight."""
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise Refused(f"it has the name {_shown(value)}")
    return value


def text(value: Any) -> str:
    """A text without quotes, backslashes and line ends, such as an equation of einsum."""
    if not isinstance(value, str) or not _TEXT.fullmatch(value):
        raise Refused(f"it has the text {_shown(value)}")
    return value


def symbol(value: Any) -> str:
    """A size that isn't known yet: s0, u7."""
    if not isinstance(value, str) or not _SYMBOL.fullmatch(value):
        raise Refused(f"it has the symbol {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:80]


_FUNCTION_NAMES = """
    Abs Add And CeilDiv CeilToInt CleanDiv Equality FloatTrueDiv FloorDiv FloorToInt GreaterThan
    Identity IntTrueDiv LessThan Max Min Mod ModularIndexing Mul Not Or PythonMod RoundToInt
    StrictGreaterThan StrictLessThan ToFloat TruncToFloat TruncToInt Unequality Where
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_POWERS = ("Pow", "PowByNatural", "FloatPow")
_ASSUMPTIONS = {"integer", "positive", "nonnegative", "negative", "nonzero", "real", "finite"}
_LARGEST_EXPONENT = 8


def expression(value: Any) -> str:
    """A size as sympy writes it: functions of symbols and numbers, given back as it was read.

    >>> expression("Mul(Integer(2), Symbol('s0', integer=True))")
    "Mul(Integer(2), Symbol('s0', integer=True))"
    """
    if not isinstance(value, str) or len(value) > _LONGEST_SIZE:
        raise Refused(f"it has the expression {_shown(value)}")
    try:
        tree = ast.parse(value, mode="eval").body
        if _is_size(tree):
            return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise Refused(f"it has the expression {_shown(value)}")


def _is_size(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=("true" | "false" | "oo" | "int_oo")):
            return True
        case ast.Name(id=word):
            return bool(_SYMBOL.fullmatch(word))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_size(inner)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(word))]):
            return bool(_SYMBOL.fullmatch(word)) and all(map(_is_assumption, node.keywords))
        case ast.Call(func=ast.Name(id=kind), args=args, keywords=[]):
            return _is_call(kind, args)
        case _:
            return False


def _is_call(kind: str, args: Sequence[ast.expr]) -> bool:
    match kind, args:
        case "Integer" | "Rational", _:
            return 0 < len(args) < 3 and all(_integer(one) is not None for one in args)
        case "Float", [ast.Constant(value=str(number)), *_]:
            return bool(re.fullmatch(r"-?[\d.]{1,40}(e[+-]?\d{1,3})?", number)) and len(args) == 1
        case _ if kind in _POWERS:
            return len(args) == 2 and _is_size(args[0]) and _is_small(args[1])
        case _:
            return kind in _FUNCTIONS and all(map(_is_size, args))


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return -number
        case ast.Constant(value=int(number)) if number <= 1 << 64:
            return number
        case _:
            return None


def _is_small(node: ast.expr) -> bool:
    """Whether this is an exponent with which sympy has little to compute."""
    match node:
        case ast.Call(func=ast.Name(id="Integer"), args=[inner], keywords=[]):
            number = _integer(inner)
        case _:
            number = _integer(node)
    return number is not None and abs(number) <= _LARGEST_EXPONENT


def _is_assumption(node: ast.keyword) -> bool:
    constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool)
    return constant and node.arg in _ASSUMPTIONS


@dataclass(frozen=True)
class Nesting:
    """How tensors stand in tuples, lists and dicts; what torch calls a tree spec.

    >>> leaf = {"type": None, "context": None, "children_spec": []}
    >>> pair = {"type": "builtins.list", "context": "null", "children_spec": [leaf, leaf]}
    >>> Nesting.read(json.dumps([1, pair])).fill(iter("ab"))
    ['a', 'b']
    """

    kind: str | None
    """None for a tensor, or a number."""
    keys: tuple[str | int, ...] = ()
    children: tuple[Nesting, ...] = ()

    @classmethod
    def read(cls, written: Any) -> Nesting:
        """What torch has written, if there are only tuples, lists and dicts in it."""
        try:
            protocol, content = json.loads(written)
            if protocol != 1:
                raise Refused(f"its arguments are written in way {protocol}")
            return cls._of(content, 0)
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"the nesting of its arguments is damaged ({error})") from error

    @classmethod
    def _of(cls, content: Any, depth: int) -> Nesting:
        kind, children = content["type"], content["children_spec"]
        if depth > _DEEPEST or not isinstance(children, list):
            raise Refused("its arguments are nested too deeply")
        inner = tuple(cls._of(child, depth + 1) for child in children)
        if kind is None and not inner:
            return cls(None)
        kind = _PLAIN.get(kind, kind)
        if kind in ("builtins.tuple", "builtins.list"):
            return cls(kind, (), inner)
        if kind != "builtins.dict":
            raise Refused(f"it takes or gives a {_shown(kind)}, and not tuples, lists and dicts")
        keys = json.loads(content["context"])
        if not isinstance(keys, list) or len(keys) != len(inner) or len(set(keys)) != len(keys):
            raise Refused("the keys of a dict don't fit")
        return cls(kind, tuple(key if type(key) is int else text(key) for key in keys), inner)

    def write(self) -> str:
        """As torch reads it."""
        return json.dumps([1, self._content()])

    def _content(self) -> dict[str, Any]:
        if self.kind is None:
            return {"type": None, "context": None, "children_spec": []}
        context = json.dumps(list(self.keys)) if self.kind == "builtins.dict" else "null"
        children = [child._content() for child in self.children]
        return {"type": self.kind, "context": context, "children_spec": children}

    def leaves(self) -> int:
        """How many tensors and numbers there are."""
        return 1 if self.kind is None else sum(child.leaves() for child in self.children)

    def fill(self, values: Iterator[Any]) -> Any:
        """The nesting itself, with values in the place of its leaves."""
        if self.kind is None:
            return next(values)
        made = [child.fill(values) for child in self.children]
        match self.kind:
            case "builtins.tuple":
                return tuple(made)
            case "builtins.list":
                return made
            case _:
                return dict(zip(self.keys, made, strict=True))


_DEEPEST = 32
_PLAIN = {"collections.namedtuple": "builtins.tuple", "collections.OrderedDict": "builtins.dict"}
"""They predict as well as plain ones, and no class of theirs has to be imported."""
