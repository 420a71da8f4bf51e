"""Networks and data sets as a user has them in files, and commands that train these."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from hullo.lab.cli import app

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


class Partly(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, num_classes))


made = Partly(2)


class Uncalled(nn.Module):
    def __init__(self, num_classes, activation):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, num_classes), activation())


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

SETTINGS = ("--device", "cpu", "--quiet")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(NETWORK.splitlines(), 1) if text in line)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in (*arguments, *SETTINGS)])
