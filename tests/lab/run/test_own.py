"""Test users' networks and data sets: training by the command, resuming, loading, and error messages."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F
from tiny_command import Command
from tiny_releases import write_images
from typer.testing import CliRunner, Result

import hullo
from hullo.lab import load_network
from hullo.lab.cli import app
from hullo.lab.data import open_data
from hullo.lab.networks import OwnNetwork
from hullo.lab.spec.records import Records

NETWORK = """
from abc import ABCMeta, abstractmethod

import torch
import torch.nn.functional as F
from torch import nn

from beside import WIDTH


class Modules(nn.Module):
    def __init__(self, num_classes, in_channels=1):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(in_channels, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.GELU()
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, x):
        return self.head(self.act(self.norm(self.conv(x))).mean((2, 3)))


class Functional(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one, self.two = nn.LazyLinear(WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x):
        return self.two(F.relu(self.one(x.flatten(1))))


class Mlp(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(in_channels, WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x):
        return self.two(F.relu(self.one(x)))


class Tokens(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.table, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x):
        return self.head(torch.tanh(self.table(x)).mean(1))


def given(activation, num_classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), activation(4), nn.Flatten(), nn.Linear(4 * 36, num_classes))


def frozen(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)


class Needy(nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()


class Shape(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


class Branch(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        x = x.flatten(1)
        if x.sum() > 0:
            x = -x
        return self.head(x)


class Wide(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(64, num_classes + 1)

    def forward(self, x):
        return self.head(x.flatten(1))


class Abstract(nn.Module, metaclass=ABCMeta):
    @abstractmethod
    def forward(self, x): ...


number = 3
"""
SETTINGS = ("--device", "cpu", "--quiet")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(NETWORK.splitlines(), 1) if text in line)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a file with networks, and data sets of images, features and tokens."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK.replace("nn.LazyLinear(WIDTH)", "nn.Linear(64, WIDTH)"))
    Path("beside.py").write_text("WIDTH = 6\n")
    draw = np.random.default_rng(0)
    labels = np.arange(24) % 3
    for name, x in {
        "images": draw.integers(0, 256, (24, 8, 8), dtype=np.uint8),
        "features": draw.normal(size=(24, 5)),
        "tokens": draw.integers(0, 16, (24, 7)),
    }.items():
        np.savez(f"{name}.npz", x_train=x[:18], y_train=labels[:18], x_test=x[18:], y_test=labels[18:])
    return tmp_path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in (*arguments, *SETTINGS)])


@pytest.mark.filterwarnings("default")
def test_class_without_test_samples_is_reported_in_a_line() -> None:
    np.savez("rare.npz", x_train=np.zeros((3, 5)), y_train=range(3), x_test=np.zeros((2, 5)), y_test=range(2))
    result = invoke("train", "net.py:Mlp", "rare.npz", "--optimizer", "none")
    assert result.stderr.splitlines()[0].startswith("warning: rare.npz: y_test: no samples of class 2;")


@pytest.mark.parametrize(
    ("network", "data", "activation", "learned"),
    [
        ("Modules", "images.npz", "affine(identity,relu)", 1),
        ("Modules", "images.npz", "own", 0),
        ("Functional", "images.npz", "convex(identity,tanh)", 1),
        ("Mlp", "features.npz", "prelu", 1),
        ("Tokens", "tokens.npz", "tanh", 0),
        ("given", "images.npz", "affine(relu,tanh,per=channel)", 1),
    ],
)
def test_network_is_trained_recorded_and_loaded(network: str, data: str, activation: str, learned: int) -> None:
    result = invoke("train", f"net.py:{network}", data, "--activation", activation, "--epochs", 2)
    assert result.exit_code == 0, result.output
    (record,) = Records(Path("runs/records.jsonl")).read()
    assert (record.spec.network.partition("@")[0], record.spec.activation) == (f"net:{network}", activation)
    assert [len(point) for point in record.coefficients] == [learned] * (3 if learned else 0)
    assert len(record.layers) == learned
    (call,) = re.findall(r"hullo\.lab\.(load_network\(.*\))", result.stdout)
    loaded, dataset = eval(call, {"load_network": load_network}), open_data(data)
    samples = dataset.test_images / 255 if dataset.holds_images else dataset.test_images
    accuracy = (loaded(samples).argmax(-1) == dataset.test_labels).double().mean().item()
    assert 100 * accuracy == pytest.approx(record.accuracy, abs=1e-3)
    assert (
        sum(
            isinstance(module, hullo.Hull) and any(p.requires_grad for p in module.parameters())
            for module in loaded.modules()
        )
        == learned
    )


def test_several_activations_and_seeds_form_one_table() -> None:
    chosen = ("--activation", "relu", "--activation", "own", "--activation", "affine(identity,relu)")
    result = invoke("reproduce", "net.py:Functional/images.npz", *chosen, "--seeds", 3, "--epochs", 1, "--weights")
    assert result.exit_code == 0, result.output
    records = Records(Path("runs/records.jsonl")).read()
    assert sorted((r.spec.activation, r.members) for r in records) == sorted(
        [("own", 3)] * 3 + [("relu", 6), ("affine(identity,relu)", 6)] * 3
    )
    assert len(list(Path("runs/weights").iterdir())) == 9
    assert "affine(identity,relu)" in result.stdout
    (call,) = re.findall(r"best network.* with hullo\.lab\.(load_network\(.*\))", result.stdout)
    best = max(records, key=lambda record: record.accuracy).spec.id
    assert best in call
    eval(call, {"load_network": load_network})


def test_the_laboratorys_networks_train_on_a_folder_of_images(place: Path) -> None:
    folder = write_images(place / "animals", (20, 24), "RGB")
    refused = invoke("train", "kerasnet", folder, "--activation", "relu")
    assert refused.exit_code == 1
    assert re.search("differ in size.*--image-size", refused.stderr)
    result = invoke("train", "kerasnet", folder, "--image-size", 16, "--epochs", 1, "--activation", "relu")
    assert result.exit_code == 0, result.output


def test_longer_run_continues_a_shorter_one_bit_for_bit() -> None:
    command = ("train", "net.py:Modules", "images.npz", "--activation", "affine(identity,relu)")
    assert invoke(*command, "--epochs", 2).exit_code == 0
    assert "continuing an earlier run after epoch 2" in invoke(*command, "--epochs", 5).stderr
    assert invoke(*command, "--epochs", 5, "--output", "straight").exit_code == 0
    assert len(list(Path("runs/finished").glob("*.safetensors"))) == 1, "the state of the shorter run is deleted"
    short, extended = Records(Path("runs/records.jsonl")).read()
    (straight,) = Records(Path("straight/records.jsonl")).read()
    for name in ("train_loss", "test_loss", "test_accuracy", "coefficients"):
        assert getattr(extended, name) == getattr(straight, name)
    assert (short.spec.epochs, extended.train_loss[:2]) == (2, short.train_loss)


@pytest.mark.parametrize("options", [("--schedule", "cosine"), ("--no-weights",)])
def test_cosine_run_is_not_extended(options: tuple[str, ...]) -> None:
    command = ("train", "net.py:Mlp", "features.npz", *options)
    assert invoke(*command, "--epochs", 1).exit_code == 0
    assert "continuing" not in invoke(*command, "--epochs", 2).stderr


def test_changed_file_is_another_network() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", 1)
    assert invoke(*command).exit_code == 0
    before = Path("net.py").stat()
    Path("net.py").write_text(Path("net.py").read_text().replace("F.relu(self.one(x))", "F.selu(self.one(x))"))
    os.utime("net.py", (before.st_atime, before.st_mtime))  # a cache of bytecode would not notice
    assert invoke(*command).exit_code == 0
    first, second = Records(Path("runs/records.jsonl")).read()
    assert first.spec.network != second.spec.network
    assert first.train_loss != second.train_loss
    weights = Path("runs/weights") / f"{first.spec.id}.safetensors"
    with pytest.raises(ValueError, match="has changed"):
        load_network(weights, network="net.py:Mlp")
    with pytest.raises(ValueError, match=r"net:Tokens.*give the network"):
        load_network(weights, network="net.py:Tokens")
    with pytest.raises(ValueError, match=r'net:Mlp@.*network="my_network\.py:Net"'):
        load_network(weights)


@pytest.mark.parametrize("changed", ["beside.py", "parts/__init__.py", "parts/deep/one.py", "parts/two.py"])
def test_changed_import_is_another_network(place: Path, changed: str) -> None:
    """Of files beside the network: imported directly, through a package, or relatively; others do not count."""
    files = {
        "net.py": "import torch\nfrom beside import WIDTH\nfrom parts.deep import one\ndef Net(): ...\n",
        "parts/__init__.py": "",
        "parts/deep/__init__.py": "",
        "parts/deep/one.py": "from ..two import x\n",
        "parts/two.py": "x = 1\n",
        "unused.py": "",
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    before = OwnNetwork.open("net.py:Net").name
    (place / "unused.py").write_text("# changed")
    assert OwnNetwork.open("net.py:Net").name == before
    (place / changed).write_text((place / changed).read_text() + "# changed")
    assert OwnNetwork.open("net.py:Net").name != before


def test_killed_run_resumes() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", "40")
    process = Command(*command, "--checkpoint-every", "0", *SETTINGS)
    while process.poll() is None and not list(Path("runs/checkpoints").glob("*.safetensors")):
        time.sleep(0.01)
    process.kill()
    (checkpoint,) = Path("runs/checkpoints").glob("*.safetensors")
    for output in ("runs", "straight"):
        assert invoke(*command, "--output", output).exit_code == 0
    (resumed,), (straight,) = (Records(Path(output, "records.jsonl")).read() for output in ("runs", "straight"))
    assert resumed.train_loss == straight.train_loss
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("net.py:Nothing", "'Nothing'.*Modules, Functional.*given"),
        ("net.py", "needs a class: net.py:Net.*Modules"),
        ("net.py:number", "'number'"),
        ("nowhere.py:Net", "'nowhere.py' is not a file"),
        ("net.py:Needy", "needs width"),
        ("net.py:Shape", rf"net.py, line {line_of('return self.head(x.flatten(1))')}: RuntimeError"),
        ("net.py:Branch", "net.py:.*x.sum"),
        ("net.py:Wide", r"\(2, 4\).*3 classes"),
        ("net.py:frozen", "frozen of net.py has no parameters"),
        ("broken.py:Net", "broken.py, line 2"),
        ("raises.py:Net", "raises.py, line 1: ZeroDivisionError"),
        ("exits.py:Net", "exits.py, line 2: SystemExit: 3"),
        ("imports.py:Net", "broken.py, line 2"),
        ("net.py:Abstract", "Abstract of .*net.py: TypeError"),
    ],
)
def test_error_in_a_network_names_its_line(network: str, message: str) -> None:
    Path("broken.py").write_text("import torch\nclass Net(:\n")
    Path("raises.py").write_text("1 / 0\n")
    Path("exits.py").write_text("import sys\nsys.exit(3)\n")
    Path("imports.py").write_text("import broken\n")
    result = invoke("train", network, "images.npz", "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert not Path("runs/records.jsonl").exists()
    assert re.search(message, line), line


REWRITTEN = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(5, 4), nn.Linear(4, num_classes)

    def forward(self, x):
        x = F.relu(self.one(x))
        CODE
        return self.two(x)
"""


@pytest.mark.parametrize(
    "code",
    ["x = x[torch.randperm(len(x))]", "x = -x if x.sum() > 0 else x", "x = x.view(-1, 7) if self.training else x"],
)
@pytest.mark.parametrize("activation", ["own", "tanh"])
def test_error_names_the_file_also_where_activations_are_replaced(code: str, activation: str) -> None:
    Path("rewritten.py").write_text(f"{REWRITTEN.replace('CODE', code)}# {activation}\n")  # a file of its own
    result = invoke("train", "rewritten.py:Net", "features.npz", "--activation", activation, "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert str(Path("rewritten.py").absolute()) in line
    assert "line 14" in line or "py:14" in line or code in line, line


def test_network_that_cannot_be_trained_is_refused_before_others_are_trained() -> None:
    experiments = ("net.py:Functional/images.npz", "net.py:Branch/images.npz")
    result = invoke("reproduce", *experiments, "--activation", "own", "--epochs", 1)
    assert result.exit_code == 2
    assert re.search("net.py:.*x.sum", result.stderr)
    assert not Path("runs/records.jsonl").exists()


def test_network_with_activation_argument_needs_one_or_a_default() -> None:
    result = invoke("train", "net.py:given", "images.npz")
    assert result.exit_code == 2
    assert "--activation relu" in result.stderr
    Path("net.py").write_text(NETWORK.replace("activation, num_classes", "num_classes, activation=lambda c: nn.SiLU()"))
    assert invoke("train", "net.py:given", "images.npz", "--epochs", 1).exit_code == 0


MORE = """
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layer, self.other = nn.Linear(5, 5), nn.Linear(5, 5)
        self.layers, self.head = nn.Sequential(layer, nn.ReLU(), layer), nn.Linear(5, num_classes)
        self.other.weight = layer.weight

    def forward(self, x):
        return self.head(self.other(self.layers(x)))


class Drawn(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(5, 8), persistent=False)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(torch.sin(x @ self.frequencies))


class Stateful(Drawn):
    def get_extra_state(self):
        return {}

    def set_extra_state(self, state): ...


class Normed(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.norm, self.head = nn.LayerNorm([1, 8, 8]), nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


class Batch(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one, self.norm, self.head = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, num_classes)

    def forward(self, x):
        return self.head(self.norm(self.one(x)))


class Training(Batch):
    how = staticmethod(lambda x: x)

    def forward(self, x):
        y = self.head(self.one(x))
        return self.how(y) if self.training else y


class Pair(Training):
    how = staticmethod(lambda y: (y, y))


class Narrow(Training):
    how = staticmethod(lambda y: y[:, :2])


class Viewed(Training):
    how = staticmethod(lambda y: y.view(-1, 7))


class Ghost(Batch):
    def forward(self, x):
        x = x.view(-1, 6, 5).flatten(0, 1) if self.training else x
        return super().forward(x)


class Lazy(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one, self.head = nn.LazyLinear(4), nn.Linear(4, num_classes)

    def forward(self, x):
        return self.head(self.one(x))


class Branched(Training):
    how = staticmethod(lambda y: -y if y.sum() > 0 else y)
"""


@pytest.mark.parametrize(("network", "seed"), [("Tied", 0), ("Drawn", 3)])
def test_loaded_network_computes_what_was_trained(network: str, seed: int) -> None:
    Path("more.py").write_text(MORE)
    source = f"more.py:{network}"
    result = invoke("train", source, "features.npz", "--seed", seed, "--epochs", 2)
    assert result.exit_code == 0, result.output
    (record,) = Records(Path("runs/records.jsonl")).read()
    (weights,) = Path("runs/weights").iterdir()
    data = open_data("features.npz")
    loss = F.cross_entropy(load_network(weights, network=source)(data.test_images), data.test_labels)
    assert loss.item() == pytest.approx(record.test_loss[-1], rel=1e-4)


def test_state_without_tensors_is_refused_before_training() -> None:
    Path("more.py").write_text(MORE)
    command = ("train", "more.py:Stateful", "features.npz", "--epochs", 1)
    refused = invoke(*command)
    assert refused.exit_code == 2
    assert re.search(r"_extra_state of more:Stateful.*dict.*--no-weights", refused.stderr)
    assert invoke(*command, "--no-weights").exit_code == 0


def test_earlier_run_without_weights_says_so() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", 1)
    assert "weights" not in invoke(*command, "--no-weights").stdout
    assert "without saving its weights" in invoke(*command).stdout


def test_norms_of_images_do_not_decay() -> None:
    Path("more.py").write_text(MORE)
    settings = ("--optimizer", "sgd", "--lr", "1e-9", "--weight-decay", "1e8", "--epochs", 1)
    assert invoke("train", "more.py:Normed", "images.npz", *settings).exit_code == 0
    (weights,) = Path("runs/weights").iterdir()
    loaded = load_network(weights, network="more.py:Normed")
    np.testing.assert_allclose(loaded.norm.weight.detach(), 1.0, atol=1e-6)
    assert loaded.head.weight.abs().max().item() < 0.124  # of at most 1 / sqrt(64), decayed by a tenth per step


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("Pair", "returned tuple.*in training mode"),
        ("Narrow", r"returned shape \(18, 2\).*in training mode"),
        ("Viewed", r"more.py, line \d+: RuntimeError"),
        ("Branched", r"control flow.*more.py"),
    ],
)
def test_error_in_training_mode_is_one_line(network: str, message: str) -> None:
    Path("more.py").write_text(MORE)
    result = invoke("train", f"more.py:{network}", "features.npz", "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert re.search(message, line), line


def test_last_batch_of_one_sample_needs_another_batch_size() -> None:
    Path("more.py").write_text(MORE)
    command = ("train", "more.py:Batch", "features.npz", "--epochs", 1, "--batch-size")
    refused = invoke(*command, 17)
    assert refused.exit_code == 2
    assert re.search("more than 1 value per channel.*18 samples in batches of 17.*another --batch-size", refused.stderr)
    assert invoke(*command, 16).exit_code == 0
    assert invoke("train", "net.py:Mlp", "features.npz", "--epochs", 1, "--batch-size", 17).exit_code == 0


def test_checking_a_network_does_not_change_it() -> None:
    Path("more.py").write_text(MORE)
    assert invoke("train", "more.py:Batch", "features.npz", "--lr", 0, "--epochs", 1, "--batch-size", 18).exit_code == 0
    (weights,) = Path("runs/weights").iterdir()
    assert int(load_network(weights, network="more.py:Batch").norm.num_batches_tracked) == 1


def test_helpers_of_one_name_are_not_mixed_up(place: Path) -> None:
    for folder, width in (("a", 4), ("b", 9)):
        (place / folder).mkdir()
        (place / folder / "helper_of_two.py").write_text(f"WIDTH = {width}\n")
        text = NETWORK.replace("from beside import", "from helper_of_two import")
        (place / folder / "net.py").write_text(text.replace("nn.LazyLinear(WIDTH)", "nn.Linear(64, WIDTH)"))
    result = invoke("reproduce", "a/net.py:Mlp/features.npz", "b/net.py:Mlp/features.npz", "--epochs", 1, "--weights")
    assert result.exit_code == 0, result.output
    for record in Records(Path("runs/records.jsonl")).read():
        weights = Path("runs/weights") / f"{record.spec.id}.safetensors"
        widths = {"a": 4, "b": 9}
        folder = next(name for name in widths if OwnNetwork.open(f"{name}/net.py:Mlp").name == record.spec.network)
        assert load_network(weights, network=f"{folder}/net.py:Mlp").one.out_features == widths[folder]


def test_helper_with_the_name_of_another_module_is_refused(place: Path) -> None:
    (place / "json.py").write_text("")
    (place / "own.py").write_text("import json\ndef Net(): ...\n")
    with pytest.raises(ValueError, match=r"own\.py imports json from .*json\.py.*rename the file"):
        OwnNetwork.open("own.py:Net")


def test_network_is_checked_with_batches_of_the_run() -> None:
    Path("more.py").write_text(MORE)
    command = ("train", "more.py:Ghost", "features.npz", "--epochs", 1, "--batch-size")
    assert invoke(*command, 12).exit_code == 0  # 18 samples: 12 and 6, both multiples of 6
    assert invoke(*command, 15).exit_code == 2


def test_lazy_layers_have_the_weights_of_their_seed() -> None:
    Path("more.py").write_text(MORE)
    for output in ("one", "two"):
        assert invoke("train", "more.py:Lazy", "features.npz", "--epochs", 1, "--output", output).exit_code == 0
    one, two = (Records(Path(output, "records.jsonl")).read()[0] for output in ("one", "two"))
    assert one.train_loss == two.train_loss


def test_changed_helper_of_a_helper_is_imported_anew(place: Path) -> None:
    files = {
        "top.py": "import first_helper, pack_of_helpers.third\nfrom pack_of_helpers import fourth\n"
        "from torch import nn\n"
        "def Net(num_classes=1):\n    return nn.Linear(first_helper.V + pack_of_helpers.third.V + fourth.V, 1)\n",
        "first_helper.py": "from second_helper import V\n",
        "second_helper.py": "V = 1\n",
        "pack_of_helpers/third.py": "V = 10\n",
        "pack_of_helpers/fourth.py": "V = 100\n",
    }
    for folder in ("a", "b"):
        for name, content in files.items():
            (place / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (place / folder / name).write_text(content.replace("= 1", "= 2") if folder == "b" else content)
    widths = [OwnNetwork.open(f"{folder}/top.py:Net").factory()().in_features for folder in ("a", "b")]
    # of another length: Python's cache of bytecode does not see a change of the same length in the same second
    (place / "a" / "second_helper.py").write_text("V = 1000\n")
    (place / "a" / "pack_of_helpers" / "fourth.py").write_text("V = 5000\n")
    widths.append(OwnNetwork.open("a/top.py:Net").factory()().in_features)
    assert widths == [111, 222, 6010]
