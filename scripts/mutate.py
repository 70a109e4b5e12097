#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks a kernel's synchronization, one place at a time, and sees whether the emulator notices.

    python scripts/mutate.py --arch sm_90a --out docs/mutations-sm90.json
    python scripts/mutate.py --arch sm_100a --sample 10

Each fence, wait, arrival, commit and barrier of the kernel is dropped, and, where the statement
ahead of it touches memory or synchronizes, changes places with it. Every mutant runs over several
problems with several seeds of time until one of them raises, hangs or gives a wrong result; what
survives them all is listed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 60  # a mutant that runs longer than this is taken to hang
FAMILIES = ("fence", "wgmma.fence", "tcgen05.fence", "tcgen05.wait", "wgmma.wait_group",
            "wgmma.commit_group", "tcgen05.commit", "mbarrier.arrive", "mbarrier.try_wait",
            "cp.async.bulk.wait_group", "cp.async.bulk.commit_group", "bar", "barrier")  # fmt: skip
NEIGHBORS = (*FAMILIES, "wgmma", "tcgen05", "mbarrier", "cp.async", "ld.shared", "st", "stmatrix")
Path_ = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """`kind` is "drop" or "swap"; `path` leads through nested blocks to the statement."""

    kind: str
    path: Path_
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} line {self.line}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Case:
    """A small problem, with a spread that makes maxima grow."""

    seqlen_q: int
    seqlen_k: int
    batch: int = 1
    heads_q: int = 2
    heads_kv: int = 1
    grid: int = 1
    spread: float = 30.0


CASES = (Case(100, 80), Case(200, 560), Case(300, 700))
"""Every ring goes round; items have one tile, an even and an odd number."""


def mutations(module: Any) -> list[Mutation]:
    """All of them, in the order of the text."""
    from cufmha.isa import nodes

    def named(item: Any, families: tuple[str, ...]) -> bool:
        return isinstance(item, nodes.Instruction) and any(
            item.name == f or item.name.startswith(f + ".") for f in families
        )

    def matches(item: Any) -> bool:
        return named(item, FAMILIES)

    def matters(item: Any) -> bool:
        if isinstance(item, nodes.Block):
            return any(matters(x) for x in item.items)
        return named(item, NEIGHBORS)

    def is_shell(block: Any) -> bool:
        """A scope with one such instruction and nothing else but its label and loop."""
        rest = [x for x in block.items if not isinstance(x, (nodes.RegisterDecl, nodes.Label))]
        real = [x for x in rest if getattr(x, "opcode", "") != "bra"]
        return len(real) == 1 and matches(real[0])

    def walk(block: Any, path: Path_) -> Iterator[Mutation]:
        ahead = False
        for number, item in enumerate(block.items):
            here = (*path, number)
            found = None
            if matches(item):
                found = item
            elif isinstance(item, nodes.Block) and is_shell(item):
                found = next(x for x in item.items if matches(x))
            if found is not None:
                text = found.name
                yield Mutation("drop", here, found.span.line, text)
                if ahead:
                    yield Mutation("swap", here, found.span.line, text)
            elif isinstance(item, nodes.Block):
                yield from walk(item, here)
            ahead = matters(item)

    return list(walk(_entry(module).body, ()))


def _entry(module: Any) -> Any:
    return next(f for f in module.functions.values() if f.kind == "entry" and f.body)


def mutated(module: Any, mutation: Mutation) -> Any:
    """The module with that one change."""

    def change(block: Any, path: Path_) -> Any:
        items = list(block.items)
        at = path[0]
        if len(path) > 1:
            items[at] = change(items[at], path[1:])
        elif mutation.kind == "drop":
            del items[at]
        else:
            items[at - 1], items[at] = items[at], items[at - 1]
        return dataclasses.replace(block, items=tuple(items))

    entry = _entry(module)
    new = dataclasses.replace(entry, body=change(entry.body, mutation.path))
    items = tuple(new if item is entry else item for item in module.items)
    return dataclasses.replace(module, items=items)


