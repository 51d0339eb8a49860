from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from tests.features.networks import Forbidden, Photos, activation
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.artifact.onnx_file import OnnxNetwork
from farandole.artifact.torchscript import ScriptNetwork
from farandole.errors import InputError
from farandole.features.cut import Cut
from farandole.networks import CNN, GNN, MLP, RNN
from farandole.networks.input_spec import ragged_axes, takes_gray
from farandole.pretrained import ResNet
from farandole.ragged import Ragged


def hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in network.modules())


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6)


IMAGES = torch.randn(5, 3, 10, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layer", ["stem", "stem.0", "stem.2", "body"])
def test_features_are_those_of_a_hook_and_nothing_behind_is_computed(layer: str) -> None:
    torch.manual_seed(0)
    whole = Photos(nn.Linear(6, 2)).eval()
    seen = activation(whole, layer, IMAGES)
    whole.head = Forbidden()
    expected = {"mean": seen.mean((2, 3)), "max": seen.amax((2, 3)), "flatten": seen.flatten(1)}
    for pooling, features in expected.items():
        with torch.no_grad():
            assert close(Cut(whole, layer, pooling)(IMAGES), features), pooling
    assert hooks(whole) == 0
    with pytest.raises(InputError, match=r"gives rows of shape .* not vectors"):
        Cut(whole, layer, "none")(IMAGES)


def test_a_forbidden_layer_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="behind the cut"):
        Photos()(IMAGES)


def test_a_network_that_catches_everything_is_still_left() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            try:
                return self.first(rows)
            except Exception:
                raise AssertionError("caught") from None

    assert Cut(Stubborn(), "first")(torch.zeros(4, 2)).shape == (4, 3)


def test_an_error_on_the_way_is_passed_on_and_leaves_no_hook() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Cut(network, "1")(torch.zeros(2, 5))
    assert hooks(network) == 0


def test_hooks_of_others_are_kept_and_count() -> None:
    network = nn.Sequential(nn.Linear(2, 2), Forbidden())
    network[0].register_forward_hook(lambda module, arguments, output: output * 0 + 7)
    assert Cut(network, "0")(torch.zeros(1, 2)).tolist() == [[7.0, 7.0]]
    assert hooks(network) == 1


def test_a_cut_inside_of_a_cut() -> None:
    inner = Cut(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), Forbidden()), "1")
    outer = nn.Sequential(inner, Forbidden())
    rows = torch.ones(2, 2)
    assert close(Cut(outer, "0")(rows), inner(rows))
    assert close(Cut(outer, "0.network.0")(rows), inner.network[0](rows))  # type: ignore[index]


def test_gradients_reach_the_layers_before_the_cut() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    Cut(network, "0")(torch.ones(4, 2)).sum().backward()
    assert network[0].weight.grad is not None
    assert network[1].weight.grad is None


