"""The user's own data sets: folders of images, or arrays in a file."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hullo._compat import is_out_of_memory
from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import DataError

EXPECTED = (
    "a data set is a folder with train/CLASS/* and test/CLASS/* images, or a file .npz or .safetensors with the arrays "
    "x_train, y_train, x_test and y_test"
)
MAX_CLASSES = 10**6
"""More are a mistake in the labels, and listing them would exhaust the memory."""


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
    if image_size is not None and image_size < 1:
        raise ValueError(f"--image-size {image_size}: must be an integer of at least 1")
    evaluations = [name for name in ("test", "val") if (folder / name).is_dir()]
    if not (folder / "train").is_dir() or not evaluations:
        raise DataError(f"{folder} has no folder {'train' if evaluations else 'test'}; {EXPECTED}")
    classes = tuple(child.name for child in _class_folders(folder / "train"))
    if len(evaluations) > 1 and not {child.name for child in _class_folders(folder / "test")}.intersection(classes):
        what = f"{folder / 'test'} has none of the classes of {folder / 'train'} and is not used"
        warnings.warn(f"{what}; the test accuracy is that of {folder / 'val'}", stacklevel=3)
        evaluations = ["val"]
    files = {split: _list_images(folder / split, classes) for split in ("train", *evaluations)}
    mode = "L" if all(_is_gray(path) for path, _ in itertools.chain(*files.values())) else "RGB"
    first, parts = files["train"][0][0], []
    try:
        if image_size is None:
            size = _decode(first, mode, None).shape
        else:
            size = torch.Size([3 if mode == "RGB" else 1, image_size, image_size])
        for items in files.values():
            images = torch.empty(len(items), *size, dtype=torch.uint8)
            for i, (path, _) in enumerate(items):
                decoded = _decode(path, mode, image_size)
                if decoded.shape != size:
                    raise DataError(f"images differ in size: {first} and {path}; give a size, as in --image-size 64")
                images[i] = decoded
            parts += [images, torch.tensor([label for _, label in items])]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DataError(f"the images of {folder} do not fit into memory; choose a smaller --image-size") from error
    places = [str(folder / split) for split in files]
    _check_classes(classes, parts[1::2], places, "add images, or remove the empty folder")
    return parts, classes


def _check_classes(classes: Sequence[str], labels: Sequence[Tensor], places: Sequence[str], remedy: str) -> None:
    """Refuse a single class and classes without training samples; warn of those without samples for evaluation."""
    if len(classes) < 2:
        raise DataError(f"{places[0]} has one class, {classes[0]!r}; at least two are required")
    present = [set(part.tolist()) for part in labels]
    train, *evaluations = ([name for i, name in enumerate(classes) if i not in part] for part in present)
    if train:
        raise DataError(f"{places[0]}: no samples of class {_list_names(train)}; {remedy}")
    for place, absent in zip(places[1:], evaluations, strict=True):
        if absent:
            text = f"{place}: no samples of class {_list_names(absent)}; the accuracy is that of the other classes"
            warnings.warn(text, stacklevel=4)


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders of classes, without hidden ones such as .ipynb_checkpoints."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _list_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return the paths of the images in a folder with their labels."""
    known = Image.registered_extensions()
    extensions, images = {suffix for suffix in known if known[suffix] in Image.OPEN}, []
    for path in folder.iterdir():
        if path.suffix.lower() in extensions and not path.name.startswith(".") and not path.is_dir():
            raise DataError(f"{path} is beside the folders of classes; move it into one of them, or remove it")
    for child in _class_folders(folder):
        if child.name not in classes:
            raise DataError(f"{child}: class {child.name!r} has no training images; classes: {_list_names(classes)}")
        for path in sorted(_walk(child)):
            if path.suffix.lower() not in extensions:
                raise DataError(f"{path} is not an image: its suffix is {path.suffix!r}; remove it, or rename it")
            images.append((path, classes.index(child.name)))
    if not images:
        raise DataError(f"{folder} contains no images; {EXPECTED}")
    return images


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files under the folder of a class, also in linked folders, but no hidden ones."""
    for root, folders, files in os.walk(folder, onerror=_refuse_unreadable, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in files if not name.startswith("."))


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}; make it readable, or remove it") from error


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image; an error that its content causes in the block becomes a DataError."""
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from None


def _is_gray(path: Path) -> bool:
    with _open_image(path) as image:
        if image.mode[0] in "IF":
            raise ValueError("it has more than 8 bits per pixel; convert it to 8 bits, or store arrays in a file .npz")
        return image.mode in ("L", "1")


