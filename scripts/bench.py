#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward on a card beside FlashAttention-2 and cuDNN (torch) and FlashAttention-3.

    FA3_LIBRARY=FOLDER python scripts/bench.py device --out docs/bench/h200-forward.json
    python scripts/bench.py host --out docs/bench/h200-host.json
    python scripts/bench.py table docs/bench/h200-forward.json

FA3_LIBRARY names a folder with libdew_flash_attn3.so (from the wheel dew-flash-attn-cu13), which is
called through JAX. TFLOP/s count 4·batch·heads·seqlen²·head_dim, halved under a causal mask. Few
queries against many keys are timed in microseconds, with keys split among processors and without.

Device time: each contender in turn gets a burst of about 0.1 s behind an untimed lead-in as long,
so that it runs at the clock it sustains; the median of several rounds, by CUDA events, over
rotating inputs larger than the L2 cache. Host time: a loop of calls on a small problem, with the
card keeping up.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave memory to torch

TOKENS, HIDDEN, SETS = 16384, 2048, 3


@dataclass(frozen=True)
class Case:
    """Self-attention over (batch, seqlen, heads, head_dim), all heads together HIDDEN wide."""

    seqlen: int
    head_dim: int
    causal: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return TOKENS // self.seqlen, self.seqlen, HIDDEN // self.head_dim, self.head_dim

    @property
    def flops(self) -> float:
        batch, seqlen, heads, head_dim = self.shape
        return 4.0 * batch * heads * seqlen**2 * head_dim / (2 if self.causal else 1)

    def __str__(self) -> str:
        return f"d{self.head_dim} s{self.seqlen} {'causal' if self.causal else 'full'}"


@dataclass(frozen=True)
class FewQueries:
    """Few queries and heads against many keys, what splitting keys is for; in microseconds."""

    seqlen: int
    keys: int
    heads: int
    head_dim: int
    causal: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, self.seqlen, self.heads, self.head_dim

    @property
    def shape_k(self) -> tuple[int, int, int, int]:
        return 1, self.keys, self.heads, self.head_dim

    def __str__(self) -> str:
        return f"d{self.head_dim} h{self.heads} q{self.seqlen} keys {self.keys}"


SHEET: list[Case | FewQueries] = [
    *(
        Case(seqlen, head_dim, causal)
        for head_dim, seqlen, causal in itertools.product(
            (64, 128), (512, 2048, 8192, 16384), (False, True)
        )
    ),
    *(
        FewQueries(seqlen, keys, heads, head_dim)
        for head_dim, (seqlen, keys, heads) in itertools.product(
            (64, 128), ((128, 16384, 4), (1, 100_000, 1), (1, 8192, 32), (512, 4096, 8))
        )
    ),
]


# ---- contenders: each turns a case into a callable that enqueues one launch


def ours(case: Case | FewQueries, num_splits: int | None = None) -> Callable[[], object]:
    import torch

    import cufmha

    launches = []
    for q, k, v in torch_sets(case):
        out = torch.empty_like(q)
        lse = torch.empty(case.shape[0], case.shape[2], case.seqlen, device="cuda")
        spec = cufmha.AttentionSpec.of(q, k, v, causal=case.causal, lse=True)
        plan = cufmha.plan(spec, cufmha.ProblemShape.of(q, k, v), num_splits=num_splits)
        launches.append(plan.bind(q, k, v, out, lse))
    turn = itertools.cycle(launches)
    return lambda: next(turn)()


def fa2(case: Case | FewQueries) -> Callable[[], object]:
    return torch_sdpa(case, "FLASH_ATTENTION")


def cudnn(case: Case | FewQueries) -> Callable[[], object]:
    return torch_sdpa(case, "CUDNN_ATTENTION")


def shapes(case: Any) -> tuple[tuple[int, ...], ...]:
    """Of q, k and v."""
    keys = getattr(case, "shape_k", case.shape)
    return case.shape, keys, keys


def torch_sets(case: Case | FewQueries) -> list[list[Any]]:
    import torch

    rng = torch.Generator("cuda").manual_seed(0)
    draw = functools.partial(torch.randn, generator=rng, device="cuda", dtype=torch.bfloat16)
    return [[draw(shape) for shape in shapes(case)] for _ in range(SETS)]


def torch_sdpa(case: Case | FewQueries, backend: str) -> Callable[[], object]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    turn = itertools.cycle([[x.transpose(1, 2) for x in qkv] for qkv in torch_sets(case)])

    def launch() -> object:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(*next(turn), is_causal=case.causal)

    return launch


