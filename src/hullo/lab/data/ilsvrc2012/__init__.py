"""ILSVRC-2012: 1.3 million color images of a thousand classes (Russakovsky et al., 2015).

The data set does not fit into device memory. It is packed once (`packing`), then streamed (`stream`). Images are
decoded while they are packed; training reads only the pack.

    source    the released files, as tars or folders   decoding  JPEG to 256 x 256 pixels
    devkit    classes, and labels of the val images    shards    files of many decoded images
    packed    random access to a finished pack         augment   crops and flips on the device
"""

from hullo.lab.data.ilsvrc2012.augment import CROP, center_crops, crop, draw_crops
from hullo.lab.data.ilsvrc2012.packed import Pack, PackedImages
from hullo.lab.data.ilsvrc2012.state import NAME, Home
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
