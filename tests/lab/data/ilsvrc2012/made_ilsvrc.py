"""Make a tiny ILSVRC-2012: three classes, twelve training images and six val images."""

import io
import random
import tarfile

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

TRAIN = {"n03000001": 4, "n01000002": 3, "n02000003": 5}  # in the devkit's order: 1, 2, 3
WNIDS = sorted(TRAIN)
TRUTH = [3, 1, 2, 2, 1, 3]
LAYOUTS = ("tars", "flat", "sorted")


def as_mat(synsets):
    """Return a MATLAB file with an array of structs, as the devkit has it."""
    fields = ("ILSVRC2012_ID", "WNID", "num_children")
    stream = io.BytesIO()
    savemat(stream, {"synsets": np.array(synsets, [(field, object) for field in fields])}, do_compression=True)
    return stream.getvalue()


def write_devkit(folder, files):
    """Write the archive of the devkit from its files by their names in it."""
    content = {f"ILSVRC2012_devkit_t12/{name}": bytes(data) for name, data in files.items()}
    write(folder, {"ILSVRC2012_devkit_t12.tar.gz": as_tar(content, "w:gz")})


def devkit_files():
    synsets = [(place, wnid, 0) for place, wnid in enumerate(TRAIN, 1)]
    return {
        "data/meta.mat": as_mat([*synsets, (4, "n00000004", 3)]),
        "data/ILSVRC2012_validation_ground_truth.txt": "".join(f"{line}\n" for line in TRUTH).encode(),
    }


def encode(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def make_image(name):
    """Return a small image of which no two are alike."""
    draw = random.Random(name)
    image = Image.frombytes("RGB", (4, 3), draw.randbytes(36))
    return encode(image.resize((draw.randrange(20, 60), draw.randrange(20, 60))))


def make_images():
    """Return the encoded images: of each split, of each class, by their names."""
    train = {
        wnid: {name: make_image(name) for name in (f"{wnid}_{7 * k}.JPEG" for k in range(count))}
        for wnid, count in TRAIN.items()
    }
    val = {wnid: {} for wnid in TRAIN}
    for place, number in enumerate(TRUTH, 1):
        name = f"ILSVRC2012_val_{place:08}.JPEG"
        val[list(TRAIN)[number - 1]][name] = make_image(name)
    return {"train": train, "val": val}


def as_tar(contents, mode="w"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def lay_out(folder, layout="flat", split=None):
    """Write the data set into a folder: as tars, with val flat, with val sorted into classes."""
    split = split or make_images()
    class_tars = {f"{wnid}.tar": as_tar(files) for wnid, files in split["train"].items()}
    train = {f"train/{wnid}/{name}": data for wnid, files in split["train"].items() for name, data in files.items()}
    flat = {name: data for files in split["val"].values() for name, data in files.items()}
    by_class = {f"val/{wnid}/{name}": data for wnid, files in split["val"].items() for name, data in files.items()}
    if layout == "tars":
        files = {
            "ILSVRC2012_img_train.tar": as_tar(class_tars),
            "ILSVRC2012_img_val.tar": as_tar(flat),
        }
    else:
        files = train | (by_class if layout == "sorted" else {f"val/{name}": data for name, data in flat.items()})
    write(folder, files)
    write_devkit(folder, devkit_files())
    return folder


def read_images(images, indices):
    """Return the pixels of packed images."""
    out = np.empty((len(indices), 256, 256, 3), np.uint8)
    images.read_into(out, np.array(indices))
    return torch.from_numpy(out)
