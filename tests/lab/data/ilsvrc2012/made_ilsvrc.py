"""Make a tiny ILSVRC-2012: three classes, twelve training images and six val images."""

import io
import random
import struct
import tarfile
import zlib

from PIL import Image

TRAIN = {"n03000001": 4, "n01000002": 3, "n02000003": 5}  # in the devkit's order: 1, 2, 3
WNIDS = sorted(TRAIN)
TRUTH = [3, 1, 2, 2, 1, 3]
LAYOUTS = ("tars", "class tars", "flat", "sorted")


def element(kind, data):
    """Return a data element of a MATLAB level 5 file; short ones lie within their tags."""
    if 0 < len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind, count, *parts, name=b""):
    head = (6, struct.pack("<II", kind, 0)), (5, struct.pack("<ii", 1, count)), (1, name)
    return element(14, b"".join(element(*part) for part in head) + b"".join(parts))


def text(value):
    return matrix(4, len(value), element(4, value.encode("utf-16-le")))


def number(value):
    return matrix(6, 1, element(4, struct.pack("<H", value)))


def as_mat(rows, *, compressed=True):
    """Return a MATLAB file with one array of structs of texts and numbers."""
    fields = b"".join(key.encode().ljust(32, b"\0") for key in rows[0])
    values = [text(value) if isinstance(value, str) else number(value) for row in rows for value in row.values()]
    array = matrix(2, len(rows), element(5, struct.pack("<i", 32)), element(1, fields), *values, name=b"synsets")
    if compressed:
        array = (lambda data: struct.pack("<II", 15, len(data)) + data)(zlib.compress(array))
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + array


def synset(number, wnid, words, children, num_images):
    return {
        "ILSVRC2012_ID": number,
        "WNID": wnid,
        "words": words,
        "num_children": children,
        "num_train_images": num_images,
    }


def devkit_files():
    rows = [synset(place, wnid, f"thing {wnid[-1]}", 0, n) for place, (wnid, n) in enumerate(TRAIN.items(), 1)]
    rows.append(synset(4, "n00000004", "entity", 3, 0))
    return {
        "data/meta.mat": as_mat(rows),
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
    """Write the data set into a folder: as tars, as tars of classes, with val flat, with val sorted into classes."""
    split = split or make_images()
    class_tars = {f"{wnid}.tar": as_tar(files) for wnid, files in split["train"].items()}
    train = {f"train/{wnid}/{name}": data for wnid, files in split["train"].items() for name, data in files.items()}
    flat = {name: data for files in split["val"].values() for name, data in files.items()}
    by_class = {f"val/{wnid}/{name}": data for wnid, files in split["val"].items() for name, data in files.items()}
    if layout == "tars":
        devkit = {f"ILSVRC2012_devkit_t12/{name}": data for name, data in devkit_files().items()}
        files = {
            "ILSVRC2012_img_train.tar": as_tar(class_tars),
            "ILSVRC2012_img_val.tar": as_tar(flat),
            "ILSVRC2012_devkit_t12.tar.gz": as_tar(devkit, "w:gz"),
        }
    else:
        files = {f"devkit/{name}": data for name, data in devkit_files().items()}
        files |= {f"train/{name}": data for name, data in class_tars.items()} if layout == "class tars" else train
        files |= by_class if layout == "sorted" else {f"val/{name}": data for name, data in flat.items()}
    write(folder, files)
    return folder
