"""Rules: how K members compute one node of their graph at once.

A rule replaces an ATen operator. Its arguments are those of the operator, with a :class:`Value` for each tensor, of
which at least one differs between members. Elementwise operators need no rule. Operators without a rule are called by
:func:`torch.vmap`, and so are those whose rule returns NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from hullo.population.sites import ActivationCall

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


@dataclass(frozen=True)
class Context:
    """Hold what a rule needs besides its arguments.

    Args:
        members: number of members.
        seeds, steps: seeds and step counts of the members, for random numbers, (members,).
        number: index of a random operation in the network, from 0.
        first: index of the first sample, if the batch is part of a larger one.
        rows: the coefficients of the calls of each site, as `Activations.rows` returns them.
    """

    members: int
    seeds: Tensor
    steps: Tensor
    number: int = 0
    first: int = 0
    rows: Sequence[Sequence[Tensor]] = ()

    def rows_of(self, act: ActivationCall) -> Tensor:
        """Return the coefficients of an activation that takes one call, or of one that is no site."""
        return self.rows[act.site][0] if act.coefficients is None else act.coefficients


def rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def is_random(target: Any) -> bool:
    """Return whether an operator may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in target.tags


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a node by name, with the defaults of those that are not given."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    names = [argument.name for argument in schema]
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return dict.fromkeys(names) | defaults | dict(zip(names, node.args, strict=False)) | node.kwargs