class Fa3:
    """FlashAttention-3 through JAX: one program of `launches` launches, timed on torch's stream.

    JAX keeps its stream to itself: a stream of ours waits, on the card, for the program's newest
    result and records the events there.
    """

    launches = 6

    def __init__(self, case: Case | FewQueries) -> None:
        import jax
        import torch

        register_fa3()
        keys = iter(jax.random.split(jax.random.key(0), 3 * SETS))
        self.sets = [
            tuple(jax.random.normal(next(keys), shape, "bfloat16") for shape in shapes(case))
            for _ in range(SETS)
        ]

        forward = self.program_of(case)

        def program(sets: Any) -> Any:
            results = [forward(*sets[i % SETS]) for i in range(self.launches)]
            return results[-1][1]

        self.program = jax.jit(program).lower(self.sets).compile()
        self.stream = torch.cuda.Stream()
        self()

    def program_of(self, case: Any) -> Callable[..., Any]:
        """The forward that the program launches."""
        return functools.partial(fa3_forward, case=case)

    def __call__(self) -> None:
        self.last = self.program(self.sets)

    def seconds(self, calls: int) -> float:
        events = cuda_events()
        for event in events:
            for _ in range(calls):
                self()
            self.last.__dlpack__(stream=self.stream.cuda_stream)
            event.record(self.stream)
        events[1].synchronize()
        return events[0].elapsed_time(events[1]) * 1e-3


def fa3_forward(q: Any, k: Any, v: Any, case: Case | FewQueries) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    batch, seqlen, heads, head_dim = case.shape
    shapes = [(batch, heads, seqlen), (1, 1, 1, 1), (1, 1, 1)]
    results = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
    results += [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    unbounded = np.int64(-1)
    call = jax.ffi.ffi_call("fa3_fwd", results, has_side_effect=True)  # or XLA merges equal calls
    return call(
        q,
        k,
        v,
        softmax_scale=np.float64(head_dim**-0.5),
        is_causal=case.causal,
        window_size_left=unbounded,
        window_size_right=unbounded,
    )


@functools.cache
def register_fa3() -> None:
    import jax

    library = next(Path(os.environ["FA3_LIBRARY"]).rglob("libdew_flash_attn3.so"))
    for name in ("fwd", "varlen_fwd"):
        target = getattr(ctypes.CDLL(str(library)), f"dew_flash3_mha_{name}")
        jax.ffi.register_ffi_target(f"fa3_{name}", jax.ffi.pycapsule(target), platform="CUDA")


# ---- device time


def cuda_events() -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]


def event_seconds(launch: Callable[[], object], calls: int) -> float:
    """Seconds on the card of `calls` launches, behind as many untimed ones."""
    start, end = cuda_events()
    for event in (start, end):
        for _ in range(calls):
            launch()
        event.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def interleaved(
    contenders: dict[str, Any], *, rounds: int, burst: float
) -> dict[str, float | None]:
    """Median seconds a launch of each contender, one burst each per round; None where it raised."""
    samples: dict[str, list[float] | None] = {name: [] for name in contenders}
    calls: dict[str, int] = {}
    for round_number in range(rounds + 1):
        for name, contender in contenders.items():
            times = samples[name]
            if times is None:
                continue
            seconds = getattr(contender, "seconds", functools.partial(event_seconds, contender))
            launches = getattr(contender, "launches", 1)
            try:
                if name not in calls:
                    few = math.ceil(4 / launches)
                    seconds(few)
                    calls[name] = max(few, math.ceil(burst * few / seconds(few)))
                once = seconds(calls[name]) / (calls[name] * launches)
            except Exception as error:  # a rival that fails is reported, and the rest goes on
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
                samples[name] = None
                continue
            if round_number:  # the first round warms up
                times.append(once)
    return {name: times and statistics.median(times) for name, times in samples.items()}


def device_times(arguments: argparse.Namespace) -> None:
    import torch

    makers: dict[str, Callable[[Any], Any]] = {"cufmha": ours, "fa2": fa2, "cudnn": cudnn}
    if "FA3_LIBRARY" in os.environ:
        makers["fa3"] = Fa3
    report = about()
    report["lines"] = []
    for case in SHEET:
        if arguments.only and arguments.only not in str(case):
            continue
        contenders = {name: make(case) for name, make in makers.items()}
        if isinstance(case, FewQueries):
            contenders["cufmha unsplit"] = ours(case, num_splits=1)
        seconds = interleaved(contenders, rounds=arguments.rounds, burst=arguments.burst)
        line: dict[str, Any] = {"case": str(case), "seconds": seconds}
        if isinstance(case, Case):
            shown = {name: t and round(case.flops / t / 1e12, 1) for name, t in seconds.items()}
            line["tflops"] = shown
        else:
            shown = {name: t and round(t * 1e6, 1) for name, t in seconds.items()}
        report["lines"].append(line | {"mhz": settled_mhz(contenders["cufmha"])})
        print(f"{case!s:20}", *(f"{name} {value}" for name, value in shown.items()), flush=True)
        save(arguments.out, report)
        del contenders
        torch.cuda.empty_cache()


