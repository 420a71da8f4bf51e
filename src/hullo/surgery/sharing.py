"""Decide which calls of an activation share one hull.

Calls that one run of the model may both make get a hull each. Calls on different branches of a decision share one, so
that what is learned on one branch holds on the other: in training and in evaluation, before and after a model is
re-parametrized. Where the code does not tell which calls of two branches belong together, all of them share one hull.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Any

from hullo.surgery.rewrite.branches import MODE, Key, exclusive
from hullo.surgery.rewrite.calls import Call, Missed
from hullo.surgery.rewrite.entries import ENTRY

Group = list[Call]

_DIFFERENT = "training and evaluation call different functions here"
_UNTRAINED = "only evaluation calls it, so that nothing would train it"


def share(calls: Sequence[Call], together: bool = False) -> list[Group]:
    """Return the calls of one activation in groups that share a hull, in the order of the code.

    A group of idle calls alone found no partner among the calls that run as the model is set up.

    Args:
        calls: the calls.
        together: whether idle calls cannot be left alone, because all of them call what one module keeps.
    """
    groups: list[Group] = [[call] for call in calls]
    _join_equal(groups)
    for key in _decisions(calls):
        sides = _sides(groups, key)
        if len(sides) > 1:
            _join_sides(groups, list(sides.values()), together or key == ENTRY)
        for branch in list(_sides(groups, key)):
            alone = _sides(groups, key).get(branch, [])  # anew: what another branch had alone may have been joined
            crowded = [group for group in groups if _is_crowded(group, key, branch)]
            if alone and crowded:
                _join(groups, [*alone, *crowded])
    _join_exclusive(groups)
    return groups


def _sides(groups: Iterable[Group], key: Key) -> dict[Any, list[Group]]:
    """Return the groups that are on one side of a decision, by the side."""
    sides: dict[Any, list[Group]] = defaultdict(list)
    for group in groups:
        if len(branches := {call.path[key] for call in group if key in call.path}) == 1:
            sides[branches.pop()].append(group)
    return sides


def _is_crowded(group: Group, key: Key, branch: Any) -> bool:
    """Return whether a group joins several calls of one run on another side: which is whose partner is not known."""
    paths = [call.path for call in group if call.path.get(key, branch) != branch]
    return any(not exclusive(a, b) for n, a in enumerate(paths) for b in paths[n + 1 :])


def _branch(group: Sequence[Call | Missed], key: Key) -> Any:
    """Return the branch of a decision that all calls of a group are on, or all that run; None if there is none."""
    calls = [call for call in group if not call.idle] or group
    branches = {call.path.get(key) for call in calls}
    return branches.pop() if len(branches) == 1 else None


def _join_equal(groups: list[Group]) -> None:
    """Join calls on exclusive branches that are given the same value."""
    by_value: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        by_value[group[0].number].append(group)
    for number, equal in by_value.items():
        paths = [group[0].path for group in equal]
        if number and all(exclusive(a, b) for n, a in enumerate(paths) for b in paths[n + 1 :]):
            _join(groups, equal)


def _join_exclusive(groups: list[Group]) -> None:
    """Join groups of which no run makes two calls, such as what only decisions at odds with each other lead to."""
    for group in [group for group in groups if not _is_idle(group)]:
        for other in groups[: next(n for n, item in enumerate(groups) if item is group)]:
            if not _is_idle(other) and all(exclusive(a.path, b.path) for a in group for b in other):
                _join(groups, [other, group])
                break


def _decisions(calls: Iterable[Call]) -> list[Key]:
    """Return the decisions on the paths of calls: the innermost of the code first, then the mode, then the entries."""
    depths: dict[Key, int] = {}
    for call in calls:
        for depth, key in enumerate(call.path):
            depths[key] = max(depth, depths.get(key, 0))
    kinds = {"at": 0, "test": 1, MODE[0]: 2, ENTRY[0]: 3}
    return sorted(depths, key=lambda key: (kinds[key[0]], -depths[key]))


def _join_sides(groups: list[Group], sides: list[list[Group]], together: bool) -> None:
    """Join the groups on the sides of a decision: one to one where that is clear, else all of them.

    Sides that are off as the model is set up are joined in the order of the code; where their numbers of calls differ,
    they are joined only if all have to be.
    """
    if all(len(side) == 1 for side in sides):
        _join(groups, [side[0] for side in sides])
    elif all(any(not _is_idle(group) for group in side) for side in sides):
        _join(groups, [group for side in sides for group in side])
    elif all(len(side) == len(sides[0]) for side in sides):
        for row in zip(*sides, strict=True):
            _join(groups, list(row))
    elif together:
        _join(groups, [group for side in sides for group in side])


def _is_idle(group: Group) -> bool:
    return all(call.idle for call in group)


def _join(groups: list[Group], parts: list[Group]) -> None:
    first, *rest = sorted(parts, key=lambda part: next(n for n, group in enumerate(groups) if group is part))
    for part in rest:
        first += part
        groups[:] = [group for group in groups if group is not part]


def conflicts(
    groups: Sequence[Sequence[Call | Missed]], modes: Iterable[Key], gates: Container[int], weighted: Container[int]
) -> dict[int, str]:
    """Return the groups that training and evaluation would not share, by their index, and why.

    What evaluation alone calls would never be trained; where training and evaluation call different functions, what
    one learns the other would not have.

    Args:
        groups: the calls that share hulls, of all activations of a module; what is not replaced is one too.
        modes: the decisions that depend on whether the model trains.
        gates: the groups that are probably no activations, such as a sigmoid after a model's last layer.
        weighted: the groups that are modules with weights of their own, of which each mode may have another.
    """
    found: dict[int, str] = {}
    for key in {*modes, MODE}:
        sides: dict[Any, list[int]] = {True: [], False: []}
        for n, group in enumerate(groups):
            if not all(call.idle for call in group) and (branch := _branch(group, key)) is not None:
                sides[branch].append(n)
        values = [{call.number for n in side for call in groups[n]} - {0} for side in sides.values()]
        counted = [[n for n in side if n not in gates] for side in sides.values()]
        different = all(counted) and any(n not in weighted for side in counted for n in side)
        if different or values[0] & values[1]:
            found |= {n: _DIFFERENT for side in sides.values() for n in side}
        if key == MODE:
            found |= {n: _UNTRAINED for n in sides[False] if n not in found and n not in weighted}
    return found
