# SPDX-License-Identifier: Apache-2.0
"""`Module`: PTX text loaded for a chip, and its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, EmulationError, InvalidLaunch, UnsupportedInstruction
from ..isa import nodes, parse
from ..isa.check import require_target
from . import ops as _ops  # noqa: F401  (registers every instruction)
from . import types
from .machine import Machine
from .memory import SHARED_START, Range
from .program import Program, Variable, variable_size
from .targets import target

RULES = ("isa", "hardware")
Dim = Sequence[int]


class Module:
    """PTX text, ready to launch on an emulated chip.

    Parameters
    ----------
    text : str
        A whole PTX module.
    arch : str
        The chip: "sm_90a", "sm_100a" or "sm_103a". Text for sm_100f runs on the last two.
    seed : int
        Chooses when asynchronous work is carried out and how warps are interleaved. 0: at once,
        in turn; odd seeds delay it as long as possible; even ones shuffle. A seed replays exactly.
    rules : str
        "isa": all that the PTX ISA demands. "hardware": what shipping kernels rely on.
    hazards : bool
        False switches the checks of ordering and initialization off, for speed.

    Raises
    ------
    PtxSyntaxError, UnsupportedTarget, UnsupportedInstruction, IllegalInstruction, ArgumentError
    """

    def __init__(
        self,
        text: str,
        arch: str = "sm_100a",
        *,
        seed: int = 0,
        rules: str = "isa",
        hazards: bool = True,
        filename: str = "<ptx>",
    ) -> None:
        if rules not in RULES:
            raise ArgumentError(f"rules: must be one of {', '.join(RULES)}, got {rules!r}")
        self.target = target(arch)
        self.seed, self.rules, self.hazards = seed, rules, hazards
        self.nodes = parse(text, filename)
        require_target(self.nodes, arch)
        self._globals: dict[str, np.ndarray] = {}
        self._programs: dict[str, Program] = {}

    @property
    def entries(self) -> list[str]:
        return [name for name, f in self.nodes.functions.items() if f.kind == "entry" and f.body]

    def program(self, entry: str) -> Program:
        """The compiled entry; compiled once."""
        if entry not in self._programs:
            function = self.nodes.functions.get(entry)
            if function is None or function.kind != "entry" or function.body is None:
                raise InvalidLaunch(
                    f"entry {entry!r} is not defined; there are {', '.join(self.entries) or 'none'}"
                )
            variables, static, align = self._variables()
            self._programs[entry] = Program(
                self.nodes, function, variables, arch=self.target.name, rules=self.rules,
                hazards=self.hazards, shared_static=static, shared_align=align,
            )  # fmt: skip
        return self._programs[entry]

    def _variables(self) -> tuple[dict[str, Variable], int, int]:
        """Module variables; shared ones get offsets, dynamic ones −1, global ones memory."""
        found: dict[str, Variable] = {}
        at, align = SHARED_START, 16
        for item in self.nodes.items:
            if not isinstance(item, nodes.Variable):
                continue
            size = variable_size(item)
            own = item.align or types.width(item.type) // 8
            if item.space == "shared" and item.linkage == "extern" and size == 0:
                align = max(align, own)
                found[item.name] = Variable("shared", -1, 0)
            elif item.space == "shared":
                at = -(-at // own) * own
                align = max(align, own)
                found[item.name] = Variable("shared", at, size)
                at += size
            elif item.space in ("global", "const"):
                found[item.name] = Variable("global", self._place(item, size, own), size)
        return found, at, align

    def _place(self, item: nodes.Variable, size: int, align: int) -> int:
        """Host memory for a global or constant variable, initialized."""
        if item.name not in self._globals:
            raw = np.zeros(size + align, np.uint8)
            start = -raw.ctypes.data % align
            self._globals[item.name] = raw[start : start + size]
            if item.initializer is not None:
                values = _initial_bytes(item, self._globals)
                self._globals[item.name][: len(values)] = values
        return int(self._globals[item.name].ctypes.data)

    # ---- launching

    def launch(
        self,
        entry: str,
        *,
        grid: Dim = (1, 1, 1),
        block: Dim = (1, 1, 1),
        args: Sequence[Any] = (),
        cluster: Dim = (1, 1, 1),
        dynamic_smem_bytes: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Machine:
        """Run an entry to its end.

        `args` are, in the entry's order: a NumPy array (passed as a device pointer and written in
        place), a NumPy scalar (by value), bytes (a structure by value), or a pair
        (`cufmha.tma.TensorMapSpec`, array) (a tensor map over the array, by value).

        Raises an `EmulationError` for whatever the program does wrong.
        """
        from .arguments import pack

        program = self.program(entry)
        params, ranges = pack(program, args)
        return self.launch_raw(
            entry, grid=grid, block=block, params=params, ranges=ranges, cluster=cluster,
            dynamic_smem_bytes=dynamic_smem_bytes, progress=progress,
        )  # fmt: skip

    def launch_raw(
        self,
        entry: str,
        *,
        grid: Dim,
        block: Dim,
        params: bytes,
        ranges: Sequence[Range],
        cluster: Dim = (1, 1, 1),
        dynamic_smem_bytes: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Machine:
        """As `launch`, from the packed parameter block and the memory it may touch."""
        program = self.program(entry)
        shape = _Shape(self, program, grid, block, cluster, dynamic_smem_bytes)
        if len(params) < program.param_size:
            raise InvalidLaunch(
                f"{entry} takes {program.param_size} bytes of parameters, got {len(params)}"
            )
        own = [
            Range.of(array, writable=True, name=f"variable {name}")
            for name, array in self._globals.items()
        ]
        machine = Machine(
            program, self.target, grid=shape.grid, block=shape.block, cluster=shape.cluster,
            dynamic_smem_bytes=dynamic_smem_bytes, params=params, ranges=[*ranges, *own],
            seed=self.seed, progress=progress,
        )  # fmt: skip
        if shape.empty:
            return machine
        machine.run()
        return machine


class _Shape:
    """Grid, block and cluster held to the chip's and the entry's limits."""

    def __init__(
        self, module: Module, program: Program, grid: Dim, block: Dim, cluster: Dim, dynamic: int
    ) -> None:
        entry = program.entry
        self.grid, self.block, self.cluster = (_three(x) for x in (grid, block, cluster))
        self.empty = 0 in self.grid
        for name, dim, limits in (
            ("grid", self.grid, (2**31 - 1, 65535, 65535)),
            ("block", self.block, (1024, 1024, 64)),
        ):
            if any(not 0 <= d <= most for d, most in zip(dim, limits, strict=True)):
                raise InvalidLaunch(f"{name}: must be at most {limits}, got {dim}")
        threads = self.block[0] * self.block[1] * self.block[2]
        if not 1 <= threads <= 1024:
            raise InvalidLaunch(f"block: must have 1 to 1024 threads, got {threads}")
        required = entry.directive("reqntid")
        if required is not None:
            wanted = _three([int(x) for x in required])
            if wanted != self.block:
                raise InvalidLaunch(f"block: {entry.name} requires {wanted}, got {self.block}")
        most = entry.directive("maxntid")
        if most is not None and threads > np.prod([int(x) for x in most]):
            raise InvalidLaunch(f"block: {entry.name} allows {most}, got {self.block}")
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise InvalidLaunch(
                f"grid: must be a multiple of the cluster {self.cluster}, got {self.grid}"
            )
        if self.cluster[0] * self.cluster[1] * self.cluster[2] > 8:
            raise InvalidLaunch(f"cluster: at most 8 blocks, got {self.cluster}")
        total = program.shared_static - SHARED_START + dynamic
        if total > module.target.max_shared_bytes or dynamic < 0:
            raise InvalidLaunch(
                f"shared memory: at most {module.target.max_shared_bytes} bytes, "
                f"got {program.shared_static - SHARED_START} static and {dynamic} dynamic"
            )


def _three(dim: Dim) -> tuple[int, int, int]:
    values = [int(x) for x in dim]
    if not 1 <= len(values) <= 3:
        raise InvalidLaunch(f"a dimension has 1 to 3 extents, got {tuple(dim)}")
    values += [1] * (3 - len(values))
    return values[0], values[1], values[2]


def _initial_bytes(item: nodes.Variable, placed: dict[str, np.ndarray]) -> np.ndarray:
    dtype = types.dtype(item.type)
    values: list[np.ndarray] = []

    def add(value: Any) -> None:
        if isinstance(value, tuple):
            for inner in value:
                add(inner)
        elif isinstance(value, nodes.Integer | nodes.Float):
            values.append(types.constant(value, item.type)[:1])
        elif isinstance(value, nodes.Name) and value.name in placed:
            values.append(np.array([placed[value.name].ctypes.data], dtype))
        else:
            raise UnsupportedInstruction(f"initializer of {item.name}: {value}")

    add(item.initializer)
    return np.concatenate(values).view(np.uint8)


__all__ = ["EmulationError", "Module"]
