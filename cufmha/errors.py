# SPDX-License-Identifier: Apache-2.0
"""Every exception of the package: all are `CufmhaError`, and each is a builtin error too."""

from __future__ import annotations

from collections.abc import Sequence


class CufmhaError(Exception):
    """Base of every error that cufmha raises."""


class ArgumentError(CufmhaError, ValueError):
    """An argument breaks a rule: the text names the argument, the rule and the value."""


class DTypeError(CufmhaError, TypeError):
    """An argument is of the wrong kind or dtype."""


class UnsupportedError(CufmhaError, NotImplementedError):
    """A well-formed request that no kernel, device or architecture here serves."""


class PlanError(CufmhaError, RuntimeError):
    """A plan or a bound launch is used in a state that does not allow it."""


class DriverError(CufmhaError, RuntimeError):
    """The CUDA driver is missing, too old, or refused a call."""


class OutOfMemoryError(DriverError, MemoryError):
    """The card has not as much memory left as was asked for."""


class AssemblyError(CufmhaError, RuntimeError):
    """ptxas, nvJitLink or the driver's own compiler refused a kernel."""


class PtxSyntaxError(CufmhaError, SyntaxError):
    """Text that is no PTX. Carries `filename`, `lineno`, `offset` (both from 1) and `text`."""

    def __init__(
        self, message: str, *, filename: str = "<ptx>", line: int, column: int, text: str = ""
    ) -> None:
        super().__init__(message, (filename, line, column, text))


class UnsupportedTarget(UnsupportedError):
    """Text whose `.target` the chosen architecture does not run, or an instruction it lacks."""


class EmulationError(CufmhaError, RuntimeError):
    """The emulated program did something that the PTX ISA leaves undefined or hardware refuses.

    Attributes
    ----------
    kernel : str | None
        Name of the entry.
    line : int | None
        Source line (from 1) of the instruction.
    block, warp : int | None
        Linear block index in the grid and warp index in the block.
    lanes : tuple[int, ...]
        Lanes of the warp at fault; empty if the whole warp or no lane in particular.
    address : int | None
        Offending address in its own state space.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str | None = None,
        line: int | None = None,
        block: int | None = None,
        warp: int | None = None,
        lanes: Sequence[int] = (),
        address: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kernel = kernel
        self.line = line
        self.block = block
        self.warp = warp
        self.lanes = tuple(int(lane) for lane in lanes)
        self.address = None if address is None else int(address)

    def locate(
        self, *, kernel: str, line: int, block: int | None = None, warp: int | None = None
    ) -> EmulationError:
        """Fill in what the raiser did not know; the machine calls this once on the way out."""
        self.kernel = self.kernel or kernel
        self.line = line if self.line is None else self.line
        self.block = block if self.block is None else self.block
        self.warp = warp if self.warp is None else self.warp
        return self

    def __str__(self) -> str:
        where = [self.kernel or "", "" if self.line is None else f"line {self.line}"]
        where += ["" if self.block is None else f"block {self.block}"]
        where += ["" if self.warp is None else f"warp {self.warp}"]
        if self.lanes:
            where.append(f"lanes {_ranges(self.lanes)}")
        if self.address is not None:
            where.append(f"address {self.address:#x}")
        place = ", ".join(part for part in where if part)
        return f"{place}: {self.message}" if place else self.message


def _ranges(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> '0-2,5'."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)


class InvalidLaunch(EmulationError):
    """Grid, block, cluster, shared memory or arguments that the entry cannot be launched with."""


class UnsupportedInstruction(EmulationError):
    """A well-formed instruction that the emulator does not execute (yet)."""


class IllegalInstruction(EmulationError):
    """Operands or modifiers that the ISA forbids, found when the instruction executes."""


class OutOfBounds(EmulationError):
    """An access outside every array, variable or window of its state space."""


class Misaligned(EmulationError):
    """An address that is no multiple of the access size or of the operand's required alignment."""


class WrongSpace(EmulationError):
    """An address of another state space than the instruction names."""


class Uninitialized(EmulationError):
    """A register, shared, tensor or global memory that nobody wrote is used."""


class ReadOnly(EmulationError):
    """A write to memory that the launch gave for reading."""


class HazardError(EmulationError):
    """Base of the ordering hazards: right by luck on some run, not by the ISA."""


class MissingProxyFence(HazardError):
    """Generic and async proxy touch the same bytes with no proxy fence between."""


class MissingTcgen05Wait(HazardError):
    """tcgen05.ld results or tcgen05.st data are used before tcgen05.wait."""


class MissingTcgen05Fence(HazardError):
    """tcgen05 operations of two threads are ordered by a barrier, but without tcgen05.fence."""


class MissingWgmmaWait(HazardError):
    """Registers of a wgmma in flight are touched before wgmma.wait_group."""


class MissingWgmmaFence(HazardError):
    """Registers written by ordinary instructions enter wgmma without wgmma.fence."""


class AsyncReuse(HazardError):
    """A buffer that asynchronous work still reads or writes is touched."""


class DataRace(HazardError):
    """Two warps touch the same bytes, one writing, and no barrier orders them."""


class BulkStoreAtExit(HazardError):
    """A thread exits while its bulk stores still read shared memory."""


class PhaseError(HazardError):
    """An mbarrier phase that cannot be waited for or arrived on as asked."""


class TransactionCount(EmulationError):
    """An mbarrier's transaction count leaves its range, or ends a phase in the wrong state."""


class ConvergenceError(EmulationError):
    """An `.aligned` or `.sync` instruction is executed by part of its threads."""


class TmemAccess(EmulationError):
    """Tensor memory a warp may not touch, or that is not allocated."""


class TmemAllocation(EmulationError):
    """Misuse of tcgen05.alloc and dealloc, a leak at exit included."""


class DescriptorError(EmulationError):
    """A matrix, instruction or tensor-map descriptor that the hardware would misread."""


class RegisterPool(EmulationError):
    """setmaxnreg asks for more registers than the block was launched with."""


class Deadlock(EmulationError):
    """No warp can go on and no asynchronous work is left; the text says who waits for what."""
