"""The user's own data sets: folders of images, or arrays in a file."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import DataError

EXPECTED = (
    "give a folder with train/CLASS/* images, and test and val beside train, or a file .npz or .safetensors with the "
    "arrays x_train and y_train, and those of test and val; hullo compare reads CSV files, too"
)
PARTS = ("train", "test", "val")

Parts = dict[str, tuple[Tensor, Tensor]]
"""The samples and targets of "train", and of "test" and "val" where there are any."""


def open_data(path: str | Path, image_size: int | None = None) -> Dataset:
    """Load a user's data set; its name consists of the file's name and a hash of the content.

    A folder holds ``train/CLASS/*`` and ``test/CLASS/*``, or ``val`` in place of ``test``; with both, ``val`` is the
    validation set. A file, ``.npz`` or ``.safetensors``, holds the arrays ``x_train``, ``y_train``, ``x_test`` and
    ``y_test``, and perhaps ``x_val`` and ``y_val``: images as uint8 of shape (count, channels, height, width), (count,
    height, width, channels) or (count, height, width), or any other numbers of shape (count, ...); labels are integers
    from 0.

    Args:
        path: the folder or the file.
        image_size: resize the shorter side of every image in a folder to this many pixels, and crop the center.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> x, y = np.zeros((6, 4), np.float32), np.arange(6) % 3
        >>> with TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/points.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        ...     dataset = open_data(f"{folder}/points.npz")
        >>> dataset.name, dataset.train_images.shape, len(dataset.classes)
        ('points@2f23e7d9', torch.Size([6, 4]), 3)
    """
    path = Path(path)
    parts, classes = read_parts(path, image_size)
    if len(parts) < 2:
        raise DataError(f"{path} has no test data; {EXPECTED}")
    try:
        pairs = [(samples, _as_labels(labels)) for samples, labels in parts.values()]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    present: Tensor = torch.unique(pairs[0][1])
    if len(present) < 2 or not torch.equal(present, torch.arange(len(present))):
        shown = ", ".join(map(str, present[:8].tolist())) or "none"
        raise DataError(f"{path}: y_train has labels {shown}; number two classes or more 0, 1, 2, ... without gaps")
    classes = classes or tuple(map(str, range(len(present))))
    tensors = [tensor for pair in pairs for tensor in pair]
    digest = hashlib.sha256("\n".join(classes).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    resolved = path.resolve()
    stem = re.sub(r"[^\w.-]", "_", resolved.stem if path.is_file() else resolved.name)
    return Dataset(f"{stem or 'data'}@{digest.hexdigest()[:8]}", classes, *tensors)


def read_parts(path: Path, image_size: int | None = None) -> tuple[Parts, tuple[str, ...]]:
    """Return the parts of a data set as they are stored, and the classes of a folder."""
    if path.is_dir():
        return _read_folders(path, image_size)
    if image_size is not None:
        raise ValueError(f"--image-size {image_size} is only for folders of images; got {path}")
    if not path.is_file() or path.suffix not in (".npz", ".safetensors"):
        raise DataError(f"{path} {'is not a data set' if path.exists() else 'does not exist'}; {EXPECTED}")
    return _read_arrays(path), ()


def _read_folders(folder: Path, image_size: int | None) -> tuple[Parts, tuple[str, ...]]:
    """Return the images of ``train/CLASS/*``, and of test and val where there are any, or of ``CLASS/*``."""
    folders = {part: folder / part for part in PARTS if (folder / part).is_dir()}
    if not folders:
        own = class_folders(folder)
        if len(own) > 1 and not any(child.is_dir() for each in own for child in each.iterdir()):
            folders = {"train": folder}
    if "train" not in folders:
        raise DataError(f"{folder} has neither a folder train nor a folder of images for each class; {EXPECTED}")
    if image_size is not None and image_size < 1:
        raise ValueError(f"--image-size {image_size}: must be an integer of at least 1")
    classes = tuple(child.name for child in class_folders(folders["train"]))
    files = [_list_images(folder, classes) for folder in folders.values()]
    if absent := set(range(len(classes))) - {label for _, label in files[0]}:
        raise DataError(f"{folders['train']}: no samples of class {classes[min(absent)]}; add some, or remove it")
    decoded = [[_decode(path, image_size) for path, _ in listed] for listed in files]
    pairs = [pair for part in zip(files, decoded, strict=True) for pair in zip(*part, strict=True)]
    ((first, _), sample), *_ = pairs
    for (path, _), image in pairs:
        if image.shape[1:] != sample.shape[1:]:
            raise DataError(f"images differ in size: {first} and {path}; give a size, as in --image-size 64")
    channels = max(len(image) for _, image in pairs)  # grayscale among color images is repeated
    images = [torch.stack([image.expand(channels, -1, -1) for image in pixels]) for pixels in decoded]
    labels = [torch.tensor([label for _, label in listed]) for listed in files]
    return dict(zip(folders, zip(images, labels, strict=True), strict=True)), classes


def class_folders(folder: Path) -> list[Path]:
    """Return the folders of classes, without hidden ones such as .ipynb_checkpoints."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _list_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return the paths of the images in a folder with their labels."""
    images = []
    for child in class_folders(folder):
        if child.name not in classes:
            raise DataError(f"{child}: class {child.name!r} has no training images; classes: {', '.join(classes[:8])}")
        images += [(path, classes.index(child.name)) for path in sorted(_walk(child))]
    if not images:
        raise DataError(f"{folder} contains no images; {EXPECTED}")
    return images


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files under the folder of a class, also in linked folders, but no hidden ones."""
    for root, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in files if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _decode(path: Path, size: int | None) -> Tensor:
    """Return an image, upright, as uint8 of shape (channels, height, width), with 1 channel or 3."""
    try:
        with Image.open(path) as opened:
            if opened.mode[0] in "IF":
                raise ValueError("it has more than 8 bits per pixel; convert it to 8 bits, or store arrays in .npz")
            mode = "L" if opened.mode in ("L", "1") else "RGB"
            opened.load()  # which turns TIFF files
            pixels = ImageOps.exif_transpose(opened).convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"{path} cannot be read as an image: {reason}; replace it, or remove it") from None
    if size is not None:
        scale = size / min(pixels.size)
        width, height = (max(size, round(side * scale)) for side in pixels.size)
        left, top = (width - size) // 2, (height - size) // 2
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(pixels).reshape(pixels.height, pixels.width, -1)).permute(2, 0, 1)


def _read_arrays(path: Path) -> Parts:
    """Return the arrays ``x_train`` and ``y_train`` of a file, and those of test and val if there are any."""
    arrays = load_arrays(path)
    parts = {part: (f"x_{part}", f"y_{part}") for part in PARTS}
    given = {part: names for part, names in parts.items() if part == "train" or not arrays.keys().isdisjoint(names)}
    if missing := [name for names in given.values() for name in names if name not in arrays]:
        raise DataError(
            f"{path} has no array {missing[0]}; it has {', '.join(sorted(arrays)[:8]) or 'none'}; {EXPECTED}"
        )
    try:
        return {part: (as_samples(arrays[x]), arrays[y]) for part, (x, y) in given.items()}
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def load_arrays(path: Path) -> dict[str, Tensor]:
    """Return the arrays of a file by name."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: torch.as_tensor(file[name]) for name in file.files}
    except (OSError, EOFError, TypeError, ValueError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _as_labels(labels: Tensor) -> Tensor:
    """Return integers as int64 of shape (count,)."""
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers; got {labels.dtype}; for other targets, use hullo compare")
    return (labels.flatten() if labels.shape[1:] == (1,) else labels).long()


def as_samples(samples: Tensor) -> Tensor:
    """Return images as uint8 of shape (count, channels, height, width), features as float32, tokens as int64."""
    if samples.dim() < 2 or samples.is_complex() or 0 in samples.shape[1:]:
        shape = f"{samples.dtype} of shape {tuple(samples.shape)}"
        raise ValueError(f"samples must have the shape (count, ...), with numbers in every sample; got {shape}")
    if samples.dtype == torch.uint8:
        if samples.dim() == 3:
            return samples.unsqueeze(1)
        if samples.dim() == 4 and _is_channels_last(*samples.shape[1:]):
            return samples.permute(0, 3, 1, 2).contiguous()
        return samples if samples.dim() == 4 else samples.float()
    if not samples.is_floating_point():
        return samples.long()
    features = samples.float()
    if not bool(features.isfinite().all()):
        raise ValueError("samples that are not finite in float32; remove them, or fill them in")
    return features


def _is_channels_last(first: int, second: int, third: int) -> bool:
    """Return whether images of this shape have their channels last: the two equal sizes are those of the image."""
    if second == third:
        return False
    return first == second > third or first > 4 >= third
