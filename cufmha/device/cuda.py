# SPDX-License-Identifier: Apache-2.0
"""Cards, through cuda.bindings.driver: the only file that imports it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import cache as disk
from ..errors import AssemblyError, DriverError, OutOfMemoryError, PlanError, UnsupportedError
from ..kernels import build
from ..kernels.catalog import KernelVariant
from ..kernels.params import Parameters, parameters
from ..kernels.render import render
from ..tma import TensorMapSpec
from .base import Region

OLDEST_DRIVER = 12080
_LOG_BYTES = 1 << 16
_MAP_BYTES = 128
_OUT_OF_MEMORY = 2
_CHIPS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
_INSTEAD = (
    'without a card, use the emulator: cufmha.use_device("emulator") or CUFMHA_DEVICE=emulator'
)

_lock = threading.RLock()
_driver: Any = None
_version = 0
_cards: dict[int, Card] = {}


def driver() -> Any:
    """The initialized bindings.

    Raises
    ------
    DriverError
        If they, the driver or a card are missing, or the driver is too old.
    """
    global _driver, _version
    if _driver is not None:
        return _driver
    with _lock:
        try:
            from cuda.bindings import driver as bindings
        except ImportError:
            raise DriverError(
                "the CUDA bindings are not installed: pip install 'cufmha[cu13]' (or [cu12]); "
                + _INSTEAD
            ) from None
        try:
            # RuntimeError where there is no libcuda, DynamicLibNotFoundError in later releases.
            status, version = bindings.cuDriverGetVersion()
            (started,) = bindings.cuInit(0)
        except RuntimeError as error:
            raise DriverError(
                f"no CUDA driver was found ({str(error).splitlines()[0]}); {_INSTEAD}"
            ) from None
        if int(status) == 0 and version < OLDEST_DRIVER:
            raise DriverError(
                f"the CUDA driver must be of CUDA {_dotted(OLDEST_DRIVER)} or later, got "
                f"{_dotted(version)}; update it, or {_INSTEAD}"
            )
        if started == bindings.CUresult.CUDA_ERROR_NO_DEVICE:
            raise DriverError(f"the CUDA driver finds no card; {_INSTEAD}")
        if int(started):
            raise DriverError(f"cuInit: {_described(bindings, started)}; {_INSTEAD}")
        _driver, _version = bindings, version
    return _driver


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _described(bindings: Any, status: Any) -> str:
    _, name = bindings.cuGetErrorName(status)
    _, text = bindings.cuGetErrorString(status)
    return f"{(name or b'?').decode()} ({(text or b'?').decode()})"


def check(call: str, result: tuple[Any, ...]) -> Any:
    """A driver call's results, or DriverError (OutOfMemoryError) naming the call."""
    status = result[0]
    if int(status):
        kind = OutOfMemoryError if int(status) == _OUT_OF_MEMORY else DriverError
        raise kind(f"{call}: {_described(driver(), status)}")
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


def driver_version() -> int:
    """13000 for CUDA 13.0."""
    driver()
    return _version


def count() -> int:
    """Cards that the driver sees."""
    return int(check("cuDeviceGetCount", driver().cuDeviceGetCount()))


def describe() -> dict[str, str]:
    """The driver and the cards it sees, for `python -m cufmha info`."""
    found = {"driver": f"CUDA {_dotted(driver_version())}"}
    for ordinal in range(count()):
        try:
            card = device(ordinal)
            found[f"card {ordinal}"] = f"{card.name}, {card.arch}, {card.processors} processors"
        except UnsupportedError as error:
            found[f"card {ordinal}"] = str(error)
    return found


def device(ordinal: int) -> Card:
    """A card, made ready on first use."""
    found = _cards.get(ordinal)
    if found is None:
        with _lock:
            found = _cards.get(ordinal)
            if found is None:
                found = _cards[ordinal] = Card(ordinal)
    return found


def current_ordinal() -> int:
    """The calling thread's current card, 0 if it has none."""
    status, ordinal = driver().cuCtxGetDevice()
    return 0 if int(status) else int(ordinal)


def device_of_pointer(pointer: int) -> int:
    """The card that holds an address."""
    bindings = driver()
    attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(
        check("cuPointerGetAttribute", bindings.cuPointerGetAttribute(attribute, pointer or 0))
    )


