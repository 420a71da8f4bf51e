"""Save and load the weights of trained networks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from hullo.lab import networks
from hullo.lab.files import read_tensors, write_tensors
from hullo.lab.networks import DataShape
from hullo.lab.run.loop import Loop
from hullo.lab.spec.run_spec import Spec

MORE = "more."
"""Prefix of the tensors of a chosen state that are not those of the population."""


class ChosenEpochs:
    """The state of each member of a population after the epoch that is best on validation data, of several the first.

    Without validation data it is the last state. `state` is empty before the first epoch.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = dict(state)

    def update(self, training: Loop, **more: Tensor) -> None:
        """Take over the state, and more tensors, of the members that have their best epoch now."""
        members, scores = len(training.population), training.val_scores
        is_best = torch.ones(members, dtype=torch.bool)
        if scores is not None and training.epoch > 1:
            sound = training.curves["finite"].int().cummin(0).values.bool()
            scores = scores.where(sound, -torch.inf)
            is_best = scores[-1] > scores[:-1].amax(0)
        current = training.population.state_dict() | {"epoch": torch.full((members,), training.epoch)}
        current |= {f"{MORE}{name}": tensor for name, tensor in more.items()}
        for name, tensor in current.items():
            before = self.state.get(name)
            if before is None or tensor.shape[:1] != (members,):
                self.state[name] = tensor.clone()
            else:
                chosen = is_best.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
                self.state[name] = torch.where(chosen, tensor, before.to(tensor.device))

    def load_into(self, population: nn.Module) -> list[int]:
        """Load the chosen states, and return the epochs of the members."""
        weights = (name for name in self.state if name != "epoch" and not name.startswith(MORE))
        population.load_state_dict({name: self.state[name] for name in weights})
        epochs: list[int] = self.state["epoch"].tolist()
        return epochs


def save_weights(
    path: Path, spec: Spec, task: DataShape, network: nn.Module, example: Tensor | None = None, epoch: int | None = None
) -> None:
    """Save the state dict of a network after an epoch, by default the last."""
    metadata = {"spec": str(spec), "task": json.dumps(asdict(task)), "epoch": str(epoch or spec.epochs)}
    if example is not None:
        metadata["example"] = json.dumps([str(example.dtype).removeprefix("torch."), *example.shape])
    write_tensors(path, network.state_dict(), metadata)


def check_savable(network: nn.Module, name: str) -> None:
    """Raise a ValueError if a network has a state that a file of weights cannot hold."""
    for key, value in network.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{key} of {name} is {type(value).__name__}, and a file of weights holds only tensors; return a tensor "
                "from get_extra_state, or train with --no-weights"
            )


def load_network(path: str | os.PathLike[str], network: str | None = None) -> nn.Module:
    """Load a trained network, a plain module in evaluation mode, ready for inference, folding and export.

    Buffers that are not persistent are those of a new network with the seed of the run, as for any state dict.

    Args:
        path: a file that ``hullo train`` wrote to the folder ``weights`` of its output directory.
        network: the source of a network of your own, as in ``my_network.py:Net``. A file of weights never names code to
            run.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from hullo.lab import networks
        >>> from hullo.lab.spec.run_spec import Spec
        >>> spec, task = Spec("lenet5", "cifar10", "affine(identity,relu)"), networks.DataShape(3, 32, 10)
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "lenet5.safetensors")
        ...     save_weights(path, spec, task, networks.build("lenet5", activation=spec.activation))
        ...     load_network(path).act1
        AffineHull(identity=0.5, relu=0.5)
    """
    path = Path(path)
    tensors, metadata = read_tensors(path)
    if "spec" not in metadata:
        raise ValueError(f"{path} holds no trained network; give a file that hullo train wrote to its folder weights")
    try:
        spec, sizes = Spec.parse(metadata["spec"]), asdict(DataShape(**json.loads(metadata["task"])))
        if spec.is_own_network:
            _find_own(spec.network, network)
        dtype, *shape = json.loads(metadata.get("example", '[""]'))
        example = torch.zeros(shape, dtype=getattr(torch, dtype)) if dtype else None
        module = networks.build(spec.network, activation=spec.activation, seed=spec.seed, example=example, **sizes)
        module.load_state_dict({name: tensors[name] for name in module.state_dict()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cannot load the network of {path}: {reason}") from None
    return module.eval()


def _find_own(name: str, source: str | None) -> None:
    """Register the user's network that a file of weights was trained with."""
    if source is None:
        raise ValueError(f'it was trained with {name}; give its source, as in network="my_network.py:Net"')
    own = networks.OwnNetwork.open(source)
    if own.name != name:
        trained, given = (text.rpartition("@") for text in (name, own.name))
        reason = "the file has changed" if trained[0] == given[0] else "give the network that was trained"
        raise ValueError(f"it was trained with {name}, but {source} is {own.name}: {reason}")
    networks.register(own)
