# SPDX-License-Identifier: Apache-2.0
"""Whether two strided arrays share an element: exact, and fast for the usual layouts."""

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
