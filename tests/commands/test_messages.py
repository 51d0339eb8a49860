from __future__ import annotations

import pytest

from farandole.commands.messages import for_command_line

OPTIONS = ["--overwrite", "--num-workers", "--label", "--shape", "--relu", "--trace", "--patience"]


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("'net' exists. Choose another path, or overwrite=True.",
         "'net' exists. Choose another path, or --overwrite."),
        ("num_workers must be positive. Received: num_workers=0",
         "--num-workers must be positive. Received: --num-workers 0"),
        ("Give its shape: shape=(3, 224, 224), or not.",
         "Give its shape: --shape 3,224,224, or not."),
        ("label must be a name. Received: label='a b'",
         "--label must be a name. Received: --label a b"),
        ("The label of a row is its class.", "The label of a row is its class."),
        ("relu=False", "--no-relu"),
        ("There is no column 'lable'. Did you mean 'label'?",
         "There is no column 'lable'. Did you mean 'label'?"),
        ("ring has no option 'shape'. There are trace, label.",
         "ring has no option --shape. There are --trace, --label."),
        ("There are red, green.", "There are red, green."),
        ("Record one with farandole.train(…, trace='run.json').",
         "Record one with farandole train --trace run.json."),
        ("min_delta is for stopping: only with patience.",
         "min_delta is for stopping: only with --patience."),
        ("A file my_label=3 stays.", "A file my_label=3 stays."),
        ("allow more time with timeout=.", "allow more time with timeout=."),
    ],
)  # fmt: skip
def test_arguments_become_options(message: str, wanted: str) -> None:
    assert for_command_line(message, OPTIONS) == wanted


def test_a_message_in_the_words_of_the_command_line_stays() -> None:
    said = "--num-workers must be positive. Received: --num-workers 0"
    assert for_command_line(said, OPTIONS) == said


def test_an_option_without_a_value_is_named() -> None:
    said = "look at its log, or allow more time with timeout=."
    assert for_command_line(said, ["--timeout"]).endswith("allow more time with --timeout.")