class Bench:
    """One variant and its problems, ready to run any text in the kernel's place."""

    def __init__(
        self, arch: str, *, head_dim: int, dtype: str, causal: bool, cases: tuple[Case, ...] = ()
    ) -> None:
        from cufmha import testing
        from cufmha.isa import parse
        from cufmha.kernels import catalog, render

        self.arch, self.causal = arch, causal
        self.variant = next(
            v
            for v in catalog.variants(arch)
            if (v.head_dim, v.dtype, v.causal, v.strategy) == (head_dim, dtype, causal, "")
            and not v.split_kv
        )
        self.module = parse(render.render(self.variant).text, self.variant.file)
        self.scale = head_dim**-0.5
        self.inputs = {
            case: testing.make_qkv(
                batch=case.batch, heads_q=case.heads_q, heads_kv=case.heads_kv,
                seqlen_q=case.seqlen_q, seqlen_k=case.seqlen_k, head_dim=head_dim,
                head_dim_v=self.variant.head_dim_v, dtype=dtype,
                spread=case.spread,
            )
            for case in cases or CASES
        }  # fmt: skip

    def run(self, text: str, case: Case, seed: int) -> None:
        """Raises what the emulator raises, or AssertionError for a wrong result."""
        import numpy as np

        from cufmha import testing
        from cufmha.emu import Module

        variant, (q, k, v) = self.variant, self.inputs[case]
        out = testing.poison((*q.shape[:3], variant.head_dim_v), q.dtype)
        lse = np.full(out.shape[:3], np.nan, np.float32)
        tiles = -(-case.seqlen_q // variant.tile_q)
        items = tiles * case.heads_q * case.batch
        maps = [
            self._map(a, rows)
            for a, rows in (
                (q, variant.box_rows_q), (k, variant.box_rows_kv),
                (v, variant.box_rows_kv), (out, variant.box_rows_o),
            )
        ]  # fmt: skip
        numbers = [
            lse, np.uint64(case.heads_q * case.seqlen_q), np.uint64(case.seqlen_q),
            np.uint32(case.seqlen_q), np.uint32(case.seqlen_k), np.uint32(case.heads_q),
            np.uint32(case.heads_q // case.heads_kv), np.float32(self.scale * math.log2(math.e)),
            np.int32(case.seqlen_k - case.seqlen_q), np.uint32(tiles), np.uint32(items),
        ]  # fmt: skip
        Module(text, arch=self.arch, seed=seed).launch(
            variant.operation, grid=(min(case.grid, items), 1, 1), block=(variant.threads, 1, 1),
            args=[*maps, *numbers], dynamic_smem_bytes=variant.smem_bytes,
        )  # fmt: skip
        testing.assert_attention_close(
            out, lse, q, k, v, causal=self.causal, softmax_scale=self.scale
        )

    def _map(self, array: Any, rows: int) -> tuple[Any, Any]:
        from cufmha.tma import TensorMapSpec

        batch, heads, seqlen, head_dim = array.shape
        row = head_dim * array.itemsize
        spec = TensorMapSpec(
            dtype=self.variant.dtype, dims=(head_dim, seqlen, heads, batch),
            strides=(row, row * seqlen, row * seqlen * heads), box=(64, rows, 1, 1),
            swizzle="128B",
        )  # fmt: skip
        return spec, array


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """TimeoutError after that long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclasses.dataclass(frozen=True)
class Caught:
    """What a mutant raised, in which problem and with which seed."""

    how: str
    case: int
    seed: int


def verdict(bench: Bench, mutation: Mutation, seeds: int) -> Caught | None:
    """How the mutant was caught, or None."""
    for seed, case in itertools.product(range(seeds), range(len(CASES))):
        how = attempt(bench, mutation, case, seed)
        if how is not None:
            return Caught(how, case, seed)
    return None


def attempt(bench: Bench, mutation: Mutation, case: int, seed: int) -> str | None:
    """What one run of the mutant ends in, None for a right result."""
    from cufmha.errors import CufmhaError
    from cufmha.isa import print_module

    try:
        with limited(SECONDS):
            bench.run(print_module(mutated(bench.module, mutation)), CASES[case], seed)
    except CufmhaError as error:
        return type(error).__name__
    except AssertionError:
        return "wrong result"
    except TimeoutError:
        return "hang"
    return None


def main(argv: list[str] | None = None) -> int:
    from cufmha.isa import print_module

    arguments = parse_arguments(argv)
    bench = Bench(
        arguments.arch, head_dim=arguments.head_dim, dtype=arguments.dtype, causal=arguments.causal
    )
    for seed, case in itertools.product(range(arguments.seeds), CASES):
        bench.run(print_module(bench.module), case, seed)
    chosen = mutations(bench.module)
    if arguments.sample:
        chosen = random.Random(arguments.sample).sample(chosen, arguments.sample)
    rows, start = [], time.monotonic()
    for number, mutation in enumerate(chosen, 1):
        caught = verdict(bench, mutation, arguments.seeds)
        rows.append(
            {**dataclasses.asdict(mutation), "caught": caught and dataclasses.asdict(caught)}
        )
        print(f"{number}/{len(chosen)} {mutation}: {caught or 'SURVIVED'}", flush=True)
    survivors = [row for row in rows if row["caught"] is None]
    seconds = time.monotonic() - start
    print(f"{len(rows)} mutants, {len(survivors)} survived, {seconds:.0f} s")
    if arguments.out:
        report = {"variant": bench.variant.name, "seeds": arguments.seeds, "mutants": rows}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--arch", choices=("sm_90a", "sm_100a", "sm_103a"), default="sm_90a")
    add("--head-dim", type=int, choices=(64, 128, 192), default=64)
    add("--dtype", choices=("bf16", "f16"), default="bf16")
    add("--full", dest="causal", action="store_false", help="no causal mask")
    add("--seeds", type=int, default=3, help="runs of each mutant, unless it is caught before")
    add("--sample", type=int, default=0, help="only that many mutants, drawn at random")
    add("--out", type=Path, help="a JSON file for the result")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main())
