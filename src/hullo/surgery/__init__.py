"""Put hulls into existing models, train them, list them, save them and fold them.

`replace_activations` turns the activations of a model into hulls, `restore` does so from a checkpoint,
`parameter_groups` prepares an optimizer, `summary` lists the hulls, and `fold` turns them into plain PyTorch modules.

Inside: :mod:`~hullo.surgery.observe` runs a model and records what it calls, :mod:`~hullo.surgery.sites` groups the
calls, :mod:`~hullo.surgery.build` makes the hulls, :mod:`~hullo.surgery.edit` puts them in, and
:mod:`~hullo.surgery.prove` compares the model with what it was.
"""

from hullo.surgery.checkpoint import load_hulls, restore
from hullo.surgery.fold import fold
from hullo.surgery.parameters import coefficient_parameters, parameter_groups
from hullo.surgery.plot import plot
from hullo.surgery.replace import replace_activations
from hullo.surgery.sites import Site
from hullo.surgery.summary import Summary, summary

__all__ = [
    "Site",
    "Summary",
    "coefficient_parameters",
    "fold",
    "load_hulls",
    "parameter_groups",
    "plot",
    "replace_activations",
    "restore",
    "summary",
]
