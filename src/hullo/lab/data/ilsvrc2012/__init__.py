"""ILSVRC-2012: 1.3 million color images of a thousand classes (Russakovsky et al., 2015).

The data set does not fit into device memory. It is packed once, from the released tars or folders (`source`), into
files of decoded images (`decoding`, `pack`), which training streams (`stream`) and crops on the device (`augment`).
"""

from hullo.lab.data.ilsvrc2012.augment import CROP, center_crops, crop, draw_crops
from hullo.lab.data.ilsvrc2012.home import NAME, Home
from hullo.lab.data.ilsvrc2012.pack import Pack, PackedImages
from hullo.lab.data.ilsvrc2012.stream import read_ahead, split_steps, to_device

__all__ = [
    "CROP",
    "NAME",
    "Home",
    "Pack",
    "PackedImages",
    "center_crops",
    "crop",
    "draw_crops",
    "read_ahead",
    "split_steps",
    "to_device",
]
