"""An exported program without what does nothing: for one row, that is most of its time.

Keras converts every tensor before every operation, and torch notes a check beside each conversion.
Where a tensor is of that type and on that device anyway, both go.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_CHECK = torch.ops.aten._assert_tensor_metadata.default
_CONVERSIONS = (torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout)


def trim(program: torch.export.ExportedProgram) -> None:
    """Take conversions that change nothing, and their checks, out of a program's graph."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is _CHECK:
            graph.erase_node(node)
    for node in list(graph.nodes):
        if _does_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    program.graph_module.recompile()


def _does_nothing(node: fx.Node) -> bool:
    """Whether a conversion gives the very tensor that it gets; an output has to stay one."""
    if node.target not in _CONVERSIONS or any(user.op == "output" for user in node.users):
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    copies = node.kwargs.get("copy") or node.kwargs.get("memory_format") or len(node.args) > 2
    return not copies and _kind(before) == _kind(after)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.layout
