# SPDX-License-Identifier: Apache-2.0
"""Whether strided arrays share an element, or one's own do: exact, fast for usual layouts."""

from __future__ import annotations

from collections.abc import Sequence


def shares_memory(
    pointer_a: int,
    axes_a: Sequence[tuple[int, int]],
    pointer_b: int,
    axes_b: Sequence[tuple[int, int]],
    *,
    size_a: int,
    size_b: int,
) -> bool:
    """Whether a byte belongs to an element of both.

    Parameters
    ----------
    pointer_a, pointer_b : int
        Addresses of the first elements.
    axes_a, axes_b : sequence of (extent, stride in bytes)
        Strides must not be negative.
    size_a, size_b : int
        Bytes of an element.

    Notes
    -----
    An element's offset is a sum of n_i·s_i, 0 ≤ n_i < extent. The question is whether
    sum_a + byte_a − sum_b − byte_b = pointer_b − pointer_a has a solution: a bounded linear
    equation, solved from the largest stride down, cutting off by what the smaller ones reach.
    """
    if any(n == 0 for n, _ in axes_a) or any(n == 0 for n, _ in axes_b):
        return False
    ours = [(stride, extent - 1) for extent, stride in (*axes_a, (size_a, 1))]
    theirs = [(stride, extent - 1) for extent, stride in (*axes_b, (size_b, 1))]
    # −s·x with 0 ≤ x ≤ m is s·y − s·m with y = m − x.
    reach = sum(stride * most for stride, most in theirs)
    return _solvable(_merged(ours + theirs), pointer_b - pointer_a + reach)


def overlaps_itself(axes: Sequence[tuple[int, int]]) -> bool:
    """Whether two elements of an array are one in memory.

    Parameters
    ----------
    axes : sequence of (extent, stride in elements)
        A negative stride is as good as a positive one.
    """
    if any(n == 0 for n, _ in axes):
        return False
    steps = sorted((abs(stride), extent - 1) for extent, stride in axes if extent > 1)
    reach = 0
    for stride, most in steps:
        if stride <= reach:
            return _repeats(steps)
        reach += stride * most
    return bool(steps) and steps[0][0] == 0


def _repeats(steps: list[tuple[int, int]]) -> bool:
    """Whether sum d_i·s_i = 0 has a solution with −most_i ≤ d_i ≤ most_i other than zero.

    Some d_i is then at least 1, which may be any of them: x_i = d_i − 1 for that one and
    x_j = d_j + most_j for the others makes it the question that `_solvable` answers.
    """
    for at, (stride, most) in enumerate(steps):
        others = [(s, m) for other, (s, m) in enumerate(steps) if other != at]
        terms = _merged([(stride, most - 1), *((s, 2 * m) for s, m in others)])
        if _solvable(terms, sum(s * m for s, m in others) - stride):
            return True
    return False


def _merged(terms: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Equal strides added up, largest first."""
    reach: dict[int, int] = {}
    for stride, most in terms:
        if stride and most:
            reach[stride] = reach.get(stride, 0) + most
    return sorted(reach.items(), reverse=True)


def _solvable(terms: list[tuple[int, int]], target: int) -> bool:
    """Whether sum x_i·s_i = target with 0 ≤ x_i ≤ most_i."""
    rest = [0]
    for stride, most in reversed(terms):
        rest.append(rest[-1] + stride * most)
    rest.reverse()  # rest[i]: the most that terms i, i + 1, … reach
    seen: set[tuple[int, int]] = set()
    pending = [(0, target)]
    while pending:
        index, left = pending.pop()
        if left < 0 or left > rest[index] or (index, left) in seen:
            continue
        if index == len(terms):
            return True
        seen.add((index, left))
        stride, most = terms[index]
        first = max(0, -(-(left - rest[index + 1]) // stride))
        last = min(most, left // stride)
        pending.extend((index + 1, left - stride * x) for x in range(first, last + 1))
    return False
