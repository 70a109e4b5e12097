#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions per tile and role, counted on the emulator, and what a chip's rates make of them.

    python scripts/cost_model.py                 # print the tables
    python scripts/cost_model.py --write         # and put them into docs/cost-model.md
    python scripts/cost_model.py --against docs/bench/h200-forward.json   # beside a card's times

Counted is what one more tile of keys adds: the difference of two runs, over the tiles between them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import ml_dtypes
import numpy as np

from cufmha.emu import Module
from cufmha.emu.profile import Profile, Role
from cufmha.isa.nodes import Address, Instruction, Vector
from cufmha.kernels.catalog import KernelVariant, variants
from cufmha.kernels.render import render
from cufmha.tma import TensorMapSpec

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "cost-model.md"
MARK = "<!-- tables: written by scripts/cost_model.py -->\n"
CHIPS = {"sm_90a": "sm_90a", "sm_100a": "sm_100f"}
NAMES = {
    "sm_90a": {0: "load", 4: "softmax and products"},
    "sm_100a": {0: "softmax", 8: "output", 12: "products", 13: "load"},
}


@dataclass(frozen=True)
class Rates:
    """Per processor and clock; warp instructions are counted as 32 lanes."""

    flops: int
    fma: int = 128
    special: int = 16
    alu: int = 64
    convert: int = 64
    shuffle: int = 32
    issue: int = 4
    shared_bytes: int = 128
    tensor_memory_bytes: int = 512


RATES = {"sm_90a": Rates(flops=4096), "sm_100a": Rates(flops=8192)}
COLUMNS = ("float", "float x2", "special", "alu", "convert", "move", "shuffle", "shared", "tmem",
           "matrix", "order", "control")  # fmt: skip
_SPECIAL = frozenset(("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh"))
_ORDER = frozenset(("bar", "barrier", "fence", "mbarrier", "setmaxnreg", "elect", "cp"))


def column_of(inst: Instruction) -> str:
    op, words = inst.opcode, inst.modifiers
    if op == "mov" or (op == "cvt" and words[-1] == words[-2]):
        return "move"
    if op in _SPECIAL:
        return "special"
    if op in ("add", "sub", "mul", "fma") and words[-1] in ("f32", "f32x2"):
        return "float x2" if words[-1] == "f32x2" else "float"
    if op == "cvt":
        return "convert"
    if op in ("shfl", "vote"):
        return "shuffle"
    if op == "wgmma" or (op == "tcgen05" and words[0] in ("mma", "commit")):
        waits = words[0] in ("fence", "wait_group", "commit_group", "commit")
        return "order" if waits else "matrix"
    if op == "tcgen05":
        return "tmem" if words[0] in ("ld", "st") else "order"
    if op in _ORDER:
        return "order"
    if op in ("ld", "st", "ldmatrix", "stmatrix"):
        return "shared"
    return "control" if op in ("bra", "ret", "exit") else "alu"


def tensor_memory_bytes(inst: Instruction) -> int:
    """What a tcgen05.ld or .st of a warp moves."""
    if inst.opcode != "tcgen05" or inst.modifiers[0] not in ("ld", "st"):
        return 0
    vector = next((o for o in inst.operands if isinstance(o, Vector)), None)
    return 128 * (len(vector.items) if vector else 1)


def is_product_of_shared(inst: Instruction) -> bool:
    """A tcgen05.mma whose A is in shared memory."""
    named = inst.opcode == "tcgen05" and inst.modifiers[0] == "mma"
    return named and not isinstance(inst.operands[1], Address)


