# SPDX-License-Identifier: Apache-2.0
"""Formats the slow way: integers and fractions alone, to compare the fast ones with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

INFINITE, NAN = math.inf, math.nan
Value = Fraction | float  # a float only for infinities, NaN and negative zero


@dataclass(frozen=True)
class Binary:
    """Widths of the fields; `finite`: no infinities, NaN is all ones."""

    exponent: int
    mantissa: int
    finite: bool = False

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def last_finite(self) -> int:
        return self.sign - 2 if self.finite else self.infinity - 1

    def value(self, code: int) -> Value:
        negative, size = bool(code & self.sign), code & (self.sign - 1)
        if size > self.last_finite:
            if not self.finite and size == self.infinity:
                return -INFINITE if negative else INFINITE
            return NAN
        field, fraction = divmod(size, 1 << self.mantissa)
        whole = fraction if field == 0 else fraction + (1 << self.mantissa)
        power = max(field, 1) - self.bias - self.mantissa
        found = Fraction(whole) * Fraction(2) ** power
        if negative:
            return -found if found else -0.0
        return found

    def round(self, x: Fraction, mode: str, *, negative_zero: bool = False) -> int:
        """The code of a fraction. Positive codes are in the order of their values."""
        if x == 0:
            return self.sign if negative_zero else 0
        size, sign = abs(x), self.sign if x < 0 else 0
        low, high = 0, self.last_finite
        while low < high:  # the largest code not above the size
            middle = (low + high + 1) // 2
            if self.value(middle) <= size:
                low = middle
            else:
                high = middle - 1
        below = self.value(low)
        if below == size:
            return sign | low
        away = {"rz": False, "rm": x < 0, "rp": x > 0}.get(mode)
        if away is None:
            above = self._above(low)
            twice = 2 * size - below - above
            away = twice > 0 or (twice == 0 and (mode == "rna" or low % 2 == 1))
        return sign | (low + away)

    def _above(self, code: int) -> Fraction:
        """The next value, as if exponents had no upper end."""
        power = max(code >> self.mantissa, 1) - self.bias - self.mantissa
        return self.value(code) + Fraction(2) ** power


E4M3, E5M2 = Binary(4, 3, finite=True), Binary(5, 2)
HALF, BF16, SINGLE, DOUBLE = Binary(5, 10), Binary(8, 7), Binary(8, 23), Binary(11, 52)
