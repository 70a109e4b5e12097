# SPDX-License-Identifier: Apache-2.0
"""The card's side of a launch against stand-in driver bindings: what it calls, what it refuses."""

from __future__ import annotations

import ctypes
import enum
import sys
import types
from dataclasses import replace

import pytest

import cufmha
from cufmha import cache
from cufmha.array.dtype import DType
from cufmha.array.view import TensorView
from cufmha.device import cuda
from cufmha.errors import AssemblyError, DriverError, PlanError, UnsupportedError
from cufmha.planning import Operands


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class Names:
    """Stands for any enum: each name is its own value."""

    def __getattr__(self, name):
        return name

    def __call__(self, value):
        return value


class TensorMap:
    def __init__(self):
        self.raw = ctypes.create_string_buffer(128)

    def getPtr(self):
        return ctypes.addressof(self.raw)


class Bindings(types.ModuleType):
    """Records calls; `facts` holds what the driver answers."""

    CUresult = Status
    CUtensorMap = TensorMap
    cuuint64_t = cuuint32_t = int

    def __init__(self):
        super().__init__("driver")
        self.calls, self.current = [], 0
        self.facts = {
            "version": 13000, "init": Status(0), "cards": 1, "major": 9, "minor": 0,
            "processors": 132, "registers": 168, "local": 0, "load": Status(0), "log": b"",
            "launch": Status(0), "refused": (),
        }  # fmt: skip
        for name in (
            "CUdevice_attribute", "CUfunction_attribute", "CUjit_option", "CUpointer_attribute",
            "CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle",
            "CUtensorMapL2promotion", "CUtensorMapFloatOOBfill", "CUevent_flags",
        ):  # fmt: skip
            setattr(self, name, Names())

    def cuDriverGetVersion(self):
        return (Status(0), self.facts["version"])

    def cuInit(self, flags):
        return (self.facts["init"],)

    def cuGetErrorName(self, status):
        return (Status(0), status.name.encode())

    def cuGetErrorString(self, status):
        return (Status(0), b"words about it")

    def cuDeviceGetCount(self):
        return (Status(0), self.facts["cards"])

    def cuDeviceGet(self, ordinal):
        return (Status(0), ordinal)

    def cuDeviceGetName(self, size, handle):
        return (Status(0), b"Card of cards\0\0")

    def cuDeviceGetAttribute(self, name, handle):
        word = next(w for w in ("MAJOR", "MINOR", "MULTIPROCESSOR") if w in name)
        key = {"MAJOR": "major", "MINOR": "minor", "MULTIPROCESSOR": "processors"}[word]
        return (Status(0), self.facts[key])

    def cuDevicePrimaryCtxRetain(self, handle):
        return (Status(0), 1000 + handle)

    def cuCtxGetDevice(self):
        return (Status(0), 0)

    def cuCtxGetCurrent(self):
        return (Status(0), self.current)

    def cuCtxPushCurrent(self, context):
        self.calls.append(("push", context))
        return (Status(0),)

    def cuCtxPopCurrent(self):
        self.calls.append(("pop",))
        return (Status(0), 0)

    def cuModuleLoadDataEx(self, image, count, options, values):
        self.calls.append(("load", image[:40]))
        values[0][: len(self.facts["log"])] = self.facts["log"]
        refused = image.startswith(self.facts["refused"])
        return (Status.CUDA_ERROR_INVALID_IMAGE if refused else self.facts["load"], 5)

    def cuModuleGetFunction(self, module, name):
        return (Status(0), 6)

    def cuFuncGetAttribute(self, name, function):
        return (Status(0), self.facts["registers" if "REGS" in name else "local"])

    def cuFuncSetAttribute(self, function, name, value):
        self.calls.append(("smem", value))
        return (Status(0),)

    def cuTensorMapEncodeTiled(self, *arguments):
        self.calls.append(("encode", arguments))
        made = TensorMap()
        made.raw.raw = arguments[2].to_bytes(8, "little") + b"\xff" * 120
        return (Status(0), made)

    def cuTensorMapReplaceAddress(self, made, address):
        made.raw.raw = address.to_bytes(8, "little") + made.raw.raw[8:]
        return (Status(0),)

    def cuLaunchKernel(self, *arguments):
        self.calls.append(("launch", arguments))
        return (self.facts["launch"],)


@pytest.fixture
def bindings(monkeypatch):
    fake = Bindings()
    package = types.ModuleType("cuda.bindings")
    package.driver = fake
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    for name, value in (("_driver", None), ("_version", 0), ("_cards", {})):
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.delenv("CUFMHA_KERNEL_DIR", raising=False)
    with cufmha.use_device("cuda"):
        yield fake


