#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the probes of tests/emu/probes on a card and stores what it answered.

    python scripts/record_golden.py --out tests/emu/golden              # on a Hopper card
    python scripts/record_golden.py --device emulator --compare tests/emu/golden
    python scripts/record_golden.py --device cuda --compare tests/emu/golden --target sm_100a

The last runs them on another card, but for what only the recorded one has.

One compressed .npz per family holds every output of every probe; descriptors.json holds the 128
bytes that the driver makes of each tensor map; about.json says which card, driver and day.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emu")]

import probes  # noqa: E402
from probes.base import Descriptor, Output, Probe  # noqa: E402


class Runner(Protocol):
    target: str

    def run(self, probe: Probe) -> list[np.ndarray]: ...


class EmulatorRunner:
    target = "sm_90a"

    def run(self, probe: Probe) -> list[np.ndarray]:
        from probes.replay import emulate

        return emulate(probe)


class CardRunner:
    """Each probe through the driver: PTX text in, outputs back, one module at a time.

    `target` takes the place of sm_90a in the text, for cards that do not run that.
    """

    target = "sm_90a"

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.call(driver.cuInit(0))
        self.device = self.call(driver.cuDeviceGet(0))
        context = self.call(driver.cuDevicePrimaryCtxRetain(self.device))
        self.call(driver.cuCtxSetCurrent(context))

    def call(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"{result[0]!r}")
        return result[1] if len(result) == 2 else result[1:]

    def run(self, probe: Probe) -> list[np.ndarray]:
        driver = self.driver
        text = probe.text.replace(".target sm_90a", f".target {self.target}")
        module = self.call(driver.cuModuleLoadData(text.encode() + b"\0"))
        function = self.call(driver.cuModuleGetFunction(module, b"probe"))
        if probe.shared_bytes:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call(driver.cuFuncSetAttribute(function, limit, probe.shared_bytes))
        hosts = [x.fresh() if isinstance(x, Output) else x for x in probe.arguments]
        pointers, values = {}, []
        for number, host in enumerate(hosts):
            if isinstance(host, np.ndarray):
                pointers[number] = int(self.call(driver.cuMemAlloc(max(host.nbytes, 16))))
                self.call(driver.cuMemcpyHtoD(pointers[number], host, host.nbytes))
        for number, host in enumerate(hosts):
            if isinstance(host, Descriptor):
                values.append(np.frombuffer(self.encode(host.spec, pointers[host.of]), np.uint8))
            else:
                values.append(np.array([pointers[number]], np.uint64))
        table = np.array([value.ctypes.data for value in values], np.uint64)
        launch = (function, probe.grid, 1, 1, probe.block, 1, 1, probe.shared_bytes, 0)
        self.call(driver.cuLaunchKernel(*launch, table.ctypes.data, 0))
        self.call(driver.cuCtxSynchronize())
        answers = []
        for number, (argument, host) in enumerate(zip(probe.arguments, hosts, strict=True)):
            if isinstance(argument, Output):
                self.call(driver.cuMemcpyDtoH(host, pointers[number], host.nbytes))
                answers.append(host)
        for pointer in pointers.values():
            self.call(driver.cuMemFree(pointer))
        self.call(driver.cuModuleUnload(module))
        return answers

    def encode(self, spec: Any, address: int) -> bytes:
        """The descriptor as the driver writes it, without any workaround of ours."""
        driver, codes = self.driver, spec.driver_codes()
        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        encoded = self.call(
            driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType(codes["dtype"]),
                spec.rank,
                address,
                [wide(x) for x in spec.dims],
                [wide(x) for x in spec.strides or (16,)],  # rank 1 too wants a pointer here
                [narrow(x) for x in spec.box],
                [narrow(x) for x in spec.steps],
                driver.CUtensorMapInterleave(codes["interleave"]),
                driver.CUtensorMapSwizzle(codes["swizzle"]),
                driver.CUtensorMapL2promotion(codes["l2_promotion"]),
                driver.CUtensorMapFloatOOBfill(codes["oob_fill"]),
            )
        )
        return ctypes.string_at(encoded.getPtr(), 128)

    def about(self) -> dict[str, str]:
        name = self.call(self.driver.cuDeviceGetName(128, self.device))
        version = self.call(self.driver.cuDriverGetVersion())
        return {
            "command": " ".join(["python", *sys.argv]),
            "card": name.split(b"\0")[0].decode(),
            "cuda": f"{version // 1000}.{version % 1000 // 10}",
            "date": str(datetime.date.today()),
        }


