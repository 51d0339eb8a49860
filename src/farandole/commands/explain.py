"""farandole explain: a topic is printed, and a page or a picture of it is written."""

from __future__ import annotations

import argparse

from farandole.commands.exit_codes import DONE
from farandole.commands.output import add_open, check_folder, open_in_browser
from farandole.commands.parser import CommandParser, whole_number
from farandole.explain import TOPICS, explain


def add_options(parser: CommandParser) -> None:
    """Add the options of all topics."""
    parser.description = "Print a topic, and write a page to step through."
    add = parser.add_argument
    add("topic", nargs="?", metavar="TOPIC", help="without one: all there are")
    add("--output", default="farandole-explain", metavar="FOLDER", help="for the page")
    add_open(parser, "the page")
    parser.argument_default = argparse.SUPPRESS  # a topic is told only what was asked for
    add("--workers", type=whole_number, metavar="N", help="how many there are")
    add("--servers", type=whole_number, metavar="N", help="how many of them are servers")
    add("--values", type=whole_number, metavar="K", help="how many numbers are summed or kept")
    add("--stages", type=whole_number, metavar="N", help="how many parts a pipeline has")
    add("--micro-batches", type=whole_number, metavar="N", help="how many parts a batch has")
    add("--schedule", metavar="NAME", help="of a pipeline: gpipe, 1f1b or naive")
    add("--x", metavar="A,B", help="backprop: features (--x=-1,2 if the first is negative)")
    add("--beta", metavar="A,B", help="backprop: weights")
    add("--y", metavar="A", help="backprop: what should come out")
    add("--relu", action=argparse.BooleanOptionalAction, help="backprop: with a ReLU or without")
    add("--trace", metavar="FILE", help="draw a real run: what train --trace FILE has written")
    add("--steps", metavar="A-B", help="which steps of the trace")
    parser.epilog = f"{_topics(parser)}\n\nexample: farandole explain ring --workers 5 --open"


def run(options: argparse.Namespace) -> int:
    """Show a topic, or list all of them."""
    chosen = vars(options)
    topic, output, is_open = (chosen.pop(name) for name in ("topic", "output", "open"))
    if topic is None:
        width = max(map(len, TOPICS))
        for name, entry in TOPICS.items():
            print(f"{name:<{width}}  {entry.about}")
        return DONE
    path = explain(topic, check_folder(output), **chosen)
    print(f"The {'picture' if path.suffix == '.png' else 'page'}: {path}")
    if is_open:
        open_in_browser(path)
    return DONE


def _topics(parser: CommandParser) -> str:
    """What there is, each with the options it takes."""
    lines = ["topics and their options:"]
    for name, topic in TOPICS.items():
        options = [f"--{option.replace('_', '-')}" for option in topic.options]
        known = [option for option in options if option in parser.options]
        lines += [f"  {name:<17} {topic.about}"]
        lines += [f"  {'':<17} {' '.join(known)}"] if known else []
    return "\n".join(lines)
