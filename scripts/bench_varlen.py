#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times packed sequences on a card: five strategies beside FlashAttention-3 and the dense kernel.

    FA3_LIBRARY=FOLDER python scripts/bench_varlen.py device --out docs/bench/h200-varlen.json
    python scripts/bench_varlen.py host --out docs/bench/h200-varlen-host.json
    python scripts/bench_varlen.py table docs/bench/h200-varlen.json

Measured as scripts/bench.py does, whose options these are too. `copy` is what users of padded
kernels do: q, k and v are copied into buffers with as many rows in front as the longest sequence
has, attended there, and out is copied back. `dense` is the dense kernel, where all lengths are
equal; `fa3_dense` FlashAttention-3's.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bench

STRATEGIES = ("split", "ragged", "offset", "replace", "mask")


@dataclass(frozen=True)
class Case:
    """Self-attention within each of several sequences, laid end to end; all heads 2048 wide."""

    name: str
    lengths: tuple[int, ...]
    head_dim: int
    causal: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        return sum(self.lengths), bench.HIDDEN // self.head_dim, self.head_dim

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.lengths)]

    @property
    def flops(self) -> float:
        _, heads, head_dim = self.shape
        pairs = sum(length * length for length in self.lengths)
        return 4.0 * heads * pairs * head_dim / (2 if self.causal else 1)

    @property
    def is_even(self) -> bool:
        return len(set(self.lengths)) == 1

    def __str__(self) -> str:
        return f"{self.name} d{self.head_dim} {'causal' if self.causal else 'full'}"


def drawn(count: int, low: int, high: int) -> tuple[int, ...]:
    generator = random.Random(0)
    return tuple(generator.randint(low, high) for _ in range(count))


LENGTHS = {
    "16 of 100..4096": drawn(16, 100, 4096),
    "8 of 2048": (2048,) * 8,
    "2 of 8192": (8192,) * 2,
    "256 of 16..256": drawn(256, 16, 256),
    "1 of 16384, 64 of 64": (16384, *[64] * 64),
}
SHEET = [
    Case(name, lengths, head_dim, causal)
    for (name, lengths), head_dim, causal in itertools.product(
        LENGTHS.items(), (64, 128), (False, True)
    )
]


# ---- contenders


def ours(case: Case, strategy: str) -> Callable[[], object]:
    import torch

    import cufmha

    offsets = torch.tensor(case.offsets, dtype=torch.int32, device="cuda")
    launches = []
    for q, k, v in bench.torch_sets(case):
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[1], q.shape[0], device="cuda")
        launches.append(plan_of(case, strategy).bind(q, k, v, offsets, offsets, out, lse))
    assert isinstance(launches[0], cufmha.VarlenBoundLaunch)
    turn = itertools.cycle(launches)
    return lambda: next(turn)()


def plan_of(case: Case, strategy: str) -> Any:
    import cufmha

    total, heads, head_dim = case.shape
    spec = cufmha.AttentionSpec(
        num_heads_q=heads,
        num_heads_kv=heads,
        head_dim=head_dim,
        mask=cufmha.Mask.of(case.causal),
        layout="thd",
        lse=True,
        strategy=strategy,
    )
    longest = max(case.lengths)
    shape = cufmha.PackedShape(
        batch=len(case.lengths),
        total_q=total,
        total_k=total,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )
    return cufmha.plan(spec, shape)


def copy(case: Case) -> Callable[[], object]:
    """Padded buffers first, as a kernel asks for that reads in front of the array."""
    import torch

    offsets = torch.tensor(case.offsets, dtype=torch.int32, device="cuda")
    longest = max(case.lengths)
    total, heads, head_dim = case.shape
    make = functools.partial(
        torch.empty, total + longest, heads, head_dim, device="cuda", dtype=torch.bfloat16
    )
    padded = [make()[longest:] for _ in range(4)]
    lse = torch.empty(heads, total, device="cuda")
    launch = plan_of(case, "ragged").bind(*padded[:3], offsets, offsets, padded[3], lse)
    turn = itertools.cycle([(*qkv, torch.empty_like(qkv[0])) for qkv in bench.torch_sets(case)])

    def attend() -> None:
        *qkv, out = next(turn)
        for to, x in zip(padded[:3], qkv, strict=True):
            to.copy_(x)
        launch()
        out.copy_(padded[3])

    return attend


def dense_case(case: Case) -> bench.Case:
    return bench.Case(case.lengths[0], case.head_dim, case.causal)


