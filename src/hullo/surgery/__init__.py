"""Hulls in existing models: put in, trained, listed, taken out.

`replace_activations` turns the activations of a model into hulls, `parameter_groups` trains them, `summary` lists them,
`fold` makes them constant again. :mod:`~hullo.surgery.recognise` tells what function something is,
:mod:`~hullo.surgery.reader` finds the activations that code calls, :mod:`~hullo.surgery.source` writes code anew, and
:mod:`~hullo.surgery.survey` finds all activations of a model.
"""

from hullo.surgery.fold import fold
from hullo.surgery.parameters import coefficient_dict, coefficient_parameters, parameter_groups
from hullo.surgery.replace import replace_activations
from hullo.surgery.summary import Summary, summary
from hullo.surgery.survey import Site

__all__ = [
    "Site",
    "Summary",
    "coefficient_dict",
    "coefficient_parameters",
    "fold",
    "parameter_groups",
    "replace_activations",
    "summary",
]
