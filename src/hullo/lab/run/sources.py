"""Networks and data sets as named on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hullo.lab import data, networks
from hullo.lab.spec.paper import Column, parse_column
from hullo.lab.spec.recipes import AUGMENTATIONS


def split_experiment(text: str) -> tuple[str, str]:
    """Split text such as ``lenet5/cifar10`` or ``nets/my_network.py:Net/data/images`` into network and data set.

    >>> split_experiment("nets/my_network.py:Net/../images")
    ('nets/my_network.py:Net', '../images')
    >>> split_experiment("lenet5/./images")
    ('lenet5', './images')
    """
    own = re.fullmatch(r"(.*\.py:\w+)/(.+)", text)
    network, dataset = own.groups() if own else tuple(parse_column(text))
    return network, dataset


@dataclass(frozen=True)
class Source:
    """A network and a data set, each given as a name of the laboratory or as a path.

    Args:
        network: such as ``lenet5`` or ``my_network.py:Net``.
        dataset: such as ``cifar10``, or the path of a folder or a file.
        image_size: the size that images of a folder are resized to.
    """

    network: str
    dataset: str
    image_size: int | None = None

    def open(self) -> Column:
        """Register the user's network and data set in this process, and return their names."""
        network, dataset = self.network, self.dataset
        if self._is_own_network:
            network = networks.register(networks.OwnNetwork.open(network))
        if self._is_own_data:
            dataset = data.register(data.open_data(dataset, self.image_size))
        elif self.image_size is not None:
            raise ValueError(f"--image-size {self.image_size} is only for folders of your own images; got {dataset}")
        return Column(network, dataset)

    def absolute(self) -> Source:
        """Return the same source with absolute paths."""
        network = str(Path(self.network).absolute()) if self._is_own_network else self.network
        dataset = str(Path(self.dataset).absolute()) if self._is_own_data else self.dataset
        return Source(network, dataset, self.image_size)

    @property
    def _is_own_network(self) -> bool:
        return ".py:" in self.network or self.network.endswith(".py")

    @property
    def _is_own_data(self) -> bool:
        """Return whether the data set is a path; names of the laboratory take precedence."""
        path = Path(self.dataset)
        return self.dataset not in ("", *AUGMENTATIONS) and (
            "/" in self.dataset or path.exists() or path.suffix in (".npz", ".safetensors")
        )
