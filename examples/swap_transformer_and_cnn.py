"""Swap the activations of a small transformer and a small CNN for hulls, train, and draw what they learned.

    python examples/swap_transformer_and_cnn.py curves.png

Both networks are plain PyTorch without hullo. The data are generated: sequences whose label is the most frequent
symbol, and gratings whose label is their direction.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo

Batch = tuple[Tensor, Tensor]


class Transformer(nn.Module):
    def __init__(self, symbols: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class CNN(nn.Module):
    def __init__(self, directions: int = 4, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, directions)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = torch.tanh(self.second(x))
        return self.head(x.mean((2, 3)))


def sequences(count: int) -> Batch:
    x = torch.randint(0, 4, (count, 15))
    return x, F.one_hot(x, 4).sum(1).argmax(1)


def gratings(count: int) -> Batch:
    label = torch.randint(0, 4, (count,))
    angle, phase = label * torch.pi / 4, 6.3 * torch.rand(count)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    wave = rows * angle.sin()[:, None, None] + columns * angle.cos()[:, None, None] + phase[:, None, None]
    return (wave.sin() + 0.3 * torch.randn(count, 12, 12)).unsqueeze(1), label


def train(model: nn.Module, sample: Callable[[int], Batch], steps: int) -> float:
    """Train, with ten times the learning rate for coefficients, and return the accuracy on new data."""
    optimizer = torch.optim.Adam(hullo.parameter_groups(model, lr=3e-3, coefficient_lr_scale=10))
    for _ in range(steps):
        x, label = sample(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), label).backward()
        optimizer.step()
    x, label = sample(1000)
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == label).double().mean().item()


def draw(models: dict[str, nn.Module], path: Path) -> None:
    """Draw every hull's function, one panel per model."""
    figure, panels = plt.subplots(1, len(models), figsize=(5 * len(models), 4), squeeze=False)
    x = torch.linspace(-4, 4, 400)
    for panel, (title, model) in zip(panels[0], models.items(), strict=True):
        for name, hull in hullo.summary(model).hulls.items():
            panel.plot(x, hull(x).detach(), label=f"{name}, was {hull.replaced}")
        panel.set(title=title, xlabel="x")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="where to save the learned curves, as .png, .svg or .pdf")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {"transformer": Transformer(), "CNN": CNN()}
    for (title, model), sample in zip(models.items(), (sequences, gratings), strict=True):
        hullo.replace_activations(model, example_inputs=sample(8)[0])
        accuracy = train(model, sample, arguments.steps)
        print(f"{title}: {accuracy:.1%} accuracy on new data\n{hullo.summary(model)}\n")
    draw(models, arguments.path)


if __name__ == "__main__":
    main()