def view(pointer, *shape, dtype=DType.BF16):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return TensorView(pointer, shape, tuple(strides), dtype, ("cuda", 0), "dlpack", False, None)


def make_plan(**shape):
    spec = cufmha.AttentionSpec(num_heads_q=2, num_heads_kv=1, head_dim=128)
    sizes = {"batch": 3, "seqlen_q": 200, "seqlen_k": 90, **shape}
    return cufmha.plan(spec, cufmha.ProblemShape(**sizes))


def operands(base=1 << 20):
    kv = (3, 90, 1, 128)
    q, out = view(base, 3, 200, 2, 128), view(base + (4 << 20), 3, 200, 2, 128)
    return Operands(q, view(base + (8 << 20), *kv), view(base + (9 << 20), *kv), out, None)


def refused(kind, match, *, call=make_plan):
    with pytest.raises(kind, match=match) as caught:
        call()
    assert isinstance(caught.value, cufmha.errors.CufmhaError)


def test_an_old_driver_is_refused_with_both_versions(bindings):
    bindings.facts["version"] = 12040
    refused(DriverError, r"must be of CUDA 12\.8 or later, got 12\.4")


def test_a_driver_without_a_card_is_refused(bindings):
    bindings.facts["init"] = Status.CUDA_ERROR_NO_DEVICE
    refused(DriverError, "finds no card; without a card, use the emulator")


def test_a_missing_driver_is_refused(bindings, monkeypatch):
    def missing():
        raise RuntimeError("libcuda.so.1 was not found")

    monkeypatch.setattr(bindings, "cuDriverGetVersion", missing)
    refused(DriverError, r"no CUDA driver was found \(libcuda\.so\.1 was not found\); without")


def test_a_card_without_a_kernel_is_refused_by_name(bindings):
    bindings.facts.update(major=8, minor=6)
    refused(UnsupportedError, r"card 0 \(Card of cards\) has 8\.6")
    assert "8.6" in cuda.describe()["card 0"]


def test_more_registers_than_the_block_has_are_refused(bindings):
    """The waiting setmaxnreg would never return."""
    bindings.facts["registers"] = 160
    refused(AssemblyError, "its roles take .* would wait for the rest forever")


def test_spilled_registers_are_refused(bindings):
    bindings.facts["local"] = 16
    refused(AssemblyError, "16 bytes of local memory")


def test_a_compiler_error_names_the_templates_line(bindings):
    bindings.facts.update(
        load=Status.CUDA_ERROR_INVALID_PTX,
        log=b"ptxas application ptx input, line 200; error   : Unknown symbol 'x'\n",
    )
    refused(AssemblyError, r"CUDA_ERROR_INVALID_PTX.*\n.*line 200.*\n    \w+/\w+\.ptx:\d+: \S")


def test_a_load_during_capture_says_to_plan_before(bindings):
    bindings.facts["load"] = Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    refused(PlanError, "before the capture begins")


CUBIN = b"\x7fELF of the stand-in"


@pytest.fixture
def ptxas(tmp_path, monkeypatch):
    """Stands in for ptxas; its runs are lines of the file. The cache of kernels starts empty."""
    tool, runs = tmp_path / "ptxas", tmp_path / "runs"
    tool.write_text(
        f"""#!{sys.executable}
import sys
from pathlib import Path
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.88")
else:
    with Path({str(runs)!r}).open("a") as file:
        file.write("run\\n")
    Path(sys.argv[-1]).write_bytes({CUBIN!r})
"""
    )
    tool.chmod(0o755)
    monkeypatch.setenv("CUFMHA_PTXAS", str(tool))
    monkeypatch.setenv("CUFMHA_CACHE_DIR", str(tmp_path / "cache"))
    return runs


def load_as_another_process(bindings):
    """The origin of a kernel of a plan made by a process that has loaded nothing, and the loads."""
    cuda._cards.clear()
    bindings.calls.clear()
    origin = make_plan()._kernel.origin
    return origin, [call[1] for call in bindings.calls if call[0] == "load"]


def test_a_cubin_is_assembled_once_and_loaded_from_the_cache_after_that(bindings, ptxas):
    for _ in range(2):
        assert load_as_another_process(bindings) == ("a cubin by ptxas 13.0.88", [CUBIN])
    assert ptxas.read_text() == "run\n"


def test_a_corrupt_cubin_in_the_cache_is_never_loaded(bindings, ptxas):
    load_as_another_process(bindings)
    (path,) = cache.entries()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert load_as_another_process(bindings)[1] == [CUBIN]
    assert ptxas.read_text() == "run\nrun\n"


