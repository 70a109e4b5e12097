# SPDX-License-Identifier: Apache-2.0
"""Launch arguments as text, for the command line: arrays from files or made up, and scalars.

q.npy                 the array of a file         data.npz:key   one array of an archive
zeros:f32:4x128       also ones, nan, random      i32:5 f32:0.5  a scalar, passed by value
hex:00ff12            a structure, passed by value
tma:@0;box=64x128;swizzle=128B                    a tensor map over the array of argument 0
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ArgumentError
from ..tma import TensorMapSpec

DTYPES: dict[str, np.dtype] = {
    **{f"{letter}{bits}": np.dtype(f"{name}{bits}")
       for letter, name in (("i", "int"), ("s", "int"), ("u", "uint"), ("b", "uint"))
       for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
_FILLS = ("zeros", "ones", "nan", "random")
_MAPPED = {"float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16",
           "uint8": "u8", "int8": "u8", "uint16": "u16", "int16": "u16", "int32": "s32",
           "uint32": "u32", "int64": "s64", "uint64": "u64", "float8_e4m3fn": "u8",
           "float8_e5m2": "u8"}  # fmt: skip


def parse_arguments(texts: Sequence[str], *, seed: int = 0) -> list[Any]:
    """What `Module.launch` takes for each text; `random:` arrays come from `seed` and position."""
    found: list[Any] = []
    for number, text in enumerate(texts):
        if text.startswith("tma:"):
            found.append(_tensor_map(text, found, seed + number))
        else:
            found.append(_plain(text, seed + number))
    return found


def _plain(text: str, seed: int) -> Any:
    head, _, rest = text.partition(":")
    if head in _FILLS:
        return _made_up(head, rest, text, seed)
    if head in DTYPES:
        return _scalar(DTYPES[head], rest, text)
    if head == "hex":
        try:
            return bytes.fromhex(rest)
        except ValueError:
            raise ArgumentError(f"argument {text!r}: hex digits are required") from None
    return _from_file(text)


def _made_up(fill: str, rest: str, text: str, seed: int) -> np.ndarray:
    name, _, extents = rest.partition(":")
    if name not in DTYPES:
        raise ArgumentError(f"argument {text!r}: {name!r} is none of {', '.join(DTYPES)}")
    shape = _extents(extents, text)
    dtype = DTYPES[name]
    whole = dtype.kind in "iu"
    if fill == "nan" and whole:
        raise ArgumentError(f"argument {text!r}: {name} has no NaN")
    if fill != "random":
        value = {"zeros": 0, "ones": 1, "nan": np.nan}[fill]
        return np.full(shape, value, np.float64).astype(dtype)
    rng = np.random.default_rng(seed)
    if whole:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def _extents(text: str, whole: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(extent) for extent in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ArgumentError(f"argument {whole!r}: extents such as 4x128 are required")
    return shape


def _scalar(dtype: np.dtype, value: str, text: str) -> np.generic:
    try:
        if dtype.kind not in "iu":
            return np.array([float(value)]).astype(dtype)[0]
        number, info = int(value, 0), np.iinfo(dtype)
    except ValueError:
        raise ArgumentError(f"argument {text!r}: {value!r} is no number") from None
    if not info.min <= number <= info.max:
        raise ArgumentError(f"argument {text!r}: {number} does not fit {dtype}")
    return np.array([number], dtype)[0]


def _from_file(text: str) -> np.ndarray:
    name, _, key = text.partition(":")
    path = Path(name)
    if path.suffix not in (".npy", ".npz"):
        raise ArgumentError(
            f"argument {text!r}: neither a .npy or .npz file, nor one of {', '.join(_FILLS)}, "
            f"hex, tma, {', '.join(DTYPES)}"
        )
    if not path.is_file():
        raise ArgumentError(f"argument {text!r}: there is no file {name}")
    try:
        with path.open("rb") as file:
            loaded = np.load(file)
            if isinstance(loaded, np.ndarray):
                return loaded
            if key in loaded.files:
                return np.array(loaded[key])
            held = ", ".join(loaded.files)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ArgumentError(f"argument {text!r}: {name} cannot be read ({error})") from None
    raise ArgumentError(f"argument {text!r}: {name} holds {held}; say {name}:KEY")


def _tensor_map(text: str, before: list[Any], seed: int) -> tuple[TensorMapSpec, np.ndarray]:
    source, *options = text[4:].split(";")
    if source.startswith("@"):
        number = int(source[1:]) if source[1:].isdigit() else len(before)
        named = before[number] if number < len(before) else None
        array = named[1] if isinstance(named, tuple) else named
    else:
        array = _plain(source, seed)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"argument {text!r}: {source!r} is no array, and no earlier one")
    if array.dtype.name not in _MAPPED or array.strides[-1:] != (array.itemsize,):
        raise ArgumentError(f"argument {text!r}: arrays of {array.dtype} cannot be mapped so")
    values: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name in ("box", "element_strides"):
            values[name] = _extents(value, text)
        elif name in ("swizzle", "oob_fill", "interleave", "l2_promotion", "dtype"):
            values[name] = value
        else:
            raise ArgumentError(f"argument {text!r}: there is no option {name!r}")
    if "box" not in values:
        raise ArgumentError(f"argument {text!r}: ;box=… is required, innermost extent first")
    spec = TensorMapSpec(
        dims=tuple(reversed(array.shape)),
        strides=tuple(reversed(array.strides[:-1])),
        **({"dtype": _MAPPED[array.dtype.name]} | values),
    )
    return spec, array


def parse_dimension(text: str, name: str) -> tuple[int, int, int]:
    """'4', '4,2' or '4x2x1' as three extents."""
    try:
        numbers = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers, default=0) < 1:
        raise ArgumentError(f"{name}: one to three positive numbers are required, got {text!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
