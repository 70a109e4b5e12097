#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences, one line for each, checked against float64 by itself.

    python scripts/attention_varlen.py --arch sm_90a --lengths 300,0,5:700,1 --strategy ragged

A length is queries:keys, or one number for both. Rows of no sequence, in front and behind, hold NaN
(with `mask`: 1000), and out and lse hold a mark there that must stay.
"""

from __future__ import annotations

import argparse
import sys
from itertools import accumulate
from typing import Any

import attention

LEAD, TAIL, MARK = 3, 130, 1.5


def main(argv: list[str] | None = None) -> int:
    from cufmha.errors import CufmhaError

    arguments = parse(argv)
    try:
        return report(arguments)
    except CufmhaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"--device {arguments.device}: needs {error.name}", file=sys.stderr)
    return 2


def lengths(text: str) -> list[tuple[int, int]]:
    pairs = [part.partition(":") for part in text.split(",")]
    return [(int(q), int(k or q)) for q, _, k in pairs]


def parse(argv: list[str] | None) -> argparse.Namespace:
    from cufmha.kernels.catalog import STRATEGIES

    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "emulator"), default="emulator")
    add("--arch", default="sm_100a", help="chip to emulate: sm_90a, sm_100a or sm_103a")
    add("--lengths", type=lengths, default="130:200,0,0:7,200:130,1,7:0", metavar="Q[:K],…")
    add("--strategy", choices=STRATEGIES, help="the default one if left out")
    add("--heads-q", type=int, default=2)
    add("--heads-kv", type=int, default=1)
    add("--head-dim", type=int, default=128)
    add("--head-dim-v", type=int, help="as head-dim if left out")
    add("--dtype", choices=("bf16", "f16"), default="bf16")
    add("--causal", action="store_true")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def packed(arguments: argparse.Namespace, ends: tuple[int, int]) -> list[Any]:
    """q, k, v (tokens, heads, head_dim), poisoned in front of the sequences and behind them."""
    import numpy as np

    from cufmha.testing import make_qkv

    rows, keys = (end + TAIL for end in ends)
    drawn = make_qkv(
        heads_q=arguments.heads_q, heads_kv=arguments.heads_kv, seqlen_q=rows, seqlen_k=keys,
        head_dim=arguments.head_dim, head_dim_v=arguments.head_dim_v, dtype=arguments.dtype,
        seed=arguments.seed,
    )  # fmt: skip
    arrays = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in drawn]
    for array, end in zip(arrays, (ends[0], ends[1], ends[1]), strict=True):
        array[:LEAD] = array[end:] = 1000 if arguments.strategy == "mask" else np.nan
    return arrays


def report(arguments: argparse.Namespace) -> int:
    """Runs the kernel, compares sequence by sequence, prints, and returns the exit status."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    import cufmha
    from cufmha import testing

    cu_q, cu_k = (
        np.array([*accumulate((pair[i] for pair in arguments.lengths), initial=LEAD)], np.int32)
        for i in range(2)
    )
    q, k, v = packed(arguments, (int(cu_q[-1]), int(cu_k[-1])))
    out = np.full((*q.shape[:2], v.shape[2]), MARK, q.dtype)
    lse = np.full((q.shape[1], len(q)), MARK, np.float32)
    on_card = arguments.device == "cuda"
    put, get = (
        (attention.to_card, attention.from_card) if on_card else (attention.same, attention.same)
    )
    device = {} if on_card else {"arch": arguments.arch}
    with cufmha.use_device(arguments.device, **device):
        given = [put(x) for x in (q, k, v, cu_q, cu_k, out, lse)]
        cufmha.attention_varlen(
            *given[:5], out=given[5], lse=given[6],
            causal=arguments.causal, strategy=arguments.strategy,
        )  # fmt: skip
        out, lse = (np.asarray(get(x)) for x in given[5:])
    table = Table("queries", "keys", "against float64", title="packed attention forward")
    good, owned = True, np.zeros(len(q), bool)
    for index, (queries, keys) in enumerate(arguments.lengths):
        rows, columns = slice(*cu_q[index : index + 2]), slice(*cu_k[index : index + 2])
        owned[rows] = True
        verdict = "within the accuracy rule" if queries else "nothing to do"
        try:
            if queries:
                one = [x.swapaxes(0, 1)[None] for x in (q[rows], k[columns], v[columns])]
                testing.assert_attention_close(
                    out[rows].swapaxes(0, 1)[None], lse[None, :, rows], *one,
                    causal=arguments.causal,
                )  # fmt: skip
        except AssertionError as error:
            good, verdict = False, f"[bold red]{error}"
        table.add_row(str(queries), str(keys), verdict)
    kept = (out[~owned].astype(np.float32) == MARK).all() and (lse[:, ~owned] == MARK).all()
    console = Console()
    console.print(table)
    console.print(f"rows of no sequence: {'as they were' if kept else '[bold red]written to'}")
    return 0 if good and kept else 1


if __name__ == "__main__":
    sys.exit(main())