class Fa3Packed(bench.Fa3):
    """FlashAttention-3 on packed sequences."""

    def program_of(self, case: Case) -> Callable[..., Any]:
        import jax
        import jax.numpy as jnp
        import numpy as np

        offsets = jnp.asarray(np.asarray(case.offsets, np.int32))
        total, heads, head_dim = case.shape
        longest = np.int64(max(case.lengths))
        shapes = [(heads, total), (1, 1, 1, 1), (1, 1, 1)]
        unbounded = np.int64(-1)

        def forward(q: Any, k: Any, v: Any) -> Any:
            results = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
            results += [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
            call = jax.ffi.ffi_call("fa3_varlen_fwd", results, has_side_effect=True)
            return call(
                q, k, v, offsets, offsets,
                max_seqlen=longest, max_seqlen_k=longest,
                softmax_scale=np.float64(head_dim**-0.5), is_causal=case.causal,
                window_size_left=unbounded, window_size_right=unbounded,
            )  # fmt: skip

        return forward


def makers(case: Case) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        strategy: functools.partial(ours, case, strategy) for strategy in STRATEGIES
    }
    found["copy"] = functools.partial(copy, case)
    if "FA3_LIBRARY" in os.environ:
        found["fa3"] = functools.partial(Fa3Packed, case)
    if case.is_even and sum(case.lengths) == bench.TOKENS:
        found["dense"] = functools.partial(bench.ours, dense_case(case))
        if "FA3_LIBRARY" in os.environ:
            found["fa3_dense"] = functools.partial(bench.Fa3, dense_case(case))
    return found


def device_times(arguments: argparse.Namespace) -> None:
    import torch

    report = bench.about()
    report["lines"] = []
    for case in SHEET:
        if arguments.only and arguments.only not in str(case):
            continue
        contenders = {name: make() for name, make in makers(case).items()}
        seconds = bench.interleaved(contenders, rounds=arguments.rounds, burst=arguments.burst)
        rates = {name: t and round(case.flops / t / 1e12, 1) for name, t in seconds.items()}
        report["lines"].append({"case": str(case), "seconds": seconds, "tflops": rates})
        print(f"{case!s:32}", *(f"{name} {rate}" for name, rate in rates.items()), flush=True)
        bench.save(arguments.out, report)
        del contenders
        torch.cuda.empty_cache()


# ---- host time


def host_times(arguments: argparse.Namespace) -> None:
    """Microseconds of a call on small sequences, with the same and with fresh pointers."""
    import torch

    import cufmha

    case = Case("2 of 64", (64, 64), 128, False)
    draw = functools.partial(
        torch.randn, sum(case.lengths), 1, 128, device="cuda", dtype=torch.bfloat16
    )
    sets = [[draw() for _ in range(4)] for _ in range(256)]
    offsets = torch.tensor(case.offsets, dtype=torch.int32, device="cuda")
    q, k, v, out = sets[0]
    report = bench.about()
    report["lines"] = []
    for strategy in STRATEGIES:
        turn = itertools.cycle(sets)

        def call(fresh: bool, strategy: str = strategy, turn: Any = turn) -> object:
            a, b, c, o = next(turn) if fresh else (q, k, v, out)
            return cufmha.attention_varlen(a, b, c, offsets, offsets, strategy=strategy, out=o)

        for name, fresh in (("same", False), ("fresh", True)):
            microseconds = bench.host_microseconds(functools.partial(call, fresh))
            line = {"case": f"{strategy}, {name} arrays", "microseconds": round(microseconds, 2)}
            report["lines"].append(line)
            print(f"{microseconds:8.2f} us  {line['case']}", flush=True)
    bench.save(arguments.out, report)


def print_table(arguments: argparse.Namespace) -> None:
    import json

    report = json.loads(arguments.report.read_text())
    print(f"{report['card']}, driver {report['driver']}, {report['date']}: `{report['command']}`\n")
    if "microseconds" in report["lines"][0]:
        print("| call | µs |\n|---|---|")
        for line in report["lines"]:
            print(f"| {line['case']} | {line['microseconds']} |")
        return
    names = [*STRATEGIES, "copy", "fa3", "dense", "fa3_dense"]
    print(f"| bf16, TFLOP/s | {' | '.join(names)} | best exact / fa3 | best exact / dense |")
    print("|---" * (len(names) + 3) + "|")
    for line in report["lines"]:
        rates = line["tflops"]
        best = max(rates[name] or 0 for name in STRATEGIES[:4])
        shares = [f"{best / rates[n]:.0%}" if rates.get(n) else "–" for n in ("fa3", "dense")]
        cells = ["–" if not rates.get(name) else f"{rates[name]:.0f}" for name in names]
        print(f"| {line['case']} | {' | '.join(cells + shares)} |")


def main() -> None:
    bench.command_line(__doc__ or "", device_times, host_times, print_table)


if __name__ == "__main__":
    main()
