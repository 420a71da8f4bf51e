"""Names for people: titles of experiments, labels of the settings that set one apart, and names of layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.sources import longest_of_columns
from hullo.lab.spec.activation import PRELU, ActivationSpec
from hullo.lab.spec.paper import Column

NETWORKS = {
    "lenet5": "LeNet-5",
    "kerasnet": "KerasNet",
    "resnet56": "ResNet-56",
    "resnet56_he": "ResNet-56 (He)",
    "alexnet": "AlexNet",
}
DATA = {
    "fashion-mnist": "Fashion-MNIST",
    "fashion-mnist-sample": "a sample of Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "ilsvrc2012": "ILSVRC-2012",
    "imagewoof": "Imagewoof",
}
WIDTHS = {
    "lenet5": ((20, 50), (500,)),
    "kerasnet": ((32, 32, 64, 64), (512,)),
    "alexnet": ((96, 256, 384, 384, 256), (4096, 4096)),
}
"""Channels of convolutions and units of linear layers that an activation follows."""
BLOCKS = (16,) * 9 + (32,) * 9 + (64,) * 9
"""Channels of the blocks of ResNet-56."""


def title(column: Column) -> str:
    """Return a column's name: ``KerasNet on CIFAR-10``.

    The user's own networks and data sets are named as in their files, without the hash.

    >>> title(Column("kerasnet", "cifar10")), title(Column("my_network:Net@1f2e3d4c", "images@1f2e3d4c"))
    ('KerasNet on CIFAR-10', 'Net on images')
    """
    network = NETWORKS.get(column.network, column.network.rpartition(":")[2].partition("@")[0])
    return f"{network} on {DATA.get(column.data, column.data.partition('@')[0])}"


def titles(columns: Collection[Column]) -> dict[Column, str]:
    """Return a title per column; columns of the same title keep their hashes."""
    known = [title(column) for column in columns]
    return {
        c: name if known.count(name) == 1 else f"{c.network} on {c.data}"
        for c, name in zip(columns, known, strict=True)
    }


def main_experiments(experiments: Sequence[Experiment]) -> dict[Column, Experiment]:
    """Return the experiment that represents each column; the others are studies.

    It is the one with the most runs among the longest with enough seeds; of several, the one with the fewest
    non-default settings. Runs on a part of a data set represent a column only if there is nothing else.
    """
    records = [record for experiment in experiments for record in experiment.records]
    standing = {(record.spec.column, record.spec.epochs) for record in longest_of_columns(records)}
    long = [e for e in experiments if (e.setting.column, e.setting.epochs) in standing]
    ranked = sorted(long, key=lambda e: (not e.records[0].images, len(e.records), -len(e.unusual)))
    return {e.setting.column: e for e in ranked}


def label(experiment: Experiment) -> str:
    """Return the title of an experiment's column, and the settings that its name has to set it apart from others."""
    _, *words = experiment.name.split()
    names = [word.partition("=")[0] for word in words]
    return ", ".join(
        [title(experiment.setting.column), *(setting_label(n, experiment.setting.conditions[n]) for n in names)]
    )


def setting_labels(experiment: Experiment, other: Experiment) -> list[str]:
    """Return the settings of an experiment that differ from those of another, as short texts."""
    own, shared = experiment.setting.conditions, other.setting.conditions
    part = [f"{count:,} training images" for count in experiment.records[0].images[:1]]
    differing = [setting_label(name, value) for name, value in own.items() if value != shared.get(name)]
    return part + differing + [f"no {name}" for name in shared if name not in own]


def setting_label(name: str, value: object) -> str:
    """Return a setting as a short text.

    >>> setting_label("val_size", 2500), setting_label("lr", 1e-4)
    ('2,500 held out', 'lr 0.0001')
    """
    text = f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    match name:
        case "epochs":
            return f"{text} epoch{'s' * (value != 1)}"
        case "val_size":
            return f"{text if value else 'none'} held out"
        case "coefficient_lr_scale":
            return f"coefficient lr \N{MULTIPLICATION SIGN} {text}"
        case _:
            return f"{name.replace('_', ' ')} {text}"


def activation_label(row: str) -> str:
    """Return an activation for people: a network that keeps its activations is the original.

    >>> activation_label("own"), activation_label("own:my_hull"), activation_label("relu")
    ('original', 'my_hull', 'relu')
    """
    return "original" if row == "own" else row.removeprefix("own:")


def is_hull(row: str) -> bool:
    """Return whether an activation is written as a hull; PReLU is not."""
    return ActivationSpec.parse(row).learns and row != str(PRELU)


def kind_and_bases(row: str) -> tuple[str, str]:
    """Split a hull into its kind and what is in its parentheses; of another activation, both are its name.

    >>> kind_and_bases("affine(identity,relu,init=relu)"), kind_and_bases("prelu")
    (('affine', 'identity,relu,init=relu'), ('prelu', 'prelu'))
    """
    kind, _, inside = row.partition("(")
    return (kind, inside.removesuffix(")")) if is_hull(row) else (row, row)


def layer_names(network: str, count: int, modules: Sequence[str] = ()) -> list[str]:
    """Return names for the layers of the activations of a network, from the input to the output.

    Layers of a user's network have the names of its modules, if records have these.

    >>> layer_names("kerasnet", 5)[1], layer_names("kerasnet", 5)[4], layer_names("Net", 2)[1]
    ('conv 2, 32 channels', 'linear 1, 512 units', 'layer 2')
    >>> layer_names("Net", 2, ["act", "head.relu_1"])
    ['layer 1 (act)', 'layer 2 (head.relu_1)']
    """
    if modules:
        return [f"layer {i} ({name})" for i, name in enumerate(modules, 1)]
    convolutions, linear = WIDTHS.get(network, ((), ()))
    names = [f"conv {i}, {width} channels" for i, width in enumerate(convolutions, 1)]
    names += [f"linear {i}, {width} units" for i, width in enumerate(linear, 1)]
    if network.startswith("resnet56"):
        inside = [f"block {i}, conv {j}, {width} channels" for i, width in enumerate(BLOCKS, 1) for j in (1, 2)]
        names = ["conv 1, 16 channels", *inside]
    return names if len(names) == count else [f"layer {i}" for i in range(1, count + 1)]
