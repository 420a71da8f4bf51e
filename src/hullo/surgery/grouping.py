"""Decide which calls of an activation share a hull.

Calls that both run in one forward pass get one hull each. Calls on different branches of a decision share one hull:
training one branch then also trains the other, as for training and evaluation mode, or before and after a model is
re-parametrized. If it is unclear which calls of two branches correspond, all of them share one hull.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Any

from hullo.surgery.rewrite.branches import MODE, Key, exclusive
from hullo.surgery.rewrite.entry_points import ENTRY
from hullo.surgery.rewrite.findings import Call, Skipped

Group = list[Call]

_DIFFERENT = "training and evaluation call different functions here"
_UNTRAINED = "only evaluation calls it, so it would not be trained"


def group_calls(calls: Sequence[Call], merge_idle: bool = False) -> list[Group]:
    """Return the calls of one activation in groups that share a hull, in the order of the code.

    A group that consists of idle calls has no counterpart among the calls that run in the model's configuration.

    Args:
        calls: the calls.
        merge_idle: whether idle calls must join others, because all of them call the same attribute.
    """
    groups: list[Group] = [[call] for call in calls]
    _join_equal(groups)
    for key in _decisions(calls):
        sides = _sides(groups, key)
        if len(sides) > 1:
            _join_sides(groups, list(sides.values()), merge_idle or key == ENTRY)
        for branch in list(_sides(groups, key)):
            on_branch = _sides(groups, key).get(branch, [])  # computed again, since groups may have been joined
            ambiguous = [group for group in groups if _is_ambiguous(group, key, branch)]
            if on_branch and ambiguous:
                _join(groups, [*on_branch, *ambiguous])
    _join_exclusive(groups)
    return groups


def _sides(groups: Iterable[Group], key: Key) -> dict[Any, list[Group]]:
    """Return the groups that are on a single side of a decision, by side."""
    sides: dict[Any, list[Group]] = defaultdict(list)
    for group in groups:
        if len(branches := {call.path[key] for call in group if key in call.path}) == 1:
            sides[branches.pop()].append(group)
    return sides


def _is_ambiguous(group: Group, key: Key, branch: Any) -> bool:
    """Return whether a group has several non-exclusive calls on another side: it is unclear which one corresponds."""
    paths = [call.path for call in group if call.path.get(key, branch) != branch]
    return any(not exclusive(a, b) for n, a in enumerate(paths) for b in paths[n + 1 :])


def _branch(group: Sequence[Call | Skipped], key: Key) -> Any:
    """Return the branch of a decision that all (non-idle) calls of a group are on; None if there is none."""
    calls = [call for call in group if not call.idle] or group
    branches = {call.path.get(key) for call in calls}
    return branches.pop() if len(branches) == 1 else None


def _join_equal(groups: list[Group]) -> None:
    """Join calls on exclusive branches with the same input value."""
    by_value: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        by_value[group[0].number].append(group)
    for number, equal in by_value.items():
        paths = [group[0].path for group in equal]
        if number and all(exclusive(a, b) for n, a in enumerate(paths) for b in paths[n + 1 :]):
            _join(groups, equal)


def _join_exclusive(groups: list[Group]) -> None:
    """Join groups whose calls all exclude each other."""
    for group in [group for group in groups if not _is_idle(group)]:
        for other in groups[: next(n for n, item in enumerate(groups) if item is group)]:
            if not _is_idle(other) and all(exclusive(a.path, b.path) for a in group for b in other):
                _join(groups, [other, group])
                break


def _decisions(calls: Iterable[Call]) -> list[Key]:
    """Return the decisions on the paths of calls: those in the code, innermost first, then mode, then entry point."""
    depths: dict[Key, int] = {}
    for call in calls:
        for depth, key in enumerate(call.path):
            depths[key] = max(depth, depths.get(key, 0))
    kinds = {"at": 0, "test": 1, MODE[0]: 2, ENTRY[0]: 3}
    return sorted(depths, key=lambda key: (kinds[key[0]], -depths[key]))


def _join_sides(groups: list[Group], sides: list[list[Group]], merge_idle: bool) -> None:
    """Join the groups on the sides of a decision: one to one if that is clear, otherwise all of them.

    Sides that do not run in the model's configuration are joined in the order of the code; if their numbers of calls
    differ, only with `merge_idle`.
    """
    if all(len(side) == 1 for side in sides):
        _join(groups, [side[0] for side in sides])
    elif all(any(not _is_idle(group) for group in side) for side in sides):
        _join(groups, [group for side in sides for group in side])
    elif all(len(side) == len(sides[0]) for side in sides):
        for row in zip(*sides, strict=True):
            _join(groups, list(row))
    elif merge_idle:
        _join(groups, [group for side in sides for group in side])


def _is_idle(group: Group) -> bool:
    return all(call.idle for call in group)


def _join(groups: list[Group], parts: list[Group]) -> None:
    first, *rest = sorted(parts, key=lambda part: next(n for n, group in enumerate(groups) if group is part))
    for part in rest:
        first += part
        groups[:] = [group for group in groups if group is not part]


def conflicts(
    groups: Sequence[Sequence[Call | Skipped]], modes: Iterable[Key], gates: Container[int], weighted: Container[int]
) -> dict[int, str]:
    """Return the groups, by index, that training and evaluation mode would not share, and the reason.

    A hull that only evaluation calls would not be trained; one that only training calls would be missing in evaluation.

    Args:
        groups: the groups of calls of all activations of a module, also of those that are not replaced.
        modes: the decisions that depend on the mode.
        gates: the groups that probably are not activations, such as a sigmoid after the last layer of a model.
        weighted: the groups that call modules with weights, which may differ between modes.
    """
    reasons: dict[int, str] = {}
    for key in {*modes, MODE}:
        sides: dict[Any, list[int]] = {True: [], False: []}
        for n, group in enumerate(groups):
            if not all(call.idle for call in group) and (branch := _branch(group, key)) is not None:
                sides[branch].append(n)
        values = [{call.number for n in side for call in groups[n]} - {0} for side in sides.values()]
        counted = [[n for n in side if n not in gates] for side in sides.values()]
        different = all(counted) and any(n not in weighted for side in counted for n in side)
        if different or values[0] & values[1]:
            reasons |= {n: _DIFFERENT for side in sides.values() for n in side}
        if key == MODE:
            reasons |= {n: _UNTRAINED for n in sides[False] if n not in reasons and n not in weighted}
    return reasons
