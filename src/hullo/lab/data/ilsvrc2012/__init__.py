"""ILSVRC-2012: 1.3 million color images of a thousand classes (Russakovsky et al., 2015).

The data set does not fit into device memory. It is packed once, from the released tars or folders (`source`), into
files of decoded images (`pack`), which training streams (`stream`) and crops on the device (`augment`).
"""
