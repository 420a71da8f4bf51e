"""Put hulls into existing models, train them, list them, save them and fold them.

`replace_activations` turns the activations of a model into hulls, `restore` does so from a checkpoint,
`parameter_groups` prepares an optimizer, `summary` lists the hulls, and `fold` turns them into plain PyTorch modules.

Inside: :mod:`~hullo.surgery.find` finds the sites where activations are, :mod:`~hullo.surgery.recognize` identifies the
function of a module, :mod:`~hullo.surgery.build` makes the hulls, :mod:`~hullo.surgery.swap` puts them in,
:mod:`~hullo.surgery.compare` compares outputs, and :mod:`~hullo.surgery.rewrite` reads and rewrites forward methods.
"""

from hullo.surgery.checkpoint import load_hulls, restore, save_hulls
from hullo.surgery.fold import fold
from hullo.surgery.gates import fuse_gates
from hullo.surgery.parameters import coefficient_dict, coefficient_parameters, parameter_groups
from hullo.surgery.plot import plot
from hullo.surgery.replace import replace_activations
from hullo.surgery.sites import Site
from hullo.surgery.summary import Summary, summary

__all__ = [
    "Site",
    "Summary",
    "coefficient_dict",
    "coefficient_parameters",
    "fold",
    "fuse_gates",
    "load_hulls",
    "parameter_groups",
    "plot",
    "replace_activations",
    "restore",
    "save_hulls",
    "summary",
]