def profile(variant: KernelVariant, arch: str, keys: int) -> Profile:
    """One item: a Q tile against `keys` keys, no mask bites."""
    module = Module(render(variant).text, arch=arch, hazards=False)
    counted = Profile(module.program("fmha_fwd"), variant.threads // 32)
    rows, d, dv = variant.tile_q, variant.head_dim, variant.head_dim_v
    rng = np.random.default_rng(0)
    shapes = {"q_map": (rows, d), "k_map": (keys, d), "v_map": (keys, dv), "o_map": (rows, dv)}
    boxes = {"q_map": variant.box_rows_q, "k_map": variant.box_rows_kv,
             "v_map": variant.box_rows_kv, "o_map": variant.box_rows_o}  # fmt: skip
    values: dict[str, object] = {}
    for name, shape in shapes.items():
        array = rng.standard_normal((1, 1, *shape)).astype(ml_dtypes.bfloat16)
        spec = TensorMapSpec(
            dtype="bf16", dims=tuple(reversed(array.shape)),
            strides=tuple(reversed(array.strides[:-1])), box=(64, boxes[name], 1, 1),
            swizzle="128B",
        )  # fmt: skip
        values[name] = (spec, array)
    values |= {
        "lse": np.zeros(rows, np.float32), "lse_stride_batch": np.uint64(rows),
        "lse_stride_head": np.uint64(rows), "seqlen_q": np.uint32(rows),
        "seqlen_k": np.uint32(keys), "num_heads_q": np.uint32(1), "group_size": np.uint32(1),
        "scale_log2": np.float32(d**-0.5 * 1.4427), "causal_offset": np.int32(1 << 30),
        "num_tiles_q": np.uint32(1), "num_tiles": np.uint32(1),
    }  # fmt: skip
    names = module.program("fmha_fwd").param_layout
    module.launch("fmha_fwd", block=(variant.threads,), args=[values[n] for n in names],
                  dynamic_smem_bytes=variant.smem_bytes)  # fmt: skip
    return counted


def per_tile(variant: KernelVariant, arch: str) -> list[tuple[str, Counter[str]]]:
    """(role, counts by column and `tmem bytes`) for each 128 x 128 of scores."""
    short, long = 6, 14
    tiles = (long - short) * variant.tile_k * variant.tile_q / (128 * 128)
    first, second = (profile(variant, arch, n * variant.tile_k) for n in (short, long))
    found = []
    for role in second.roles():
        counts: Counter[str] = Counter()
        for pc in role.counts:
            inst = second.program.instructions[pc]
            difference = added(role, pc, first, second) / tiles
            if inst is not None and difference:
                counts[column_of(inst)] += difference  # type: ignore[assignment]
                counts["tmem bytes"] += tensor_memory_bytes(inst) * difference  # type: ignore[assignment]
                if is_product_of_shared(inst):
                    counts["a in shared memory"] += difference  # type: ignore[assignment]
        if sum(counts.values()) > 0:
            found.append((label(arch, role), counts))
    return found


def added(role: Role, pc: int, first: Profile, second: Profile) -> int:
    return sum(second.rows[pc][w] - first.rows[pc][w] for w in role.warps)


def label(arch: str, role: Role) -> str:
    name = NAMES[arch].get(role.warps[0], "")
    return f"{name} ({role.name})" if name else role.name


def cycles(
    variant: KernelVariant, arch: str, roles: list[tuple[str, Counter[str]]]
) -> dict[str, float]:
    """Clocks that each unit of a processor is busy for one 128 x 128 tile."""
    rates, d, dv = RATES[arch], variant.head_dim, variant.head_dim_v
    total: Counter[str] = Counter()
    for _, counts in roles:
        total.update(counts)
    issued = sum(total[c] for c in COLUMNS if c != "move")
    writes = 2 * 128 * (d + dv) * 128 / variant.tile_q
    math = 2 * 128 * 128 * (d + dv) / rates.flops
    if arch == "sm_90a":
        reads, waits = 2 * (2 * (64 * d + 128 * d) + 2 * 128 * dv), 0.0
    else:
        # 16 columns of A (128 rows) for each product, all of K and of V for their products together
        of_scores = total["a in shared memory"]
        reads = 128 * 32 * of_scores + 2 * 128 * (d + dv)
        waits = max(0.0, (128 * 32 * of_scores + 2 * 128 * d) / rates.shared_bytes
                    - 2 * 128 * 128 * d / rates.flops)  # fmt: skip
    return {
        "tensor cores": math,
        "tensor cores, waiting for operands too": math + waits,
        "special functions": 32 * total["special"] / rates.special,
        "float": 32 * (total["float"] + 2 * total["float x2"]) / rates.fma,
        "integer, compare, select": 32 * total["alu"] / rates.alu,
        "conversion": 32 * total["convert"] / rates.convert,
        "shuffle": 32 * total["shuffle"] / rates.shuffle,
        "issue": issued / rates.issue,
        "shared memory, read": (reads + 128 * total["shared"]) / rates.shared_bytes,
        "shared memory, written by TMA": writes / rates.shared_bytes,
        "tensor memory": total["tmem bytes"] / rates.tensor_memory_bytes,
    }


def report(arch: str, variant: KernelVariant) -> str:
    roles = per_tile(variant, arch)
    lines = [
        f"### {variant.name}", "",
        "| role | " + " | ".join(COLUMNS) + " | all but moves |",
        "|---|" + "---|" * (len(COLUMNS) + 1),
    ]  # fmt: skip
    for name, counts in roles:
        row = [f"{counts[c]:.0f}" if counts[c] >= 0.5 else "" for c in COLUMNS]
        whole = sum(counts[c] for c in COLUMNS if c != "move")
        lines.append(f"| {name} | " + " | ".join(row) + f" | {whole:.0f} |")
    busy = cycles(variant, arch, roles)
    bound = max(busy, key=lambda unit: busy[unit])
    lines += ["", "| unit | clocks a tile | busy |", "|---|---|---|"]
    for unit, clocks in busy.items():
        lines.append(f"| {unit} | {clocks:.0f} | {100 * clocks / busy[bound]:.0f} % |")
    share = busy["tensor cores"] / busy[bound]
    lines += ["", f"Bound by {bound}: at best {100 * share:.0f} % of the tensor cores' peak.", ""]
    return "\n".join(lines)


def item_clocks(variant: KernelVariant, seqlen: int, clocks: float) -> list[float]:
    """Of each Q tile of a head of self-attention, `clocks` for 128 x 128 scores."""
    found = []
    for first in range(0, seqlen, variant.tile_q):
        keys = min(first + variant.tile_q, seqlen) if variant.causal else seqlen
        tiles = -(-keys // variant.tile_k)
        found.append(clocks * variant.tile_q * variant.tile_k * tiles / (128 * 128))
    return found


def slowest_block(items: list[float], heads: int, processors: int, *, causal: bool) -> float:
    """Clocks of the block with the most work: items in turn, under a causal mask pairs of them."""
    n = len(items)
    turns = items * heads
    if causal:
        turns = [items[n - 1 - i] + items[i] for i in range(n // 2)] * heads
        turns += [items[n // 2]] * (heads if n % 2 else 0)
    return max(sum(turns[block::processors]) for block in range(min(processors, len(turns))))


def beside(report: dict[str, Any], arch: str = "sm_90a", processors: int = 132) -> str:
    """The model's time for each line of a bench's report that has a clock, and the card's."""
    lines = ["| case | clock, MHz | card, us | model, us | model / card |", "|---|---|---|---|---|"]
    dense = [
        v
        for v in variants(arch)
        if v.operation == "fmha_fwd" and v.dtype == "bf16" and not (v.strategy or v.split_kv)
    ]
    clocks = {}
    for line in report["lines"]:
        if not line.get("mhz"):
            continue
        head_dim, seqlen, mask = re.fullmatch(r"d(\d+) s(\d+) (\w+)", line["case"]).groups()  # type: ignore[union-attr]
        named = {v.causal: v for v in dense if v.head_dim == int(head_dim) == v.head_dim_v}
        if head_dim not in clocks:
            busy = cycles(named[False], arch, per_tile(named[False], arch))
            clocks[head_dim] = max(busy.values())
        variant = named[mask == "causal"]
        items = item_clocks(variant, int(seqlen), clocks[head_dim])
        heads = bench.TOKENS // int(seqlen) * (bench.HIDDEN // int(head_dim))
        slowest = slowest_block(items, heads, processors, causal=variant.causal)
        card, model = line["seconds"]["cufmha"] * 1e6, slowest / line["mhz"]
        row = (
            line["case"],
            f"{line['mhz']:.0f}",
            f"{card:.1f}",
            f"{model:.1f}",
            f"{model / card:.2f}",
        )
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    parser.add_argument("--against", type=Path, help="a report of scripts/bench.py device")
    options = parser.parse_args()
    if options.against:
        print(beside(json.loads(options.against.read_text())))
        return
    tables = "\n".join(
        report(arch, variant)
        for arch, target in CHIPS.items()
        for variant in variants(target)
        if variant.operation == "fmha_fwd"
        and not (variant.strategy or variant.split_kv)
        and variant.dtype == "bf16"
        and not variant.causal
    )
    print(tables)
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, _ = text.partition(MARK)
        DOCUMENT.write_text(before + MARK + "\n" + re.sub(r"\n{3,}", "\n\n", tables), "utf-8")


if __name__ == "__main__":
    main()
