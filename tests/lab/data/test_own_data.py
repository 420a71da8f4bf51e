"""Test that users' data sets are read from arrays and from folders of images, and that errors name what is wrong."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_releases import write_images

from hullo.lab.data import DataError, open_data


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class TestArrays:
    LABELS = torch.arange(4) % 2

    def save(self, **arrays: torch.Tensor) -> Path:
        x = torch.zeros(4, 3)
        given = {"x_train": x, "y_train": self.LABELS, "x_test": x, "y_test": self.LABELS} | arrays
        save_file({name: tensor.clone() for name, tensor in given.items()}, "made.safetensors")
        return Path("made.safetensors")

    @pytest.mark.parametrize(
        ("shape", "read"), [((4, 6, 7), (4, 1, 6, 7)), ((4, 6, 7, 3), (4, 3, 6, 7)), ((4, 2, 6, 7), (4, 2, 6, 7))]
    )
    def test_images_of_any_dimension_order_are_read(self, shape: tuple[int, ...], read: tuple[int, ...]) -> None:
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        dataset = open_data(self.save(x_train=images, x_test=images))
        assert dataset.train_images.shape == read
        assert dataset.train_images.sum() == images.sum()

    def test_validation_set_of_its_own(self) -> None:
        dataset = open_data(self.save(x_val=torch.ones(2, 3), y_val=torch.tensor([0, 1])))
        assert {name: len(labels) for name, (_, labels) in dataset.eval_sets.items()} == {"test": 4, "val": 2}
        with pytest.raises(DataError, match="no array y_val"):
            open_data(self.save(x_val=torch.ones(2, 3)))
        with pytest.raises(ValueError, match="val samples differ"):
            open_data(self.save(x_val=torch.ones(2, 4), y_val=torch.tensor([0, 1])))

    def test_name_depends_on_the_content(self) -> None:
        first = open_data(self.save()).name
        assert open_data(self.save()).name == first
        assert open_data(self.save(x_train=torch.ones(4, 3))).name != first
        assert open_data(self.save(y_train=1 - self.LABELS)).name != first

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"y_train": torch.rand(4)}, r"integers; got torch.float32"),
            ({"y_test": torch.zeros(3, dtype=torch.int64)}, r"4 test samples .*\(3,\)"),
            ({"y_train": torch.tensor([-1, 0, 1, 1])}, "y_train has labels -1, 0, 1"),
            ({"y_test": torch.tensor([0, 1, 2, 1])}, "test labels from 0 to 2; must be from 0 to 1"),
            ({"y_test": torch.tensor([0, 1, -2, 1])}, "test labels from -2 to 1"),
            ({"y_train": torch.tensor([0, 1, 1, 4])}, "y_train has labels 0, 1, 4; .*without gaps"),
            ({"y_train": torch.zeros(4, dtype=torch.int64)}, "y_train has labels 0;"),
            ({"x_test": torch.zeros(4, 2)}, r"training and test samples differ.*\(2,\)"),
            ({"x_train": torch.full((4, 3), torch.nan)}, "not finite"),
            ({"x_train": torch.full((4, 3), 1e300, dtype=torch.float64)}, "not finite in float32"),
            ({"x_train": torch.zeros(4)}, r"\(count, \.\.\.\)"),
            ({"x_train": torch.zeros(4, 1, 0, 5, dtype=torch.uint8)}, r"got .* \(4, 1, 0, 5\)"),
        ],
    )
    def test_bad_arrays_are_reported_by_name(self, arrays: dict[str, torch.Tensor], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            open_data(self.save(**arrays))

    def test_files_without_arrays_are_rejected(self) -> None:
        np.savez("whole.npz", x_train=np.zeros((4, 3)))
        Path("torn.npz").write_bytes(Path("whole.npz").read_bytes()[:100])
        Path("torn.safetensors").write_bytes(b"abc")
        Path("text.npz").write_text("x_train = 1")
        np.savez("other.npz", x_train=np.zeros(3))
        np.savez("pickled.npz", x_train=np.array([{}]), allow_pickle=True)
        names, x, y = np.array(["a", "b"]), np.zeros((2, 3)), np.arange(2)
        np.savez("names.npz", x_train=x, y_train=names, x_test=x, y_test=names)
        np.savez("number.npz", x_train=np.float32(1), y_train=y, x_test=x, y_test=y)
        for name, message in (
            ("torn.npz", "cannot be read"),
            ("text.npz", "cannot be read"),
            ("torn.safetensors", "cannot be read"),
            ("other.npz", "no array y_train; it has x_train"),
            ("pickled.npz", "cannot be read"),
            ("names.npz", "numpy"),
            ("number.npz", "shape"),
            ("nowhere.npz", "does not exist"),
        ):
            with pytest.raises(DataError, match=message):
                open_data(name)


class TestFolders:
    @pytest.mark.parametrize("suffix", ["png", "jpg", "tiff"])
    def test_images_are_turned_as_their_exif_data_say(self, suffix: str, tmp_path: Path) -> None:
        pixels = np.zeros((4, 8), np.uint8)
        pixels[:, 4:] = 255
        turned = Image.Exif()
        turned[274] = 6  # by 90 degrees
        for split in ("train", "test"):
            for number, name in enumerate(("cat", "dog")):
                (folder := tmp_path / "images" / split / name).mkdir(parents=True)
                Image.fromarray(pixels).save(folder / f"0.{suffix}", exif=turned, compression="tiff_lzw")
                Image.fromarray(np.ascontiguousarray(pixels.T)).save(folder / f"{1 + number}.png")
        images = open_data(tmp_path / "images").train_images
        assert images.shape == (4, 1, 8, 4)
        assert (images[0].int() - images[1].int()).abs().max() < 3

    def test_transparency_is_ignored(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path)
        Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(folder / "train" / "cat" / "0.png")
        assert open_data(folder).train_images[0, :, 0, 0].tolist() == [10, 20, 30]

    def test_class_without_training_images_is_refused(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path)
        for path in (folder / "train" / "dog").iterdir():
            path.unlink()
        with pytest.raises(DataError, match=r"train: .*class dog"):
            open_data(folder)

    def test_classes_are_folders_and_pixels_unchanged(self, tmp_path: Path) -> None:
        dataset = open_data(write_images(tmp_path))
        assert (dataset.classes, dataset.train_labels.tolist()) == (("cat", "dog"), [0, 0, 1, 1])
        assert dataset.train_images.shape == (4, 1, 8, 8)
        assert dataset.train_images.flatten(1)[:, 0].tolist() == [0, 40, 0, 40]

    def test_val_is_the_validation_set_beside_test(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path)
        (folder / "val" / "dog" / "1.png").unlink()
        assert len(open_data(folder).test_labels) == 3
        shutil.copytree(folder / "train", folder / "test")
        dataset = open_data(folder)
        assert {name: len(labels) for name, (_, labels) in dataset.eval_sets.items()} == {"test": 4, "val": 3}

    def test_linked_folders_are_read_and_hidden_ones_are_not(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "images")
        for name in ("elsewhere", "images/train/cat/.hidden"):
            (tmp_path / name).mkdir()
            Image.new("L", (8, 8), 200).save(tmp_path / name / "more.png")
        (folder / "train" / "cat" / "link").symlink_to(tmp_path / "elsewhere")
        assert open_data(folder).train_labels.tolist() == [0, 0, 0, 1, 1]

    def test_unreadable_folder_is_refused_with_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, scan = write_images(tmp_path), os.scandir
        (folder / "train" / "cat" / "more").mkdir()
        assert open_data(folder).train_labels.tolist() == [0, 0, 1, 1]

        def refuse(path: str) -> object:
            if os.fspath(path).endswith("more"):
                raise PermissionError(13, "Permission denied", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionError, match=r"train/cat/more"):
            open_data(folder)

    @pytest.mark.parametrize("mode", ["I;16", "F"])
    def test_more_than_8_bits_are_refused(self, tmp_path: Path, mode: str) -> None:
        folder = write_images(tmp_path)
        Image.new(mode, (8, 8)).save(folder / "train" / "dog" / "9.tiff")
        with pytest.raises(DataError, match=r"9\.tiff.*more than 8 bits"):
            open_data(folder)

    def test_images_are_resized_and_center_cropped(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path)
        wide = np.zeros((8, 24), np.uint8)
        wide[:, 8:16] = 200
        Image.fromarray(wide).save(folder / "train" / "cat" / "wide.png")
        dataset = open_data(folder, image_size=8)
        assert dataset.train_images[2].unique().tolist() == [200]

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            ("stray text", r"notes\.txt cannot be read as an image"),
            ("torn image", r"torn\.png cannot be read"),
            ("unknown class", "class 'bird' has no training images"),
            ("no val", "no test data"),
            ("empty", "contains no images"),
            ("bomb", r"0\.png cannot be read.*exceeds limit"),
        ],
    )
    def test_error_in_a_folder_names_the_file(
        self, spoil: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write_images(tmp_path)
        if spoil == "stray text":
            (folder / "train" / "cat" / "notes.txt").write_text("a")
        elif spoil == "torn image":
            content = io.BytesIO()
            Image.effect_noise((8, 8), 50).save(content, "png")
            (folder / "train" / "cat" / "torn.png").write_bytes(content.getvalue()[:50])
        elif spoil == "bomb":
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)  # an error from twice as many
        elif spoil == "unknown class":
            (folder / "val" / "bird").mkdir()
        else:
            for path in sorted((folder / "val").rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            if spoil == "no val":
                (folder / "val").rmdir()
        (folder / "train" / ".hidden").write_text("is left alone")
        with pytest.raises(DataError, match=message):
            open_data(folder)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 32, 32), (3, 32, 32)),
        ((32, 32, 3), (3, 32, 32)),
        ((32, 32, 12), (12, 32, 32)),
        ((8, 4, 4), (8, 4, 4)),
        ((8, 8, 16), (8, 8, 16)),
        ((30, 40, 3), (3, 30, 40)),
        ((12, 30, 40), (12, 30, 40)),
    ],
)
def test_channels_are_found(shape: tuple[int, ...], expected: tuple[int, ...], tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).integers(256, size=(4, *shape), dtype=np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    images = open_data(tmp_path / "x.npz").train_images
    assert images.shape[1:] == expected
    assert np.array_equal(images, x if shape == expected else x.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("damage", ["empty", "array", "torn"])
def test_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    path, x, y = tmp_path / "x.npz", np.random.default_rng(0).normal(size=(64, 64)), np.arange(64) % 2
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x, y_test=y)
    content = bytearray(path.read_bytes())
    if damage == "array":
        buffer = io.BytesIO()
        np.save(buffer, x)
        content = bytearray(buffer.getvalue())
    for i in range(200, 4000):
        content[i] ^= 0x5A * (damage == "torn")
    path.write_bytes(b"" if damage == "empty" else content)
    with pytest.raises(DataError, match=r"x\.npz cannot be read"):
        open_data(path)
