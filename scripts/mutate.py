#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks a kernel's synchronization, one place at a time, and sees whether the emulator notices.

    python scripts/mutate.py --arch sm_90a --out docs/mutations-sm90.json
    python scripts/mutate.py --arch sm_100a --sample 10
    python scripts/mutate.py --arch sm_90a --packed --out docs/mutations-varlen.json

Each fence, wait, arrival, commit and barrier of the kernel is dropped, and, where the statement
ahead of it touches memory or synchronizes, changes places with it. Every mutant runs over several
problems with several seeds of time until one of them raises, hangs or gives a wrong result; what
survives them all is listed. `--packed` takes the kernels for packed sequences instead, and of each
what another does not have: "split" against the dense one, the other strategies against "split".
There the strategies' loads, stores and changes of tensor maps are dropped and swapped too. Results
of the other chip stay in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import functools
import itertools
import json
import math
import random
import re
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
PACKED_FAMILIES = (*FAMILIES, "tensormap", "cp.async.bulk.tensor")
NEIGHBORS = (
    *PACKED_FAMILIES,
    "wgmma",
    "tcgen05",
    "mbarrier",
    "cp.async",
    "ld.shared",
    "st",
    "stmatrix",
)
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


@dataclasses.dataclass(frozen=True)
class Packed:
    """Sequences of (queries, keys) on a chip of so many processors."""

    lengths: tuple[tuple[int, int], ...]
    processors: int = 1
    heads_q: int = 1


PACKED_CASES = (
    Packed(((200, 130), (3, 300), (70, 97), (0, 9))),
    Packed(((70, 200), (1, 1), (280, 140)), processors=2, heads_q=2),
)
"""Slots of work and places of maps go round; tiles are whole and partial."""
SCHEDULE_CASES = (Packed(((9, 5), *[(0, 0)] * 20, (3, 300), *[(0, 7)] * 18, (20, 20)), 2),)
"""More sequences than a warp has lanes."""
SCHEDULE = "varlen_schedule"
PACKED_KERNELS = (SCHEDULE, "split", "offset", "ragged", "replace", "mask")


def mutations(module: Any, families: tuple[str, ...] = FAMILIES) -> list[Mutation]:
    """All of them, in the order of the text."""
    from cufmha.isa import nodes

    def named(item: Any, families: tuple[str, ...]) -> bool:
        return isinstance(item, nodes.Instruction) and any(
            item.name == f or item.name.startswith(f + ".") for f in families
        )

    def matches(item: Any) -> bool:
        return named(item, families)

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


def beyond(module: Any, base: Any) -> list[Mutation]:
    """Mutations of what the module has and the base has not, whatever numbers are in it."""
    found = mutations(module, PACKED_FAMILIES)
    own, other = (
        [(m.path, _spelled(item, m.path)) for m in all_of if m.kind == "drop"]
        for item, all_of in ((module, found), (base, mutations(base, PACKED_FAMILIES)))
    )
    texts = [text for _, text in own], [text for _, text in other]
    kept = {path for path, _ in own}
    for match in difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks():
        kept -= {path for path, _ in own[match.a : match.a + match.size]}
    return [mutation for mutation in found if mutation.path in kept]


def _spelled(module: Any, path: Path_) -> str:
    """The statement's instructions, numbers left out."""
    from cufmha.isa import nodes, printer

    item = _entry(module).body
    for number in path:
        item = item.items[number]
    parts = item.items if isinstance(item, nodes.Block) else (item,)
    spelled = [printer.instruction(x) for x in parts if isinstance(x, nodes.Instruction)]
    return re.sub(r"\d+", "", "; ".join(spelled))


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

    cases: tuple[Any, ...] = CASES

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
        self.mutations = mutations(self.module)
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


