"""Sums of products of a function's derivatives and tensors, whose derivatives are sums of that form again.

    sum over terms of F^(n)(z) t_i t_j ...

So the gradients of an activation, their gradients and so on are all computed by one kind of kernel, from z.
"""

from __future__ import annotations

from collections.abc import Sequence

PLAIN = -1
"""In the place of an order: the term has no derivative of F as a factor."""

Z = -1
"""In the place of a tensor's number: z."""

Term = tuple[int, tuple[int, ...]]
"""The order n of the derivative, and the numbers of the tensors that it is multiplied with, each at most once."""
Sum = tuple[Term, ...]


def highest_order(sums: Sequence[Sum]) -> int:
    """Return the highest order of a derivative in some sums."""
    return max((order for terms in sums for order, _ in terms), default=PLAIN)


def contract(sums: Sequence[Sum], gradients: Sequence[int | None]) -> Sum:
    """Return the inner product of some sums and their gradients, the tensors of the given numbers; None is zero."""
    return tuple(
        (order, (*factors, number))
        for terms, number in zip(sums, gradients, strict=True)
        if number is not None
        for order, factors in terms
    )


def with_function(terms: Sum) -> Sum:
    """Return the terms of a sum that have F or a derivative of it as a factor."""
    return tuple(term for term in terms if term[0] != PLAIN)


def derive(terms: Sum, tensor: int) -> Sum:
    """Return the derivative of a sum with respect to a tensor, or to z."""
    if tensor == Z:
        return tuple((order + 1, factors) for order, factors in with_function(terms))
    return tuple(
        (order, tuple(number for number in factors if number != tensor))
        for order, factors in terms
        if tensor in factors
    )


def as_tensor(terms: Sum) -> int | None:
    """Return the number of the tensor that a sum is, if it is one."""
    match terms:
        case ((order, (number,)),) if order == PLAIN:
            return number
    return None
