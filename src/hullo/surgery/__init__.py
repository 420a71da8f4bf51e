"""Hulls in existing models: put in, trained, listed, taken out.

`replace_activations` turns the activations of a model into hulls, `restore` those of a checkpoint, `parameter_groups`
trains them, `summary` lists them, `fold` makes them constant again. :mod:`~hullo.surgery.recognise` tells what function
something is, :mod:`~hullo.surgery.rewrite` reads and writes the code of forwards, and :mod:`~hullo.surgery.survey`
finds the activations of a model.
"""

from hullo.surgery.fold import fold
from hullo.surgery.gates import fuse_gates
from hullo.surgery.learned import load_hulls, save_hulls
from hullo.surgery.parameters import coefficient_dict, coefficient_parameters, parameter_groups
from hullo.surgery.plot import plot
from hullo.surgery.replace import replace_activations
from hullo.surgery.restore import restore
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
