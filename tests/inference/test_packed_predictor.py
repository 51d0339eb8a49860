"""A network on its way to workers: whole, recognised, mapped into memory and shared."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference.networks import Tied
from tests.spark.samples import small_network
from torch import nn

from farandole.errors import ArtifactError, InputError
from farandole.inference import packed_predictor as packing
from farandole.inference.packed_predictor import INLINE_BYTES, PackedPredictor
from farandole.networks import MLP


@pytest.fixture(autouse=True)
def nothing_loaded() -> None:
    packing._loaded.clear()


def direct(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network.eval()(x)
    return found


def travelled(packed: PackedPredictor) -> Any:
    """The network as another process would have it."""
    packing._loaded.clear()
    return pickle.loads(cloudpickle.dumps(packed)).load().network


def large() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 3))


@pytest.mark.parametrize("width", [6, 600])
def test_nothing_is_lost(width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Tied(width)
    packed = PackedPredictor.of(network, None, tmp_path)
    assert bool(packed.path) == (width == 600)
    found = travelled(packed)
    x = torch.randn(5, width)
    torch.testing.assert_close(direct(found, x), direct(network, x))
    assert found.second.weight is found.first.weight
    assert isinstance(found.first.weight, nn.Parameter)
    assert torch.equal(found.turned, network.turned)
    assert torch.equal(found.part, network.part)
    assert torch.equal(found.plain, network.plain)
    assert found.nothing.shape == (0, 4)
    assert list(found.state_dict()) == list(network.state_dict())
    assert network.first.weight.requires_grad, "the given network stays as it is"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.arange(5, dtype=torch.int8),
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.randn(3).half(),
        torch.randn(2, 3, dtype=torch.float64).t(),
        torch.zeros(2).expand(3, 2),
        torch.randn(2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
@pytest.mark.parametrize("inline", [True, False])
def test_tensors_of_every_kind(
    tensor: torch.Tensor, inline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inline:
        monkeypatch.setattr(packing, "INLINE_BYTES", 0)
    network = nn.Identity()
    network.register_buffer("held", tensor)
    found = travelled(PackedPredictor.of(network, None, tmp_path)).held
    assert found.dtype == tensor.dtype
    assert found.layout == tensor.layout
    dense = [t.to_dense() if t.is_sparse else t for t in (found, tensor)]
    assert torch.equal(*dense)


class Own(nn.Module):
    """Of a test: workers can't import it from a package."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) * self.factor
        return found


def test_classes_that_nobody_can_import_travel_by_value(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys, cloudpickle, torch\n"
        "from torch import nn\n"
        "from farandole.inference.packed_predictor import PackedPredictor\n"
        "class Mine(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 3\n"
        "packed = PackedPredictor.of(Mine(), None)\n"
        f"cloudpickle.dump(packed, open({str(tmp_path / 'mine')!r}, 'wb'))\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    packed = pickle.loads((tmp_path / "mine").read_bytes())
    found = packed.load()(np.ones((2, 2), np.float32)).raw
    assert found.tolist() == [[3.0, 3.0]] * 2


def test_the_digest_is_that_of_the_content() -> None:
    def made(seed: int = 0, **options: Any) -> str:
        return PackedPredictor.of(MLP([4, 8, 3], seed=seed, **options), None).digest

    assert made() == made()
    assert made() != made(seed=1)
    assert made() != made(activation="tanh")
    network = MLP([4, 8, 3], seed=0)
    assert (
        PackedPredictor.of(copy.deepcopy(network), None).digest
        == PackedPredictor.of(network, None).digest
    )
    with torch.no_grad():
        next(network.parameters())[0, 0] += 1e-3
    assert PackedPredictor.of(network, None).digest != made()
    assert PackedPredictor.of(Own(1.0), None).digest != PackedPredictor.of(Own(2.0), None).digest


def test_a_buffer_counts() -> None:
    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert PackedPredictor.of(one, None).digest == PackedPredictor.of(other, None).digest
    other.running_mean += 1
    assert PackedPredictor.of(one, None).digest != PackedPredictor.of(other, None).digest


def test_loaded_once_and_a_few_are_kept() -> None:
    packed = [PackedPredictor.of(nn.Linear(4, 3), None) for _ in range(6)]
    first = packed[0].load()
    assert pickle.loads(cloudpickle.dumps(packed[0])).load() is first
    for one in packed[1:4]:
        one.load()
    assert packed[0].load() is first  # used again: so it is not the oldest
    packed[4].load()
    assert packed[0].load() is first
    packed[5].load()
    assert len(packing._loaded) == 4
    for one in packed[1:5]:
        one.load()
    assert packed[0].load() is not first


def test_another_way_to_apply_it_is_another_predictor() -> None:
    network = nn.Linear(4, 3)
    packed = PackedPredictor.of(network, None, batch_size="auto")
    lower = PackedPredictor.of(network, None, batch_size="auto", precision="bfloat16")
    assert packed.digest == lower.digest
    assert lower.load() is not packed.load()
    assert lower.load().network.weight.dtype == torch.bfloat16
    assert packed.load().network.weight.dtype == torch.float32


def test_a_large_network_goes_into_one_file(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path)
    [file] = tmp_path.iterdir()
    assert str(file) == packed.path
    assert packed.shared
    assert file.stat().st_size > INLINE_BYTES
    assert len(cloudpickle.dumps(packed)) < 2000
    written = file.stat().st_mtime_ns
    assert PackedPredictor.of(large(), None, tmp_path) == packed
    assert file.stat().st_mtime_ns == written, "it was written again"
    x = torch.randn(4, 64)
    torch.testing.assert_close(direct(travelled(packed), x), direct(large(), x))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path)
    Path(packed.path).unlink()
    with pytest.raises(InputError, match=r"can't see the network's file .*folder="):
        packed.load()


