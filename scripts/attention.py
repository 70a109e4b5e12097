#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention on one problem, by shapes or from a file, checked against float64.

    python scripts/attention.py --device emulator --arch sm_90a --seqlen-q 200 --causal
    python scripts/attention.py --input qkv.npz --device cuda --out result.npz

A file (.npz, .safetensors, or a .npy of shape (3, …)) holds q, k and v in the given layout.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def main(argv: list[str] | None = None) -> int:
    from cufmha.errors import CufmhaError

    arguments = parse(argv)
    try:
        q, k, v = load(arguments) if arguments.input else draw(arguments)
        return report(arguments, q, k, v)
    except CufmhaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"--out: {error.strerror}: {error.filename}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"--device {arguments.device}: needs {error.name}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "emulator"), default="emulator")
    add("--arch", default="sm_100a", help="chip to emulate: sm_90a, sm_100a or sm_103a")
    add("--input", type=Path, help=".npz, .npy or .safetensors with q, k, v, instead of shapes")
    add("--batch", type=int, default=1)
    add("--heads-q", type=int, default=2)
    add("--heads-kv", type=int, help="as many as heads-q if left out")
    add("--seqlen-q", type=int, default=256)
    add("--seqlen-k", type=int, help="as seqlen-q if left out")
    add("--head-dim", type=int, default=128)
    add("--head-dim-v", type=int, help="as head-dim if left out")
    add("--dtype", choices=("bf16", "f16"), default="bf16")
    add("--causal", nargs="?", const="bottom_right", choices=("bottom_right", "top_left"))
    add("--softmax-scale", type=float, help="1/sqrt(head_dim) if left out")
    add("--num-splits", type=int, help="parts of the keys; chosen by the shape if left out")
    add("--layout", choices=("bshd", "bhsd"), default="bshd")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="write out and lse to this .npz")
    return parser.parse_args(argv)


