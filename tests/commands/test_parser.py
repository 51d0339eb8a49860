from __future__ import annotations

import pytest

from farandole.commands.parser import CommandParser, names, numbers, pairs, whole_numbers
from farandole.errors import InputError


@pytest.fixture
def parser() -> CommandParser:
    parser = CommandParser(prog="farandole try")
    parser.add_argument("--x")
    parser.add_argument("--needed", required=True)
    parser.add_argument("--shape", type=whole_numbers)
    parser.add_argument("--weights", type=numbers)
    parser.add_argument("--settings", type=pairs)
    return parser


def test_values_are_read(parser: CommandParser) -> None:
    line = "--needed a --shape 3,224 --weights 0.5,2 --settings a=1,b=true,c=word --x=-1,2"
    found = parser.parse_args(line.split())
    assert (found.shape, found.weights, found.x) == ((3, 224), [0.5, 2.0], "-1,2")
    assert found.settings == {"a": 1, "b": True, "c": "word"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "--neded a",
            "There is no option --neded. Did you mean --needed?",
        ),
        ("--need a", "There is no option --need. Did you mean --needed?"),
        ("--zzz", "There is no option --zzz. There are --help, --x, --needed,"),
        ("--x 1", "Missing: --needed."),
        ("--needed a --shape 3,x", "--shape must be whole numbers between commas"),
        ("--needed a --weights 3,x", "--weights must be numbers between commas"),
        ("--needed a --settings 3", "--settings must be names with values"),
        ("--needed", "--needed needs a value."),
    ],
)
def test_what_is_wrong_is_told(line: str, complaint: str, parser: CommandParser) -> None:
    with pytest.raises(InputError) as raised:
        parser.parse_args(line.split())
    assert complaint in str(raised.value)


def test_names() -> None:
    assert names("a, b,") == ["a", "b"]
    assert names("none") == []