def test_threads_share_a_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    rows = torch.randn(3, 8)
    expected = {layer: activation(network, layer, rows) for layer in "0123"}
    wrong: list[str] = []

    def work(layer: str) -> None:
        cut = Cut(network, layer)
        with torch.no_grad():
            wrong.extend(layer for _ in range(200) if not close(cut(rows), expected[layer]))

    threads = [threading.Thread(target=work, args=(layer,)) for layer in "01230123"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert hooks(network) == 0


def test_activations_are_freed_without_a_collection() -> None:
    seen: list[Any] = []
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    network[1].register_forward_hook(lambda m, a, output: seen.append(weakref.ref(output)))
    gc.disable()
    try:
        with torch.no_grad():
            Cut(network, "1", "mean")(torch.zeros(4, 2)).clone()
        assert seen[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "travel", [copy.deepcopy, lambda cut: pickle.loads(cloudpickle.dumps(cut))]
)
def test_it_travels(travel: Any) -> None:
    cut = Cut(Photos().eval(), "body")
    with torch.no_grad():
        assert close(travel(cut)(IMAGES), cut(IMAGES))


def test_an_exported_program_is_cut_like_its_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Photos(nn.Linear(6, 2)).eval()
    about = Signature(
        features=("x",), shapes=((3, 10, 12),), dtypes=("float32",), head="softmax", outputs=2
    )
    Artifact(network, about).save(tmp_path / "net")
    program = Artifact.load(tmp_path / "net").network
    for cut in (Cut(program, "stem"), pickle.loads(cloudpickle.dumps(Cut(program, "stem")))):
        with torch.no_grad():
            assert close(cut(IMAGES), activation(network, "stem", IMAGES).mean((2, 3)))
            assert close(copy.deepcopy(cut)(IMAGES[:1]), cut(IMAGES[:1]))


def test_scripts_and_onnx_are_refused_with_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is out of fashion
        script = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    for network in (script, ScriptNetwork(script)):
        with pytest.raises(InputError, match="TorchScript network is compiled"):
            Cut(network, "0")
    with pytest.raises(InputError, match="ONNX model is a graph"):
        Cut(OnnxNetwork.__new__(OnnxNetwork), "0")
    with pytest.raises(InputError, match=r"A torch network is needed.*Received: a dict"):
        Cut({}, "0")  # type: ignore[arg-type]


def test_unknown_layers_and_options() -> None:
    network = Photos()
    with pytest.raises(InputError, match=r"'stem\.3'.*Did you mean 'stem\.\d'\?.*stem, stem\.0"):
        Cut(network, "stem.3")
    with pytest.raises(InputError, match="no layers inside"):
        Cut(nn.ReLU(), "x")
    with pytest.raises(InputError, match=r"pooling='men'\. Did you mean 'mean'"):
        Cut(network, "stem", "men")
    with pytest.raises(InputError, match="channel_axis must be 1, -1 or None"):
        Cut(network, "stem", channel_axis=2)


def test_a_layer_that_is_never_called() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    network = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert "out_proj" in dict(attention.named_modules())
    with pytest.raises(InputError, match=r"'self_attn\.out_proj'.*never called"):
        Cut(network.eval(), "self_attn.out_proj")(torch.zeros(2, 3, 4))


# Each line: layers that end in the one to cut at, the shape of a row, the axes to pool over.
SHAPES = [
    ([nn.Conv1d(4, 6, 3)], (4, 9), (2,)),
    ([nn.Conv1d(4, 6, 3), nn.ReLU()], (4, 9), (2,)),
    ([nn.Conv1d(4, 6, 4), nn.BatchNorm1d(6), nn.Dropout()], (4, 9), (2,)),
    ([nn.Embedding(9, 5)], (7,), (1,)),
    ([nn.Linear(4, 6), nn.GELU()], (7, 4), (1,)),
    ([nn.LSTM(4, 6, batch_first=True)], (7, 4), (1,)),
    ([nn.LSTM(4, 6, batch_first=True, bidirectional=True)], (12, 4), (1,)),
    ([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)], (7, 4), (1,)),
    ([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)], (4, 4), (1,)),
    ([nn.Conv3d(2, 3, 2)], (2, 4, 4, 4), (2, 3, 4)),
    ([nn.Linear(4, 6)], (3, 3, 4), (1, 2)),
    ([nn.AvgPool2d(2)], (4, 6, 6), (2, 3)),
]


@pytest.mark.parametrize(("parts", "shape", "axes"), SHAPES)
def test_channels_are_found(parts: list[nn.Module], shape: Any, axes: Any) -> None:
    network = nn.Sequential(*parts).eval()
    kind = torch.int64 if isinstance(parts[0], nn.Embedding) else torch.float32
    rows = torch.randint(0, 5, (3, *shape)).to(kind)
    layer = str(len(parts) - 1)
    seen = activation(network, layer, rows)
    seen = seen[0] if isinstance(seen, tuple) else seen
    with torch.no_grad():
        assert close(Cut(network, layer)(rows), seen.mean(axes))
        assert close(Cut(network, layer, "max")(rows), seen.amax(axes))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kind", [nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer])