def draw(arguments: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """Random q, k, v of the shapes asked for, in the layout asked for."""
    from cufmha.errors import ArgumentError
    from cufmha.testing import make_qkv

    for name in ("batch", "heads_q", "seqlen_q", "head_dim", "seed"):
        if getattr(arguments, name) < 0:
            raise ArgumentError(f"{name}: must not be negative, got {getattr(arguments, name)}")
    arrays = make_qkv(
        batch=arguments.batch,
        heads_q=arguments.heads_q,
        heads_kv=arguments.heads_kv,
        seqlen_q=arguments.seqlen_q,
        seqlen_k=arguments.seqlen_k,
        head_dim=arguments.head_dim,
        head_dim_v=arguments.head_dim_v,
        dtype=arguments.dtype,
        seed=arguments.seed,
    )
    return tuple(turn(x, arguments.layout) for x in arrays)


def load(arguments: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """q, k, v from a file; anything unreadable is one sentence."""
    from cufmha.errors import ArgumentError

    path = arguments.input
    if not path.is_file():
        raise ArgumentError(f"--input: no such file: {path}")
    try:
        named = read(path)
    except CufmhaFileError as error:
        raise ArgumentError(f"--input: {path}: {error}") from None
    missing = [name for name in "qkv" if name not in named]
    if missing:
        raise ArgumentError(
            f"--input: {path} must hold q, k and v; {', '.join(missing)} not among "
            f"{', '.join(sorted(named)) or 'nothing'}"
        )
    return tuple(as_bfloat16(named[name]) for name in "qkv")


class CufmhaFileError(Exception):
    """A file that is not what its name says."""


def read(path: Path) -> dict[str, np.ndarray]:
    import zipfile

    import numpy as np

    try:
        if path.suffix == ".safetensors":
            return read_safetensors(path.read_bytes())
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if loaded.ndim == 0 or len(loaded) != 3:
                raise CufmhaFileError(f"a .npy must stack q, k, v on axis 0, got {loaded.shape}")
            return dict(zip("qkv", loaded, strict=True))
        return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise CufmhaFileError(f"damaged or of another format ({error})") from None


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Header length (8 bytes, little endian), JSON of dtypes, shapes and offsets, then data."""
    import json

    import numpy as np

    from cufmha.testing import numpy_dtype

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        raise CufmhaFileError("the header ends past the file")
    header = json.loads(data[8 : 8 + length])
    dtypes = {"BF16": numpy_dtype("bf16"), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
    arrays = {}
    for name in set("qkv") & set(header):
        entry = header[name]
        if entry["dtype"] not in dtypes:
            raise CufmhaFileError(f"{name}: dtype must be BF16 or F16, got {entry['dtype']}")
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[start:end], dtypes[entry["dtype"]]).reshape(
            entry["shape"]
        )
    return arrays


def as_bfloat16(array: np.ndarray) -> np.ndarray:
    """NumPy's files store bfloat16 as opaque 2-byte elements ("V2"); give them their dtype back."""
    from cufmha.testing import numpy_dtype

    return array.view(numpy_dtype("bf16")) if array.dtype.str[1:] == "V2" else array


def turn(array: np.ndarray, layout: str) -> np.ndarray:
    """Between "bhsd" and the layout, either way: a swap of axes 1 and 2."""
    return array if layout == "bhsd" else array.swapaxes(1, 2)


def report(arguments: argparse.Namespace, q: Any, k: Any, v: Any) -> int:
    """Runs the kernel, compares, prints, and returns the exit status."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    import cufmha
    from cufmha import reference, testing

    console = Console()
    causal = {None: False, "bottom_right": True, "top_left": "top_left"}[arguments.causal]
    options = {"causal": causal, "softmax_scale": arguments.softmax_scale}
    device = {"arch": arguments.arch} if arguments.device == "emulator" else {}
    with cufmha.use_device(arguments.device, **device), console.status("running the kernel"):
        put, get = (to_card, from_card) if arguments.device == "cuda" else (same, same)
        operands = [put(x) for x in (q, k, v)]
        spec = cufmha.AttentionSpec.of(*operands, causal=causal, layout=arguments.layout)
        shape = cufmha.ProblemShape.of(*operands, layout=arguments.layout)
        plan = cufmha.plan(spec, shape, num_splits=arguments.num_splits)
        start = time.perf_counter()
        out, lse = cufmha.attention(
            *operands, layout=arguments.layout, num_splits=arguments.num_splits, return_lse=True,
            **options,
        )  # fmt: skip
        out, lse = get(out), get(lse)
        seconds = time.perf_counter() - start
    with console.status("computing the reference in float64"):
        inputs = [turn(x, arguments.layout) for x in (q, k, v)]
        exact, exact_lse = reference.attention(*inputs, **options)
        unfused = reference.unfused(*inputs, **options)
    got = turn(np.asarray(out), arguments.layout)
    table = Table(title="attention forward", show_header=False)
    rows = {
        "kernel": str(plan.variant),
        "parts of the keys": str(plan.num_splits),
        "device": arguments.device if arguments.device == "cuda" else f"emulator {arguments.arch}",
        "q, k, v": f"{q.shape}, {k.shape}, {v.shape} {q.dtype} {arguments.layout}",
        "mask": arguments.causal or "none",
        "time, host included": f"{seconds:.3f} s",
        "largest error of out": f"{largest(got, exact):.3g}",
        "  of an unfused 16-bit computation": f"{largest(unfused, exact):.3g}",
        "largest error of lse": f"{largest(np.asarray(lse), exact_lse):.3g}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    if arguments.out:
        np.savez(arguments.out, out=np.asarray(out), lse=np.asarray(lse))
        console.print(f"wrote {arguments.out}")
    try:
        testing.assert_attention_close(got, lse, *inputs, **options)
    except AssertionError as error:
        console.print(f"[bold red]outside the accuracy rule:[/] {error}")
        return 1
    console.print("[green]within the accuracy rule[/]: error at most twice the unfused one + 1e-4")
    return 0


def largest(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a − b|; equal infinities count as no error."""
    import numpy as np

    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0, np.abs(a - b))
    return float(difference.max(initial=0))


def same(array: Any) -> Any:
    return array


def to_card(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def from_card(array: Any) -> np.ndarray:
    return array.get()


if __name__ == "__main__":
    sys.exit(main())