class PackedBench:
    """A strategy's kernel, or the one that prepares the work, and packed sequences to run it on."""

    def __init__(self, arch: str, strategy: str) -> None:
        from cufmha.isa import parse
        from cufmha.kernels import catalog, render

        self.arch = arch
        self.cases = SCHEDULE_CASES if strategy == SCHEDULE else PACKED_CASES
        self.strategy = "split" if strategy == SCHEDULE else strategy

        def module_of(variant: Any) -> Any:
            return parse(render.render(variant).text, variant.file)

        def forward(strategy: str) -> Any:
            return next(
                v for v in catalog.variants(arch)
                if (v.head_dim, v.dtype, v.causal, v.strategy) == (64, "bf16", True, strategy)
                and not v.split_kv
            )  # fmt: skip

        self.variant = forward(self.strategy)
        if strategy == SCHEDULE:
            count = len(SCHEDULE_CASES[0].lengths)
            self.variant = catalog.schedule_variant(catalog.CHIPS[arch], count)
        self.module = module_of(self.variant)
        if strategy == SCHEDULE:
            self.mutations = mutations(self.module, PACKED_FAMILIES)
        else:
            base = module_of(forward("" if strategy == "split" else "split"))
            self.mutations = beyond(self.module, base)

    def run(self, text: str, case: Packed, seed: int) -> None:
        """Raises what the emulator raises, or AssertionError for a wrong result."""
        import numpy as np

        import cufmha
        from cufmha import testing
        from cufmha.spec import PACKED, Mask

        batch, (q, k, v) = len(case.lengths), self._arrays(case)
        cu_q, cu_k = np.cumsum([(0, 0), *case.lengths], axis=0, dtype=np.int32).T.copy()
        spec = cufmha.AttentionSpec(
            num_heads_q=case.heads_q, num_heads_kv=1, head_dim=64, mask=Mask.CAUSAL, lse=True,
            layout=PACKED, strategy=self.strategy,
        )  # fmt: skip
        shape = cufmha.PackedShape(batch=batch, total_q=len(q), total_k=len(k))
        plan = cufmha.plan(spec, shape, device=self._chip(text, case.processors, seed))
        out = testing.poison(q.shape, q.dtype)
        lse = np.full(q.shape[1::-1], np.nan, np.float32)
        plan.run(q, k, v, cu_q, cu_k, out=out, lse=lse)
        for rows, keys in zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k), strict=True):
            one = [
                x[slice(*at)].swapaxes(0, 1)[None] for x, at in ((q, rows), (k, keys), (v, keys))
            ]
            found = out[slice(*rows)].swapaxes(0, 1)[None], lse[None, :, slice(*rows)]
            testing.assert_attention_close(*found, *one, causal=True)

    def _arrays(self, case: Packed) -> Any:
        from cufmha import testing

        queries, keys = (sum(n) for n in zip(*case.lengths, strict=True))
        found = testing.make_qkv(
            heads_q=case.heads_q, heads_kv=1, seqlen_q=queries, seqlen_k=keys, head_dim=64,
            spread=30.0,
        )  # fmt: skip
        return [x[0].swapaxes(0, 1).copy() for x in found]

    def _chip(self, text: str, processors: int, seed: int) -> Any:
        """An emulated chip with that text in the variant's place."""
        from cufmha.device.emulator import Emulator

        variant = self.variant

        class Chip(Emulator):
            def kernel(self, wanted: Any) -> Any:
                found = super().kernel(wanted)
                if wanted == variant:
                    found.module = _module_of(text, self.arch)
                    found.module.seed = seed
                return found

        return Chip(self.arch, processors=processors, seed=seed)


@functools.lru_cache(maxsize=2)
def _module_of(text: str, arch: str) -> Any:
    """Compiled once for all seeds."""
    from cufmha.emu import Module

    return Module(text, arch)


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


def verdict(bench: Bench | PackedBench, mutation: Mutation, seeds: int) -> Caught | None:
    """How the mutant was caught, or None."""
    for seed, case in itertools.product(range(seeds), range(len(bench.cases))):
        how = attempt(bench, mutation, case, seed)
        if how is not None:
            return Caught(how, case, seed)
    return None


def attempt(bench: Bench | PackedBench, mutation: Mutation, case: int, seed: int) -> str | None:
    """What one run of the mutant ends in, None for a right result."""
    from cufmha.errors import CufmhaError
    from cufmha.isa import print_module

    try:
        with limited(SECONDS):
            bench.run(print_module(mutated(bench.module, mutation)), bench.cases[case], seed)
    except CufmhaError as error:
        return type(error).__name__
    except AssertionError:
        return "wrong result"
    except TimeoutError:
        return "hang"
    return None


def examine(bench: Bench | PackedBench, chosen: list[Mutation], seeds: int) -> dict[str, Any]:
    """What became of each mutant, once the kernel as it is has passed."""
    from cufmha.isa import print_module

    for seed, case in itertools.product(range(seeds), bench.cases):
        bench.run(print_module(bench.module), case, seed)
    rows, start = [], time.monotonic()
    for number, mutation in enumerate(chosen, 1):
        caught = verdict(bench, mutation, seeds)
        rows.append(
            {**dataclasses.asdict(mutation), "caught": caught and dataclasses.asdict(caught)}
        )
        print(f"{number}/{len(chosen)} {mutation}: {caught or 'SURVIVED'}", flush=True)
    survivors = [row for row in rows if row["caught"] is None]
    seconds = time.monotonic() - start
    print(f"{len(rows)} mutants, {len(survivors)} survived, {seconds:.0f} s")
    return {"variant": bench.variant.name, "seeds": seeds, "mutants": rows}


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)

    def sampled(chosen: list[Mutation]) -> list[Mutation]:
        count = min(arguments.sample, len(chosen))
        return random.Random(arguments.sample).sample(chosen, count) if count else chosen

    if arguments.packed:
        report: Any = []
        if arguments.out and arguments.out.exists():
            others = json.loads(arguments.out.read_text())
            report = [each for each in others if each["arch"] != arguments.arch]
        for name in PACKED_KERNELS:
            packed = PackedBench(arguments.arch, name)
            found = examine(packed, sampled(packed.mutations), arguments.seeds)
            report.append({"arch": arguments.arch, "kernel": name, **found})
    else:
        bench = Bench(
            arguments.arch, head_dim=arguments.head_dim, dtype=arguments.dtype,
            causal=arguments.causal,
        )  # fmt: skip
        report = examine(bench, sampled(bench.mutations), arguments.seeds)
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--arch", choices=("sm_90a", "sm_100a", "sm_103a"), default="sm_90a")
    add("--packed", action="store_true", help="the kernels for packed sequences")
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
