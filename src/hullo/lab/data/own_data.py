"""The user's own data sets: folders of images, or arrays in a file."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import DataError

EXPECTED = (
    "a data set is a folder with train/CLASS/* and test/CLASS/* images, or a file .npz or .safetensors with the arrays "
    "x_train, y_train, x_test and y_test"
)


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
    if path.is_dir():
        parts, classes = _read_folder(path, image_size)
    elif image_size is not None:
        raise ValueError(f"--image-size {image_size} is only for folders of images; got {path}")
    elif path.is_file() and path.suffix in (".npz", ".safetensors"):
        parts, classes = _read_arrays(path)
    else:
        raise DataError(f"{path} {'is not a data set' if path.exists() else 'does not exist'}; {EXPECTED}")
    digest = hashlib.sha256("\n".join(classes).encode())
    for part in parts:
        digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
        digest.update(part.contiguous().numpy().data)
    resolved = path.resolve()
    stem = re.sub(r"[^\w.-]", "_", resolved.stem if path.is_file() else resolved.name)
    return Dataset(f"{stem or 'data'}@{digest.hexdigest()[:8]}", classes, *parts)


def _read_folder(folder: Path, image_size: int | None) -> tuple[list[Tensor], tuple[str, ...]]:
    """Read training and evaluation images and their labels from a folder."""
    evaluations = [name for name in ("test", "val") if (folder / name).is_dir()]
    if not (folder / "train").is_dir() or not evaluations:
        raise DataError(f"{folder} has no folder {'test' if (folder / 'train').is_dir() else 'train'}; {EXPECTED}")
    pairs, classes = read_images([folder / split for split in ("train", *evaluations)], image_size)
    return [part for pair in pairs for part in pair], classes


def read_images(
    folders: Sequence[Path], image_size: int | None = None
) -> tuple[list[tuple[Tensor, Tensor]], tuple[str, ...]]:
    """Return the images and labels of each of some folders ``CLASS/*``, and the classes, which are those of the first.

    Args:
        folders: the folders, that of the training images first.
        image_size: as in :func:`open_data`.
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"--image-size {image_size}: must be an integer of at least 1")
    classes = tuple(child.name for child in class_folders(folders[0]))
    files = [_list_images(folder, classes) for folder in folders]
    if absent := set(range(len(classes))) - {label for _, label in files[0]}:
        raise DataError(f"{folders[0]}: no samples of class {classes[min(absent)]}; add some, or remove the folder")
    decoded = [[_decode(path, image_size) for path, _ in listed] for listed in files]
    pairs = [pair for part in zip(files, decoded, strict=True) for pair in zip(*part, strict=True)]
    ((first, _), sample), *_ = pairs
    for (path, _), image in pairs:
        if image.shape[1:] != sample.shape[1:]:
            raise DataError(f"images differ in size: {first} and {path}; give a size, as in --image-size 64")
    channels = max(len(image) for _, image in pairs)  # grayscale among color images is repeated
    images = [torch.stack([image.expand(channels, -1, -1) for image in pixels]) for pixels in decoded]
    labels = [torch.tensor([label for _, label in listed]) for listed in files]
    return [*zip(images, labels, strict=True)], classes


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


def _read_arrays(path: Path) -> tuple[list[Tensor], tuple[str, ...]]:
    """Read samples and labels from the arrays of a file."""
    arrays = load_arrays(path)
    splits = ("train", "test", "val") if {"x_val", "y_val"} & arrays.keys() else ("train", "test")
    names = [f"{kind}_{split}" for split in splits for kind in "xy"]
    if missing := [name for name in names if name not in arrays]:
        raise DataError(
            f"{path} has no array {missing[0]}; it has {', '.join(sorted(arrays)[:8]) or 'none'}; {EXPECTED}"
        )
    try:
        parts = [(as_samples if name[0] == "x" else _as_labels)(arrays[name]) for name in names]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    present: Tensor = torch.unique(parts[1])
    if len(present) < 2 or not torch.equal(present, torch.arange(len(present))):
        shown = ", ".join(map(str, present[:8].tolist())) or "none"
        raise DataError(f"{path}: y_train has labels {shown}; number two classes or more 0, 1, 2, ... without gaps")
    return parts, tuple(map(str, range(len(present))))


def load_arrays(path: Path) -> dict[str, Tensor]:
    """Return the arrays of a file by name."""
    try:
        arrays: Mapping[str, Any] = load_file(path) if path.suffix == ".safetensors" else _load_npz(path)
    except (OSError, EOFError, ValueError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    tensors = {}
    for name, array in arrays.items():
        try:
            tensors[name] = torch.as_tensor(array)
        except TypeError as error:
            raise DataError(f"{path}, {name}: {error}") from None
    return tensors


def _load_npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array; save all four with numpy.savez")
        return {name: file[name] for name in file.files}


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
