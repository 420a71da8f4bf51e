"""ILSVRC-2012: 1.3 million colour images of things in a thousand classes (Russakovsky et al., 2015).

Too large to be whole on a device: it is packed once (`packing`), then streamed (`stream`). Images are decoded while
they are packed, and only then: training reads nothing but the pack.

    images  what was released, as tars or folders      decoding  JPEG to 256 x 256 pixels
    devkit    the classes and what val images show     shards    many images in one file
    packed    a finished pack, image by image        augment   crops and flips on the device
"""

from hullo.lab.data.ilsvrc2012.augment import CROP, centre_crops, crop, draw_crops
from hullo.lab.data.ilsvrc2012.packed import Pack, PackedImages
from hullo.lab.data.ilsvrc2012.state import NAME, Home
from hullo.lab.data.ilsvrc2012.stream import read_ahead, split_steps, to_device

__all__ = [
    "CROP",
    "NAME",
    "Home",
    "Pack",
    "PackedImages",
    "centre_crops",
    "crop",
    "draw_crops",
    "read_ahead",
    "split_steps",
    "to_device",
]