class Card:
    """One card, by its primary context, which the frameworks use too."""

    kind = "cuda"

    def __init__(self, ordinal: int) -> None:
        bindings = driver()
        self.ordinal = ordinal
        handle = check("cuDeviceGet", bindings.cuDeviceGet(ordinal))
        major, minor, processors = (
            check(
                "cuDeviceGetAttribute",
                bindings.cuDeviceGetAttribute(getattr(bindings.CUdevice_attribute, name), handle),
            )
            for name in (
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
                "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
            )
        )
        raw = check("cuDeviceGetName", bindings.cuDeviceGetName(256, handle))
        self.name = raw.split(b"\0")[0].decode()
        self.processors = int(processors)
        if (major, minor) not in _CHIPS:
            raise UnsupportedError(
                f"there are kernels for compute capability 9.0, 10.0 and 10.3; card {ordinal} "
                f"({self.name}) has {major}.{minor}"
            )
        self.arch = _CHIPS[major, minor]
        self.context = check("cuDevicePrimaryCtxRetain", bindings.cuDevicePrimaryCtxRetain(handle))
        self.context_address = int(self.context)
        self._kernels: dict[KernelVariant, CardKernel] = {}
        self._codes: dict[TensorMapSpec, tuple[Any, ...]] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """The card's context is the thread's within the block."""
        bindings = driver()
        check("cuCtxPushCurrent", bindings.cuCtxPushCurrent(self.context))
        try:
            yield
        finally:
            check("cuCtxPopCurrent", bindings.cuCtxPopCurrent())

    def kernel(self, variant: KernelVariant) -> CardKernel:
        found = self._kernels.get(variant)
        if found is None:
            with _lock:
                found = self._kernels.get(variant)
                if found is None:
                    with self.current():
                        found = self._kernels[variant] = CardKernel(self, variant)
        return found

    def encode(self, spec: TensorMapSpec, address: int) -> bytes:
        spec.check_address(address)
        found = self._codes.get(spec)
        if found is None:
            if len(self._codes) > 4096:
                self._codes.clear()
            found = self._codes[spec] = _encoder_arguments(spec)
        before, after = found
        encoded = check(
            "cuTensorMapEncodeTiled", driver().cuTensorMapEncodeTiled(*before, address, *after)
        )
        raw = ctypes.string_at(int(encoded.getPtr()), _MAP_BYTES)
        return spec.repaired(raw, driver_version=_version)

    def readdress(self, block: bytearray, offset: int, address: int) -> None:
        bindings = driver()
        # The driver wants its own alignment for the structure, which a bytearray need not have.
        tensor_map = bindings.CUtensorMap()
        place = int(tensor_map.getPtr())
        ctypes.memmove(place, bytes(block[offset : offset + _MAP_BYTES]), _MAP_BYTES)
        check("cuTensorMapReplaceAddress", bindings.cuTensorMapReplaceAddress(tensor_map, address))
        block[offset : offset + _MAP_BYTES] = ctypes.string_at(place, _MAP_BYTES)

    def allocate(self, size: int, stream: int) -> CardMemory:
        return CardMemory(self, size, stream)

    def workspace(self, size: int) -> CardWorkspace:
        return CardWorkspace(self, size)

    def upload(self, address: int, source: int, size: int, stream: int) -> None:
        if size:
            with self.current():
                check(
                    "cuMemcpyHtoDAsync",
                    driver().cuMemcpyHtoDAsync(address, source, size, stream),
                )

    def download(self, address: int, size: int, stream: int) -> bytes:
        raw = bytearray(size)
        if size:
            with self.current():
                check("cuStreamSynchronize", driver().cuStreamSynchronize(stream))
                check("cuMemcpyDtoH", driver().cuMemcpyDtoH(raw, address, size))
        return bytes(raw)

    def order_after(self, consumer: int, producer: int) -> None:
        if consumer == producer:
            return
        bindings = driver()
        with self.current():
            flag = bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = check("cuEventCreate", bindings.cuEventCreate(int(flag)))
            check("cuEventRecord", bindings.cuEventRecord(event, producer))
            check("cuStreamWaitEvent", bindings.cuStreamWaitEvent(consumer, event, 0))
            check("cuEventDestroy", bindings.cuEventDestroy(event))