def test_positions_before_rows(kind: type[nn.Module]) -> None:
    """As many of the one as of the other, so that the shape doesn't tell."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _transformer(kind)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [x.transpose(0, 1)] * (1 if kind is nn.TransformerEncoder else 2)
            found: torch.Tensor = self.body(*parts)
            return found

    network, rows = Turned().eval(), torch.randn(3, 3, 4)
    with torch.no_grad():
        assert close(Cut(network, "body")(rows), network(rows).transpose(0, 1).mean(1))


def _transformer(kind: type[nn.Module]) -> nn.Module:
    if kind is nn.Transformer:
        return nn.Transformer(4, 2, 1, 1, 8)
    if kind is nn.TransformerDecoder:
        return nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False)


def test_a_block_that_turns_the_axes_is_known_by_its_width() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.linear(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return found

    network, images = nn.Sequential(Turning()), torch.randn(2, 4, 5, 6)
    assert close(Cut(network, "0")(images), network(images).mean((2, 3)))


def test_where_no_layer_tells_it_has_to_be_said() -> None:
    network, rows = nn.Sequential(nn.ReLU()), torch.randn(2, 3, 4)
    with pytest.raises(InputError, match=r"\(3, 4\).*Set channel_axis"):
        Cut(network, "0")(rows)
    assert close(Cut(network, "0", channel_axis=1)(rows), rows.relu().mean(2))
    assert close(Cut(network, "0", channel_axis=-1)(rows), rows.relu().mean(1))


def test_steps_first() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(4, 6)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.recurrent(rows.transpose(0, 1))[0]  # type: ignore[no-any-return]

    network, rows = Steps(), torch.randn(3, 7, 4)
    assert close(Cut(network, "recurrent")(rows), network(rows).mean(0))


def test_outputs_of_all_sorts() -> None:
    class Sort(nn.Module):
        def forward(self, rows: torch.Tensor) -> Any:
            kind = int(rows[0, 0])
            steps = Ragged.of([row[: index + 1, None] for index, row in enumerate(rows)])
            return [rows[:, 0], {"first": rows, "second": 1}, [rows, rows], steps, rows > 0][kind]

    network = nn.Sequential(Sort())

    def features(kind: int, pooling: str = "mean") -> Any:
        rows = torch.tensor([[float(kind), 1, 2], [3, 4, 5]])
        return Cut(network, "0", pooling)(rows).tolist()

    assert features(0) == [[0.0], [3.0]]
    assert features(1) == [[1.0, 1, 2], [3, 4, 5]]
    assert features(2) == [[2.0, 1, 2], [3, 4, 5]]
    assert features(3) == [[3.0], [3.5]]
    assert features(3, "max") == [[3.0], [4.0]]
    assert features(4) == [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    with pytest.raises(InputError, match="rows of 1 to 2 elements"):
        features(3, "flatten")


def test_it_says_of_its_rows_what_the_network_says() -> None:
    assert ragged_axes(Cut(CNN(channels=1, outputs=2), "head")) == (2,)
    assert takes_gray(Cut(nn.Sequential(CNN(channels=1, outputs=2), nn.Softmax(1)), "1"))
    assert not takes_gray(Cut(CNN(channels=3, outputs=2), "head"))
    assert Cut(CNN(channels=3, outputs=2), "head").channels == 3
    assert ragged_axes(Cut(MLP([4, 3]), "last")) is None


@pytest.mark.parametrize("layer", ["blocks.0", "blocks.1.convolution", "blocks.1.norm", "head"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_an_image_gives_what_it_would_alone(layer: str, pooling: str) -> None:
    network = CNN(channels=3, outputs=4, batch_norm=True, seed=0).eval()
    random = torch.Generator().manual_seed(1)
    sizes = [(9, 7), (4, 11), (9, 7), (1, 1), (16, 3)]
    images = [torch.rand(*size, 3, generator=random) for size in sizes]
    cut = Cut(network, layer, pooling)
    with torch.no_grad():
        together = cut(Ragged.of(images, axes=2))
        for image, features in zip(images, together, strict=True):
            alone = activation(network, layer, image.permute(2, 0, 1)[None])
            alone = alone[0] if isinstance(alone, tuple) else alone
            flat = alone.flatten(2) if alone.dim() > 2 else alone[:, :, None]
            expected = flat.mean(2) if pooling == "mean" else flat.amax(2)
            assert close(features[None], expected)
    with pytest.raises(InputError, match="rows differ in size"):
        Cut(network, "blocks.0", "flatten")(Ragged.of(images, axes=2))


def test_networks_that_resize_take_all_sizes_at_once() -> None:
    network = ResNet(18, outputs=2, size=64, seed=0).eval()
    random = torch.Generator().manual_seed(1)
    images = [torch.rand(h, w, 3, generator=random) for h, w in [(40, 30), (64, 64), (20, 70)]]
    calls: list[int] = []
    network.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    cut = Cut(network, "layer2", "flatten")
    with torch.no_grad():
        together = cut(Ragged.of(images, axes=2))
        assert len(calls) == 1
        alone = [cut(Ragged.of([image], axes=2))[0] for image in images]
    assert torch.allclose(together, torch.stack(alone), atol=1e-4)


def test_sequences_of_any_length() -> None:
    network = RNN(features=4, outputs=2, hidden=5, vocabulary=9, seed=0).eval()
    words = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([8, 8, 2])]
    rows = Ragged.of(words)
    assert network.embedding is not None
    with torch.no_grad():
        embedded = torch.stack([network.embedding(one).mean(0) for one in words])
        assert close(Cut(network, "embedding")(rows), embedded)
        steps = [network.recurrent(network.embedding(one)[None])[0][0].mean(0) for one in words]
        assert close(Cut(network, "recurrent")(rows), torch.stack(steps))
        nothing = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.int64))
        assert Cut(network, "recurrent")(nothing).shape == (0, 5)


def test_nodes_belong_to_their_graphs() -> None:
    network = GNN(features=3, outputs=2, seed=0).eval()
    nodes = Ragged.of([torch.rand(4, 3), torch.rand(2, 3)])
    edges = Ragged.of([torch.tensor([[0, 1], [1, 2]]), torch.tensor([[0, 1]])])
    layer = next(n for n, m in network.named_modules() if isinstance(m, nn.Linear))
    seen = activation(network, layer, nodes, edges)
    expected = torch.stack([seen[:4].mean(0), seen[4:].mean(0)])
    with torch.no_grad():
        assert close(Cut(network, layer)(nodes, edges), expected)
