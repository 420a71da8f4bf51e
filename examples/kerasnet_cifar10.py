"""Train KerasNet with learned activations on CIFAR-10: the paper's experiment in one file of plain PyTorch.

    python examples/kerasnet_cifar10.py cifar-10-batches-bin --hull affine --bases identity relu tanh --epochs 50

The folder holds the five `data_batch_*.bin` files and `test_batch.bin` of the binary version of CIFAR-10. Network,
augmentation and optimizer follow Manessi and Rozza, "Learning Combinations of Activation Functions" (ICPR 2018), and
the Keras example that it builds on. Five thousand training images are held out; the epoch that is best on them is
reported on the test images. This trains one network at a time; `hullo reproduce kerasnet/cifar10` trains dozens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo

# ---------------------------------------------------------------------------------------------------------------- data


def load_cifar10(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, test images and labels. Images are bytes of shape (N, 3, 32, 32)."""

    def read(name: str) -> tuple[Tensor, Tensor]:
        records = torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()

    images, labels = zip(*(read(f"data_batch_{number}.bin") for number in range(1, 6)), strict=True)
    return torch.cat(images), torch.cat(labels), *read("test_batch.bin")


def augment(images: Tensor, shift: int = 3) -> Tensor:
    """Flip and shift each image at random, by up to `shift` pixels (10 % of a side); repeat the pixels at the edges."""
    count, _, height, width = images.shape
    down, right = torch.randint(-shift, shift + 1, (2, count, 1), device=images.device)
    rows = (torch.arange(height, device=images.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right).clamp(0, width - 1)
    flip = torch.rand(count, 1, device=images.device) < 0.5
    columns = torch.where(flip, width - 1 - columns, columns)
    each = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


# ------------------------------------------------------------------------------------------------------------- network


class KerasNet(nn.Module):
    """Four convolutions and two linear layers, each but the last followed by an activation of its own.

    A hull in one layer is f(x) = c_1 f_1(x) + ... + c_N f_N(x), where the coefficients c sum to one and are learned
    with the weights. `activation` makes one for every layer, so no two layers share coefficients.
    """

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), activation(),
            nn.Conv2d(32, 32, 3), activation(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Conv2d(32, 64, 3, padding=1), activation(),
            nn.Conv2d(64, 64, 3), activation(), nn.MaxPool2d(2), nn.Dropout(0.25),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 6 * 6, 512), activation(), nn.Dropout(0.5), nn.Linear(512, 10)
        )
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):  # Keras's defaults
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images / 255))
        return logits


# ------------------------------------------------------------------------------------------------------------ training


def train_epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler,
    images: Tensor, labels: Tensor, batch_size: int,
) -> float:  # fmt: skip
    """Train on all images once, in random order; return the mean loss."""
    network.train()
    total = torch.zeros((), device=images.device)
    for batch in torch.randperm(len(images), device=images.device).split(batch_size):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(augment(images[batch])), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        total += len(batch) * loss.detach()
    return total.item() / len(images)


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of images that the network classifies correctly."""
    network.eval()
    pairs = zip(images.split(1000), labels.split(1000), strict=True)
    correct = sum((network(batch).argmax(1) == targets).sum().item() for batch, targets in pairs)
    return 100 * correct / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds data_batch_1.bin to data_batch_5.bin and test_batch.bin")
    parser.add_argument("--hull", choices=["affine", "convex"], default="affine")
    parser.add_argument("--bases", nargs="+", default=["identity", "relu", "tanh"], help="one base: a fixed activation")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--val-size", type=int, default=5000, help="training images that are held out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    train_images, train_labels, test_images, test_labels = (
        tensor.to(options.device) for tensor in load_cifar10(options.folder)
    )
    held_out, kept = torch.randperm(len(train_images), device=options.device).tensor_split([options.val_size])

    hull = {"affine": hullo.AffineHull, "convex": hullo.ConvexHull}[options.hull]
    network = KerasNet(lambda: hull(*options.bases)).to(options.device)
    # RMSprop as in Keras: rho = .9, epsilon = 1e-7, and a learning rate of 1e-4 / (1 + 1e-6 * updates)
    optimizer = torch.optim.RMSprop(hullo.parameter_groups(network, lr=1e-4), alpha=0.9, eps=1e-7)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda updates: 1 / (1 + 1e-6 * updates))

    chosen = (-1.0, 0.0, 0)  # accuracy on held-out images, on test images, epoch
    for epoch in range(1, options.epochs + 1):
        images, labels = train_images[kept], train_labels[kept]
        loss = train_epoch(network, optimizer, schedule, images, labels, options.batch_size)
        val = accuracy(network, train_images[held_out], train_labels[held_out])
        test = accuracy(network, test_images, test_labels)
        print(f"epoch {epoch}: training loss {loss:.4f}, held-out {val:.2f} %, test {test:.2f} %", flush=True)
        if val > chosen[0]:
            chosen = val, test, epoch
    print(f"chosen on held-out images: epoch {chosen[2]}, test accuracy {chosen[1]:.2f} %")
    print(hullo.summary(network))


if __name__ == "__main__":
    main()
