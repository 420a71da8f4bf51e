"""Default training recipes of networks, and parsing of schedules and augmentations.

This module contains only names and numbers: specs and records are read without building a network or loading data.
"""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZERS = ("rmsprop", "sgd", "adam", "adamw")
PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("constant", "cosine", "inverse", "step")
STREAMED = ("ilsvrc2012", "imagewoof")
"""The data sets that are streamed from a pack on disk: one that does not fit into memory, and ten of its classes."""
AUGMENTATIONS = dict.fromkeys(("fashion-mnist", "cifar10", "fashion-mnist-sample"), "flip,shift:0.1") | dict.fromkeys(
    STREAMED, "flip,crop"
)
"""The data sets of the laboratory and their default augmentation."""


@dataclass(frozen=True)
class Recipe:
    """The default training settings of a network.

    Args:
        epochs: number of passes over the training samples.
        batch_size: samples per step.
        optimizer: one of `OPTIMIZERS`.
        lr: the learning rate.
        schedule: learning rate schedule; see :func:`parse_schedule`.
        weight_decay: weight decay of weights; biases, normalization layers and coefficients have none.
        bias_lr_scale: the learning rate of biases as a multiple of `lr`.
        drop_last: drop the incomplete last batch of an epoch, other images in each epoch: the gradient of a few images
            is large, and SGD takes a step in proportion.
    """

    epochs: int = 50
    batch_size: int = 32
    optimizer: str = "rmsprop"
    lr: float = 1e-4
    schedule: str = "inverse:1e-06"
    weight_decay: float = 0.0
    bias_lr_scale: float = 1.0
    drop_last: bool = False


RECIPES = {
    "lenet5": Recipe(),
    "kerasnet": Recipe(),
    "resnet56": Recipe(),
    # as in the example of Keras: l2(1e-4) adds 1e-4 * |w|^2 to the loss, 2e-4 * w to the gradient
    "resnet56_he": Recipe(weight_decay=2e-4),
    # as in Caffe's solver, up to 0.1 %: 450,000 updates with 256 images of the complete ILSVRC-2012, a tenth of the
    # learning rate after every 100,000; all batches have the same size
    "alexnet": Recipe(
        90, 256, "sgd", lr=0.01, schedule="step:20", weight_decay=5e-4, bias_lr_scale=2.0, drop_last=True
    ),
}
"""The recipes of the laboratory's networks."""
OWN_RECIPE = Recipe(epochs=20, batch_size=64, optimizer="adam", lr=1e-3, schedule="constant")
"""The recipe of a user's own network."""


def parse_schedule(text: str) -> tuple[str, float]:
    """Parse a schedule into its kind and its number.

    ``constant`` keeps the learning rate. ``cosine`` decreases it to 0 at the last update. ``inverse:D`` divides it by
    1 + D * updates, as Keras 2 does. ``step:N`` divides it by 10 after every N epochs.

    >>> parse_schedule("inverse:1e-6"), parse_schedule("cosine")
    (('inverse', 1e-06), ('cosine', 0.0))
    """
    kind, colon, number = text.partition(":")
    try:
        value = float(number) if colon else 0.0
        if kind not in SCHEDULES or bool(colon) != (kind in ("inverse", "step")) or (colon and not 0 < value < 1e300):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"schedule={text!r}: must be constant, cosine, inverse:D with a positive number D, or step:N with a number "
            "N of epochs"
        ) from None
    return kind, value


def spell_schedule(text: str) -> str:
    """Return the canonical form of a schedule."""
    kind, value = parse_schedule(text)
    return f"{kind}:{value:.12g}" if value else kind


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images.

    Args:
        flip: flip images from left to right with probability 1/2.
        shift: shift images at random by up to this fraction of each side.
        crop: crop images at random.
    """

    flip: bool = False
    shift: float = 0.0
    crop: bool = False

    @classmethod
    def parse(cls, text: str) -> Augmentation:
        """Parse an augmentation.

        >>> Augmentation.parse("shift:0.10,flip")
        Augmentation(flip=True, shift=0.1, crop=False)
        >>> str(Augmentation.parse("none"))
        'none'
        """
        parts = [] if text == "none" else text.split(",")
        shifts = [part for part in parts if part.startswith("shift:")]
        try:
            amount = float(shifts[-1].removeprefix("shift:")) if shifts else 0.0
            if not set(parts) <= {"flip", "crop", *shifts} or not 0 <= amount < 1:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"augment={text!r}: must be none, or flip and shift:F with a fraction F of each side between 0 and 1, "
                "as in flip,shift:0.1"
            ) from None
        return cls("flip" in parts, amount, "crop" in parts)

    def __str__(self) -> str:
        shift = [f"shift:{self.shift:g}"] if self.shift else []
        return ",".join(["flip"] * self.flip + shift + ["crop"] * self.crop) or "none"