def _decode(path: Path, mode: str, size: int | None) -> Tensor:
    """Return an image, upright, as uint8 of shape (channels, height, width)."""
    with _open_image(path) as opened:
        opened.load()  # which turns TIFF files
        pixels = ImageOps.exif_transpose(opened).convert(mode)
    if size is not None:
        scale = size / min(pixels.size)
        width, height = (max(size, round(side * scale)) for side in pixels.size)
        left, top = (width - size) // 2, (height - size) // 2
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(pixels).reshape(pixels.height, pixels.width, -1)).permute(2, 0, 1)


def _read_arrays(path: Path) -> tuple[list[Tensor], tuple[str, ...]]:
    """Read the four arrays of a file."""
    try:
        arrays: Mapping[str, Any] = load_file(path) if path.suffix == ".safetensors" else _load_npz(path)
    except (OSError, EOFError, ValueError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    splits = ("train", "test", "val") if {"x_val", "y_val"} & arrays.keys() else ("train", "test")
    names = [f"{kind}_{split}" for split in splits for kind in "xy"]
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path} has no array {missing[0]}; it has {_list_names(sorted(arrays)) or 'none'}; {EXPECTED}")
    parts = [part for split in splits for part in _read_split(arrays, split, path)]
    train, labels = parts[:2]
    for name, samples in zip(names[2::2], parts[2::2], strict=True):
        if train.shape[1:] != samples.shape[1:] or train.dtype != samples.dtype:
            kinds = [f"{part.dtype} of shape {tuple(part.shape)}" for part in (train, samples)]
            raise DataError(f"{path}: x_train and {name} differ: {kinds[0]} and {kinds[1]}")
    count, remedy = int(labels.max()) + 1, "number the classes 0, 1, 2, ... without gaps"
    if count > MAX_CLASSES:
        raise DataError(
            f"{path}: y_train has label {count - 1}, and at most {MAX_CLASSES:,} classes are possible; {remedy}"
        )
    for name, others in zip(names[3::2], parts[3::2], strict=True):
        if (last := int(others.max())) >= count:
            raise DataError(
                f"{path}: {name} has label {last}, but y_train only 0 to {count - 1}; every class needs both"
            )
    classes = tuple(map(str, range(count)))
    _check_classes(classes, parts[1::2], [f"{path}: {name}" for name in names[1::2]], remedy)
    return parts, classes


def _read_split(arrays: Mapping[str, Any], split: str, path: Path) -> tuple[Tensor, Tensor]:
    """Return the samples and labels of one part of a data set."""
    samples = _as_samples(_as_tensor(arrays[f"x_{split}"], f"{path}: x_{split}"), f"{path}: x_{split}")
    labels = _as_tensor(arrays[f"y_{split}"], f"{path}: y_{split}")
    labels = labels.flatten() if labels.shape[1:] == (1,) else labels
    if labels.is_floating_point() or labels.is_complex() or labels.dim() != 1 or len(labels) != len(samples):
        raise DataError(
            f"{path}: y_{split} must hold integers of shape ({len(samples)},), one per sample; got "
            f"{labels.dtype} of shape {tuple(labels.shape)}; for other targets, write a loop with hullo.population"
        )
    if not labels.numel() or (least := int(labels.long().min())) < 0:
        raise DataError(f"{path}: y_{split} must hold labels from 0; got {least if labels.numel() else 'none'}")
    return samples, labels.long()


def _load_npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array; save all four with numpy.savez")
        return {name: file[name] for name in file.files}


def _as_tensor(array: Any, name: str) -> Tensor:
    """Return an array of numbers with a dimension for the samples as a tensor."""
    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError):
        raise DataError(f"{name} must hold numbers in the byte order of this machine; got {array.dtype}") from None
    if not tensor.dim():
        raise DataError(f"{name} must have a dimension for the samples; got a single number")
    return tensor


def _as_samples(samples: Tensor, name: str) -> Tensor:
    """Return images as uint8 of shape (count, channels, height, width), features as float32, tokens as int64."""
    if samples.dim() < 2 or samples.is_complex() or 0 in samples.shape[1:]:
        shape = f"{samples.dtype} of shape {tuple(samples.shape)}"
        raise DataError(f"{name} must have the shape (count, ...), with numbers in every sample; got {shape}")
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
        raise DataError(f"{name} contains values that are not finite in float32; remove these samples, or fill them in")
    return features


def _is_channels_last(first: int, second: int, third: int) -> bool:
    """Return whether images of this shape have their channels last: the two equal sizes are those of the image."""
    if second == third:
        return False
    return first == second > third or first > 4 >= third


def _list_names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")