def test_a_cubin_that_the_driver_refuses_leaves_the_cache_and_the_ptx_is_loaded(bindings, ptxas):
    bindings.facts["refused"] = CUBIN
    origin, loads = load_as_another_process(bindings)
    assert loads[0] == CUBIN and loads[1].startswith(b".version") and len(loads) == 2
    assert origin == (
        "PTX, in place of a cubin by ptxas 13.0.88 "
        "(CUDA_ERROR_INVALID_IMAGE (words about it))"
    )
    assert cache.entries() == []


def test_a_cache_that_cannot_be_written_only_costs_time(bindings, ptxas, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CUFMHA_CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        assert load_as_another_process(bindings)[1] == [CUBIN]
    assert ptxas.read_text() == "run\nrun\n"


def test_neither_cubin_nor_ptx_names_both_and_the_templates_line(bindings, ptxas):
    bindings.facts["refused"] = (CUBIN, b".version")
    bindings.facts["log"] = b"ptxas application ptx input, line 200; error   : Unknown\n"
    places = r".*line 200.*\n    \w+/\w+\.ptx:\d"
    refused(AssemblyError, r"PTX, in place of a cubin by ptxas 13\.0\.88 .*\n" + places)


def test_a_launch_passes_every_parameter_and_the_stream(bindings):
    plan = make_plan()
    bindings.current = 1000
    bindings.calls.clear()
    plan._launch(operands())(77)
    kinds = [call[0] for call in bindings.calls]
    assert kinds == ["encode"] * 4 + ["launch"]
    function, *numbers = bindings.calls[-1][1]
    variant = plan.variant
    assert function == 6
    assert numbers[:7] == [plan.grid, 1, 1, variant.threads, 1, 1, variant.smem_bytes]
    stream, pointers, extra = numbers[7:]
    assert (stream, extra) == (77, 0)
    fields = plan._kernel.parameters.fields
    addresses = (ctypes.c_void_p * len(fields)).from_address(pointers)
    seen = {
        name: ctypes.string_at(address, field.size)
        for address, (name, field) in zip(addresses, fields.items(), strict=True)
    }
    assert int.from_bytes(seen["seqlen_q"], "little") == 200
    assert int.from_bytes(seen["o_map"][:8], "little") == operands().out.pointer
    assert int.from_bytes(seen["num_tiles"], "little") == plan.items


def test_other_addresses_are_patched_not_encoded(bindings):
    plan = make_plan()
    plan._launch(operands())
    bindings.current = 1000
    bindings.calls.clear()
    moved = operands(base=1 << 30)
    plan._launch(moved)(0)
    pointers = bindings.calls[-1][1][9]
    assert [call[0] for call in bindings.calls] == ["launch"]
    first = (ctypes.c_void_p * 1).from_address(pointers)[0]
    assert int.from_bytes(ctypes.string_at(first, 8), "little") == moved.q.pointer


def test_the_drivers_defect_with_small_sparse_tensors_is_repaired(bindings):
    """Bit 21 of the second word goes, for a driver up to 13.1 and a small tensor with gaps."""
    card = cuda.device(0)
    spec = cufmha.tma.TensorMapSpec(dtype="bf16", dims=(64, 8), strides=(256,), box=(64, 8))
    assert not int.from_bytes(card.encode(spec, 1 << 20)[8:16], "little") >> 21 & 1
    dense = replace(spec, strides=(128,))
    assert int.from_bytes(card.encode(dense, 1 << 20)[8:16], "little") >> 21 & 1


def test_another_current_context_is_left_as_it_was(bindings):
    plan = make_plan()
    launch = plan._launch(operands())
    bindings.calls.clear()
    bindings.current = 1001
    launch(0)
    assert [call[0] for call in bindings.calls] == ["push", "launch", "pop"]


def test_a_refused_launch_is_named(bindings):
    plan = make_plan()
    bindings.facts["launch"] = Status.CUDA_ERROR_INVALID_VALUE
    refused(
        DriverError,
        r"cuLaunchKernel: CUDA_ERROR_INVALID_VALUE \(words about it\)",
        call=lambda: plan._launch(operands())(0),
    )


def test_a_plan_follows_the_asked_card(bindings):
    bindings.facts["cards"] = 2
    spec = cufmha.AttentionSpec(num_heads_q=2, num_heads_kv=1, head_dim=128)
    shape = cufmha.ProblemShape(batch=1, seqlen_q=8, seqlen_k=8)
    assert cufmha.plan(spec, shape, device=1).device.context == 1001