def _encoder_arguments(spec: TensorMapSpec) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the driver takes before and after the address; building it costs more than the call."""
    bindings = driver()
    wide, narrow = bindings.cuuint64_t, bindings.cuuint32_t
    codes = spec.driver_codes()
    before = (bindings.CUtensorMapDataType(codes["dtype"]), spec.rank)
    after = (
        [wide(extent) for extent in spec.dims],
        [wide(stride) for stride in spec.strides],
        [narrow(extent) for extent in spec.box],
        [narrow(step) for step in spec.steps],
        bindings.CUtensorMapInterleave(codes["interleave"]),
        bindings.CUtensorMapSwizzle(codes["swizzle"]),
        bindings.CUtensorMapL2promotion(codes["l2_promotion"]),
        bindings.CUtensorMapFloatOOBfill(codes["oob_fill"]),
    )
    return before, after


class CardMemory:
    """Memory of the stream-ordered pool; it goes back when the object goes."""

    def __init__(self, card: Card, size: int, stream: int) -> None:
        self._card = card
        with card.current():
            self.address = int(
                check("cuMemAllocAsync", driver().cuMemAllocAsync(max(size, 1), stream))
            )

    def __del__(self) -> None:
        address = getattr(self, "address", 0)
        if address and _driver is not None:
            with self._card.current():
                _driver.cuMemFreeAsync(address, 0)


class CardWorkspace:
    """Memory outside the pool: taken during a capture too, and its release waits for its use."""

    def __init__(self, card: Card, size: int) -> None:
        self._card = card
        with card.current(), allowed_while_capturing():
            self.address = int(check("cuMemAlloc", driver().cuMemAlloc(max(size, 1))))

    def __del__(self) -> None:
        address = getattr(self, "address", 0)
        if address and _driver is not None:
            with self._card.current(), allowed_while_capturing():
                _driver.cuMemFree(address)


@contextmanager
def allowed_while_capturing() -> Iterator[None]:
    """Within the block, this thread may make calls that a capture in global mode forbids."""
    bindings = driver()
    relaxed = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call = "cuThreadExchangeStreamCaptureMode"
    before = check(call, bindings.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        check(call, bindings.cuThreadExchangeStreamCaptureMode(before))


class CardKernel:
    """A variant, loaded into a card's context and held to the registers that its roles count on."""

    def __init__(self, card: Card, variant: KernelVariant) -> None:
        bindings = driver()
        self.card = card
        self.variant = variant
        self.parameters: Parameters = parameters(render(variant).text, variant.operation)
        image = build.image(variant, card.arch, driver_version=driver_version())
        self._module, self.origin = self._load(bindings, image)
        self.function = check(
            "cuModuleGetFunction",
            bindings.cuModuleGetFunction(self._module, variant.operation.encode()),
        )
        names = bindings.CUfunction_attribute
        self.registers = self._attribute(names.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self.local_bytes = self._attribute(names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
        check_registers(variant, self.registers, self.local_bytes, self.origin)
        check(
            "cuFuncSetAttribute",
            bindings.cuFuncSetAttribute(
                self.function,
                names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                variant.smem_bytes,
            ),
        )

    def _attribute(self, attribute: Any) -> int:
        result = driver().cuFuncGetAttribute(attribute, self.function)
        return int(check("cuFuncGetAttribute", result))

    def _load(self, bindings: Any, image: build.Image) -> tuple[Any, str]:
        """The module and where it is from; a cached cubin that is refused gives way to the PTX."""
        capturing = bindings.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        status, module, log = _load_image(bindings, image)
        origin = image.origin
        if int(status) and status != capturing and image.entry:
            disk.drop(image.entry)
            origin = f"PTX, in place of {origin} ({_described(bindings, status)})"
            status, module, log = _load_image(bindings, build.as_text(image.rendered))
        if int(status) == 0:
            return module, origin
        if status == capturing:
            raise PlanError(
                f"{self.variant}: a kernel cannot be loaded while a stream is being captured; "
                "make the plan before the capture begins"
            )
        explained = image.rendered.explain(log) if log else "the driver gives no log"
        raise AssemblyError(
            f"{self.variant} from {origin}: {_described(bindings, status)}\n{explained}"
        )

    def prepare(self, *, grid: int, params: bytes, regions: Sequence[Region]) -> CardLaunch:
        return CardLaunch(self, grid, params)


def _load_image(bindings: Any, image: build.Image) -> tuple[Any, Any, str]:
    """Status, module and the assembler's log of errors."""
    log = bytearray(_LOG_BYTES)
    options = [
        bindings.CUjit_option.CU_JIT_ERROR_LOG_BUFFER,
        bindings.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]
    status, module = bindings.cuModuleLoadDataEx(image.data, len(options), options, [log, len(log)])
    return status, module, bytes(log).split(b"\0")[0].decode(errors="replace")


def check_registers(variant: KernelVariant, registers: int, local_bytes: int, origin: str) -> None:
    """Refuse a kernel whose roles ask for more registers than a block has: it would hang."""
    wanted = sum(count * threads for count, threads in variant.roles)
    if variant.roles and wanted > registers * variant.threads:
        raise AssemblyError(
            f"{variant} from {origin}: its roles take {wanted} registers a block, but it was "
            f"assembled with {registers} a thread, {registers * variant.threads} a block; "
            "setmaxnreg would wait for the rest forever"
        )
    if local_bytes:
        raise AssemblyError(
            f"{variant} from {origin}: it was assembled with {local_bytes} bytes of local memory a "
            "thread, so registers are spilled; use another assembler"
        )


class CardLaunch:
    """A packed launch: one driver call."""

    def __init__(self, kernel: CardKernel, grid: int, params: bytes) -> None:
        fields = kernel.parameters.fields.values()
        self._params = ctypes.create_string_buffer(bytes(params), max(len(params), 1))
        base = ctypes.addressof(self._params)
        self._pointers = (ctypes.c_void_p * len(fields))(*[base + f.offset for f in fields])
        self._card = kernel.card
        self._call = driver().cuLaunchKernel
        self._context = driver().cuCtxGetCurrent
        variant = kernel.variant
        self._before = (kernel.function, grid, 1, 1, variant.threads, 1, 1, variant.smem_bytes)
        self._after = ctypes.addressof(self._pointers)
        self._context_address = kernel.card.context_address

    def __call__(self, stream: int) -> None:
        if int(self._context()[1]) == self._context_address:
            (status,) = self._call(*self._before, stream, self._after, 0)
        else:
            with self._card.current():
                (status,) = self._call(*self._before, stream, self._after, 0)
        if int(status):
            raise DriverError(f"cuLaunchKernel: {_described(driver(), status)}")