def settled_mhz(launch: Callable[[], object], seconds: float = 0.6) -> float | None:
    """The processors' clock that the card settles at under a kernel; None if it is not told."""
    import torch

    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms", "20"]
    try:
        reader = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    except OSError:
        return None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            launch()
        torch.cuda.synchronize()
    reader.terminate()
    told = [float(line) for line in reader.communicate()[0].splitlines() if line.strip().isdigit()]
    return statistics.median(told[len(told) // 2 :]) if told else None


# ---- host time


def host_times(arguments: argparse.Namespace) -> None:
    """Microseconds of a call on a problem of one tile, with the same and with fresh pointers."""
    import torch

    import cufmha

    shape = (1, 128, 1, 128)
    draw = functools.partial(torch.randn, shape, device="cuda", dtype=torch.bfloat16)
    sets = [[draw() for _ in range(4)] for _ in range(64)]
    q, k, v, out = sets[0]
    plan = cufmha.plan(cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v))
    bound = plan.bind(q, k, v, out)
    turn = itertools.cycle(sets)
    fresh = functools.partial(next, turn)
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def rebind() -> None:
        q, k, v, out = fresh()
        bound.rebind(q=q, k=k, v=v, out=out)
        bound()

    calls: dict[str, Callable[[], object]] = {
        "attention(q, k, v), same arrays": lambda: cufmha.attention(q, k, v),
        "attention(q, k, v, out=out), same arrays": lambda: cufmha.attention(q, k, v, out=out),
        "attention(q, k, v), fresh arrays": lambda: cufmha.attention(*fresh()[:3]),
        "Plan.run(q, k, v, out=out), same arrays": lambda: plan.run(q, k, v, out=out),
        "Plan.run(q, k, v, out=out), fresh arrays": lambda: plan.run(*(s := fresh())[:3], out=s[3]),
        "BoundLaunch()": bound,
        "BoundLaunch.rebind(...) and call, fresh arrays": rebind,
        "torch scaled_dot_product_attention": lambda: sdpa(*heads_first),
    }
    report = about()
    report["lines"] = []
    for name, call in calls.items():
        microseconds = host_microseconds(call)
        report["lines"].append({"case": name, "microseconds": round(microseconds, 2)})
        print(f"{microseconds:8.2f} us  {name}", flush=True)
    save(arguments.out, report)


def host_microseconds(call: Callable[[], object], calls: int = 200, rounds: int = 30) -> float:
    """Median over rounds of the host's time a call, each round with an empty queue."""
    import torch

    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


# ---- reports


def about() -> dict[str, Any]:
    import torch

    import cufmha

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {
        "command": " ".join(["python", *sys.argv]),
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "date": str(datetime.date.today()),
        "cufmha": cufmha.__version__,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def save(path: Path | None, report: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


def print_table(arguments: argparse.Namespace) -> None:
    """A Markdown table of a report, with cufmha's share of FlashAttention-3."""
    report = json.loads(arguments.report.read_text())
    print(f"{report['card']}, driver {report['driver']}, {report['date']}: `{report['command']}`\n")
    if "microseconds" in report["lines"][0]:
        print("| call | µs |\n|---|---|")
        for line in report["lines"]:
            print(f"| {line['case']} | {line['microseconds']} |")
        return
    whole = [line for line in report["lines"] if "tflops" in line]
    names = list(whole[0]["tflops"]) if whole else []
    print(f"| bf16, TFLOP/s | {' | '.join(names)} | cufmha / fa3 |")
    print("|---" * (len(names) + 2) + "|")
    for line in whole:
        rates = line["tflops"]
        share = f"{rates['cufmha'] / rates['fa3']:.0%}" if rates.get("fa3") else "–"
        cells = " | ".join("–" if rates[name] is None else f"{rates[name]:.0f}" for name in names)
        print(f"| {line['case']} | {cells} | {share} |")
    few = [line["seconds"] for line in report["lines"] if "tflops" not in line]
    if few:
        print(f"\n| bf16, microseconds | {' | '.join(few[0])} |")
        print("|---" * (len(few[0]) + 1) + "|")
    for line in report["lines"]:
        if "tflops" not in line:
            times = line["seconds"].values()
            cells = " | ".join("–" if t is None else f"{t * 1e6:.1f}" for t in times)
            print(f"| {line['case']} | {cells} |")


def command_line(
    about_it: str,
    device_times: Callable[[argparse.Namespace], None],
    host_times: Callable[[argparse.Namespace], None],
    print_table: Callable[[argparse.Namespace], None],
) -> None:
    """The commands device, host and table."""
    parser = argparse.ArgumentParser(description=about_it.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    device = commands.add_parser("device", help="TFLOP/s beside the rivals")
    device.add_argument("--out", type=Path)
    device.add_argument(
        "--only", help="only cases whose name holds this text, such as 'd128 s8192'"
    )
    device.add_argument("--rounds", type=int, default=5)
    device.add_argument("--burst", type=float, default=0.1, help="seconds")
    device.set_defaults(run=device_times)
    host = commands.add_parser("host", help="microseconds of a call on the host")
    host.add_argument("--out", type=Path)
    host.set_defaults(run=host_times)
    table = commands.add_parser("table", help="a Markdown table of a report")
    table.add_argument("report", type=Path)
    table.set_defaults(run=print_table)
    arguments = parser.parse_args()
    arguments.run(arguments)


def main() -> None:
    command_line(__doc__ or "", device_times, host_times, print_table)


if __name__ == "__main__":
    main()
