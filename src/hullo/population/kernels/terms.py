"""Sums of products of a function's derivatives and tensors, whose derivatives are sums of that form again.

    sum over terms of F^(n)(z) t_i t_j ...

So the gradients of an activation, their gradients and so on are all computed by one kind of kernel, from z.
"""

from __future__ import annotations

from collections.abc import Sequence

Term = tuple[int, tuple[int, ...]]
"""The order n of the derivative, and the numbers of the tensors that it is multiplied with, each at most once."""
Sum = tuple[Term, ...]


def highest_order(sums: Sequence[Sum]) -> int:
    """Return the highest order of a derivative in some sums."""
    return max((order for terms in sums for order, _ in terms), default=0)


def contract(sums: Sequence[Sum], gradients: Sequence[int | None]) -> Sum:
    """Return the inner product of some sums and their gradients, the tensors of the given numbers; None is zero."""
    return tuple(
        (order, (*factors, number))
        for terms, number in zip(sums, gradients, strict=True)
        if number is not None
        for order, factors in terms
    )


def derive(terms: Sum, tensor: int | None) -> Sum:
    """Return the derivative of a sum with respect to a tensor; None is z."""
    if tensor is None:
        return tuple((order + 1, factors) for order, factors in terms)
    return tuple(
        (order, tuple(number for number in factors if number != tensor))
        for order, factors in terms
        if tensor in factors
    )