def isolated(family: str, out: Path) -> int:
    """As `record`, each probe in a process of its own: a fault ends the process's context."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    answers: dict[str, np.ndarray] = {}
    failed = 0
    names = [probe.name for probe in probes.family(family)]
    context = get_context("spawn")
    with ProcessPoolExecutor(8, mp_context=context, max_tasks_per_child=1) as pool:
        results = pool.map(run_one, [family] * len(names), range(len(names)))
        for name, result in zip(names, results, strict=True):
            if isinstance(result, str):
                failed += 1
                print(f"{family}: {name}: {result}", flush=True)
                continue
            for number, answer in enumerate(result):
                answers[f"{name}|{number}"] = answer
    np.savez_compressed(out / f"{family}.npz", **answers)
    print(f"{family}: {len(answers)} answers", flush=True)
    return failed


def run_one(family: str, number: int) -> list[np.ndarray] | str:
    try:
        return CardRunner().run(probes.family(family)[number])
    except RuntimeError as error:
        return str(error)


def record(runner: Runner, families: list[str], out: Path) -> int:
    """Stores every family's answers; returns how many probes failed."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for family in families:
        answers: dict[str, np.ndarray] = {}
        for probe in probes.family(family):
            try:
                for number, answer in enumerate(runner.run(probe)):
                    answers[f"{probe.name}|{number}"] = answer
            except RuntimeError as error:
                failed += 1
                print(f"{family}: {probe.name}: {str(error)[:300]}", flush=True)
        np.savez_compressed(out / f"{family}.npz", **answers)
        print(f"{family}: {len(answers)} answers", flush=True)
    return failed


def descriptors(runner: CardRunner, out: Path) -> None:
    """Every tensor map of the probes and a sweep of fields, at a fixed address, as hex."""
    from probes.descriptors import ADDRESS, SPECS

    table = []
    for spec in SPECS:
        try:
            answer = runner.encode(spec, ADDRESS).hex()
        except RuntimeError as error:
            answer = str(error)
        table.append({"spec": repr(spec), "address": ADDRESS, "bytes": answer})
    (out / "descriptors.json").write_text(json.dumps(table, indent=1) + "\n")
    print(f"descriptors: {len(table)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the answers")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--family", action="append", choices=probes.FAMILIES)
    parser.add_argument("--isolate", action="store_true", help="each probe in its own process")
    parser.add_argument("--compare", type=Path, help="compare with the answers in this folder")
    parser.add_argument("--target", default="sm_90a", help="with --compare: write programs for it")
    arguments = parser.parse_args()
    families = arguments.family or list(probes.FAMILIES)
    if arguments.compare:
        from probes.replay import differences

        chosen = EmulatorRunner() if arguments.device == "emulator" else CardRunner()
        chosen.target = arguments.target
        lines = [
            line
            for family in families
            for line in differences(family, arguments.compare, chosen.run)
        ]
        print("\n".join(lines) or "every answer agrees")
        return bool(lines)
    if arguments.isolate:
        arguments.out.mkdir(parents=True, exist_ok=True)
        return bool(sum(isolated(family, arguments.out) for family in families))
    runner = EmulatorRunner() if arguments.device == "emulator" else CardRunner()
    failed = record(runner, families, arguments.out)
    if isinstance(runner, CardRunner):
        descriptors(runner, arguments.out)
        about = json.dumps(runner.about(), indent=1)
        (arguments.out / "about.json").write_text(about + "\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