def test_distributed_files_are_looked_for_by_name(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path).to_be_distributed()
    assert "/" not in packed.path
    asked = []

    def find(name: str) -> str:
        asked.append(name)
        return str(tmp_path / name)

    packing._loaded.clear()
    packed.load(find)
    packed.load(find)
    assert asked == [packed.path]


HOLD = """
import pickle, sys, numpy as np
packed = pickle.load(open(sys.argv[1], "rb"))
predictor = packed.load()
found = predictor(np.ones((3, 64), np.float32)).raw
print(found[0, 0], flush=True)
sys.stdin.readline()
"""


def mapped(process: int, name: str) -> dict[str, int]:
    """What the kernel says of a file in a process's memory: kB by kind, over all its mappings."""
    found: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = name in line
        elif inside and (match := re.match(r"(\w+): +(\d+) kB", line)):
            found[match[1]] = found.get(match[1], 0) + int(match[2])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel tells only on Linux")
def test_processes_of_one_host_share_the_pages(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path)
    (tmp_path / "packed").write_bytes(cloudpickle.dumps(packed))
    name = Path(packed.path).name
    command = [sys.executable, "-c", HOLD, str(tmp_path / "packed")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        lines = [process.stdout.readline() for process in processes if process.stdout]
        found = [mapped(process.pid, name) for process in processes]
    finally:
        for process in processes:
            process.communicate("\n", timeout=20)
    expected = direct(large(), torch.ones(1, 64))[0, 0].item()
    np.testing.assert_allclose([float(line) for line in lines], expected, rtol=1e-4)
    weights = (64 * 8192 + 8192 + 3 * 8192) * 4 // 1024
    for memory in found:
        assert memory.get("Rss", 0) > 0.9 * weights, "the weights aren't those of the file"
        assert memory.get("Anonymous", 0) < 0.1 * weights, "they were copied"
        if memory.get("Pss") and memory["Pss"] != memory["Rss"]:  # some sandboxes don't count
            assert memory["Pss"] < 0.75 * memory["Rss"]


class Around(nn.Module):
    """TorchScript inside of a plain module, as people wrap what takes one argument too many."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.inner = torch.jit.script(small_network())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) * 2
        return found


def test_torchscript_inside_of_a_network() -> None:
    network = Around()
    found = travelled(PackedPredictor.of(network, None))
    x = torch.randn(5, 4)
    torch.testing.assert_close(direct(found, x), direct(small_network(), x) * 2)
    assert PackedPredictor.of(network, None).load()(x.numpy()).raw.shape == (5, 3)


class Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = (number for number in range(3))


def test_what_can_not_travel() -> None:
    with pytest.raises(InputError, match=r"\(Stubborn\) can't be sent to workers.*TorchScript"):
        PackedPredictor.of(Stubborn(), None)


def test_packing_a_large_network_takes_little_time(tmp_path: Path) -> None:
    start = time.monotonic()
    PackedPredictor.of(large(), None, tmp_path)
    assert time.monotonic() - start < 60


class Bomb:
    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> Any:
        return Path.touch, (self.trap,)


def replace_network(file: Path, trap: Path) -> None:
    """Put a pickle that runs code where the network's is."""
    tensors = load_file(file)
    content = np.frombuffer(pickle.dumps(Bomb(trap)), np.uint8).copy()
    save_file({**tensors, "network": torch.from_numpy(content)}, file)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.attack(
    "another network under the same name in a shared folder", "refused by its sha256"
)
def test_a_changed_file_is_not_unpickled(shared: bool, tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path if shared else None)
    replace_network(Path(packed.path), tmp_path / "trap")
    with pytest.raises(ArtifactError, match=r"not the network that was packed.*Remove the file"):
        travelled(packed)
    assert not (tmp_path / "trap").exists()
    Path(packed.path).unlink()


def test_changed_weights_in_a_shared_folder_are_noticed(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path)
    tensors = load_file(packed.path)
    tensors["0"][0] += 1
    save_file(tensors, packed.path)
    with pytest.raises(ArtifactError, match="another sha256"):
        travelled(packed)


def test_a_file_that_lies_there_already_is_replaced_if_it_is_another(tmp_path: Path) -> None:
    packed = PackedPredictor.of(large(), None, tmp_path)
    before = Path(packed.path).stat().st_mtime_ns
    assert PackedPredictor.of(large(), None, tmp_path) == packed
    assert Path(packed.path).stat().st_mtime_ns == before
    replace_network(Path(packed.path), tmp_path / "trap")
    again = PackedPredictor.of(large(), None, tmp_path)
    x = torch.randn(5, 64)
    torch.testing.assert_close(direct(travelled(again), x), direct(large(), x))
    assert not (tmp_path / "trap").exists()
