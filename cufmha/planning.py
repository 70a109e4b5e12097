# SPDX-License-Identifier: Apache-2.0
"""`plan()`, `Plan` and `BoundLaunch`: a problem with its kernel, and launches of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from .array.alloc import allocate
from .array.dtype import DType
from .array.view import TensorView, as_view, framework_of
from .device import current_device
from .device.base import Region
from .errors import ArgumentError, DTypeError, UnsupportedError
from .kernels.catalog import KernelVariant, with_split_kv
from .operands import (
    LARGEST_GRID,
    LOG2_E,
    check_apart,
    check_lse_planned,
    check_places,
    holds_elements,
    itemsize,
    pitch,
    span,
    stream_for,
)
from .packed import PackedShape
from .select import select
from .spec import (
    PACKED,
    AttentionSpec,
    Mask,
    ProblemShape,
    check_distinct,
    check_lse_memory,
    check_memory,
    check_operands,
    check_result,
    dtype_name,
)
from .split_kv import SplitLaunch, Splits, check_num_splits, choose_num_splits
from .tma import TensorMapSpec
from .workspaces import Workspace, own_workspace, shared_workspace

if TYPE_CHECKING:
    from .device.base import Device, Launch
    from .varlen import VarlenPlan

Array = Any
Stream = Any

_BOX_COLUMNS = 64
_LAUNCHES_KEPT = 64
_TEMPLATES_KEPT = 16
_MAPS = ("q_map", "k_map", "v_map", "o_map")


class Operands(NamedTuple):
    """All that a launch touches."""

    q: TensorView
    k: TensorView
    v: TensorView
    out: TensorView
    lse: TensorView | None


@dataclass(frozen=True, slots=True)
class _Template:
    """A parameter block for operands of given strides, to be pointed at others of the same."""

    block: bytes
    spans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a plan amounts to; `str()` is a table."""

    rows: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows)


@overload
def plan(
    spec: AttentionSpec, shape: ProblemShape, *, device: int | Device | None = None,
    num_splits: int | None = None,
) -> Plan: ...  # fmt: skip
@overload
def plan(
    spec: AttentionSpec, shape: PackedShape, *, device: int | Device | None = None,
    num_splits: int | None = None,
) -> VarlenPlan: ...  # fmt: skip
def plan(
    spec: AttentionSpec,
    shape: ProblemShape | PackedShape,
    *,
    device: int | Device | None = None,
    num_splits: int | None = None,
) -> Plan | VarlenPlan:
    """Choose and load the kernel for a problem.

    Parameters
    ----------
    spec : AttentionSpec
    shape : ProblemShape or PackedShape
        The latter for packed sequences, whose spec has layout "thd".
    device : int or Device, optional
        A card's number; the device in use if left out.
    num_splits : int, optional
        Parts that the keys are split into, 1 to 256, each for a processor of its own; a second
        kernel merges their results. 1 never splits. If left out, as many as make a problem
        fastest that has fewer tiles of queries than the device has processors, by an estimate,
        and 1 for others (docs/split-kv.md). Results are those of one number bit for bit, and
        differ by rounding from one number to another. Packed sequences are not split.

    Raises
    ------
    UnsupportedError
        If no kernel serves the problem, with the reasons.
    DriverError, AssemblyError
    DTypeError
        If spec or shape is something else, or num_splits no whole number.
    ArgumentError
        If num_splits is out of range, or above 1 with packed sequences.
    """
    if not isinstance(spec, AttentionSpec):
        raise DTypeError(f"spec: must be AttentionSpec, got {type(spec).__name__}")
    kind = PackedShape if spec.layout == PACKED else ProblemShape
    if not isinstance(shape, kind):
        raise DTypeError(
            f"shape: must be {kind.__name__} with layout {spec.layout!r}, got "
            f"{type(shape).__name__}"
        )
    if device is None or isinstance(device, int):
        device = current_device(device)
    if not hasattr(device, "arch"):
        raise DTypeError(f"device: must be a number or a Device, got {type(device).__name__}")
    support = select(spec, device.arch)
    if support.variant is None:
        raise UnsupportedError("; ".join(support.reasons))
    num_splits = check_num_splits(num_splits)
    if isinstance(shape, PackedShape):
        from .varlen import VarlenPlan

        if num_splits not in (None, 1):
            raise ArgumentError(
                f"num_splits: must be 1 or None with packed sequences, got {num_splits}"
            )
        return VarlenPlan(spec, shape, variant=support.variant, device=device)
    return Plan(spec, shape, variant=support.variant, device=device, num_splits=num_splits)


class Plan:
    """A problem with its kernel loaded. Immutable; any thread may run it.

    Attributes
    ----------
    spec : AttentionSpec
    shape : ProblemShape
    variant : KernelVariant
    device : Device
    num_splits : int
        Parts that the keys are split into.
    workspace_bytes : int
        Device memory that a launch uses beyond out and lse: none unless keys are split. All plans
        share one workspace for each stream that `run` is called on; a bound launch has its own.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        shape: ProblemShape,
        *,
        variant: KernelVariant,
        device: Device,
        num_splits: int | None = None,
    ) -> None:
        if num_splits is None:
            num_splits = choose_num_splits(spec, shape, variant, device.processors)
        self.tiles_q = -(-shape.seqlen_q // variant.tile_q)
        self.items = self.tiles_q * spec.num_heads_q * shape.batch
        self.num_splits = num_splits if self.items else 1
        self.items *= self.num_splits
        if self.num_splits > 1:
            variant = with_split_kv(variant)
        self.spec, self.shape, self.variant, self.device = spec, shape, variant, device
        if self.items > LARGEST_GRID:
            raise UnsupportedError(
                f"batch x heads x tiles of {variant.tile_q} query rows"
                f"{' x num_splits' if self.num_splits > 1 else ''} must be at most "
                f"{LARGEST_GRID}, got {self.items}"
            )
        self.grid = min(self.items, device.processors) if variant.persistent else self.items
        heads_q, heads_kv = spec.num_heads_q, spec.num_heads_kv
        self.shape_q = self._laid_out(heads_q, shape.seqlen_q, spec.head_dim)
        self.shape_k = self._laid_out(heads_kv, shape.seqlen_k, spec.head_dim)
        self.shape_v = self._laid_out(heads_kv, shape.seqlen_k, spec.head_dim_v)
        self.shape_out = self._laid_out(heads_q, shape.seqlen_q, spec.head_dim_v)
        self.shape_lse = (shape.batch, heads_q, shape.seqlen_q)
        self._scalars = self._problem_scalars()
        self._launches: OrderedDict[tuple[Any, ...], Launch] = OrderedDict()
        self._templates: OrderedDict[tuple[Any, ...], _Template] = OrderedDict()
        self._lock = threading.Lock()
        self._kernel = device.kernel(variant) if self.items else None
        self._splits: Splits | None = None
        if self.num_splits > 1:
            self._splits = Splits(spec, shape, self.num_splits, variant=variant, device=device)
        self.workspace_bytes = self._splits.workspace_bytes if self._splits else 0

    def _laid_out(self, heads: int, rows: int, head_dim: int | None) -> tuple[int, ...]:
        middle = (rows, heads) if self.spec.layout == "bshd" else (heads, rows)
        return (self.shape.batch, *middle, head_dim or self.spec.head_dim)

    def _problem_scalars(self) -> dict[str, int | float]:
        shape, spec = self.shape, self.spec
        bottom_right = shape.seqlen_k - shape.seqlen_q
        return {
            "seqlen_q": shape.seqlen_q,
            "seqlen_k": shape.seqlen_k,
            "num_heads_q": spec.num_heads_q,
            "group_size": spec.num_heads_q // spec.num_heads_kv,
            "scale_log2": spec.scale * LOG2_E,
            "causal_offset": bottom_right if spec.mask is Mask.CAUSAL else 0,
            "num_tiles_q": self.tiles_q,
            "num_tiles": self.items,
            "num_splits": self.num_splits,
        }

    # ---- running

    @overload
    def run(
        self, q: Array, k: Array, v: Array, *, out: Array | None = None,
        lse: Array | None = None, return_lse: Literal[False] = False, stream: Stream | None = None,
    ) -> Array: ...  # fmt: skip
    @overload
    def run(
        self, q: Array, k: Array, v: Array, *, out: Array | None = None,
        lse: Array | None = None, return_lse: Literal[True], stream: Stream | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip
    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        out: Array | None = None,
        lse: Array | None = None,
        return_lse: bool = False,
        stream: Stream | None = None,
    ) -> Array | tuple[Array, Array]:
        """Launch on operands of the planned shapes; returns as `cufmha.attention` does.

        Raises
        ------
        PlanError
            If the log-sum-exp is asked of a plan made without it.
        ArgumentError, DTypeError
            If an operand is not as planned.
        """
        check_lse_planned(self.spec, return_lse or lse is not None)
        handle = stream_for(self.device, stream, framework_of(q))
        views = tuple(as_view(x, name, stream=handle) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        if (
            views[0].shape != self.shape_q
            or views[1].shape != self.shape_k
            or views[2].shape != self.shape_v
            or any(view.dtype is not self.spec.dtype for view in views)
        ):
            self._explain_mismatch(views)
        return self.execute(views, out, lse, return_lse, handle)

    def execute(
        self,
        views: tuple[TensorView, ...],
        out: Array | None,
        lse: Array | None,
        return_lse: bool,
        stream: int,
    ) -> Array | tuple[Array, Array]:
        """`run`, on views whose shapes and dtypes have been checked."""
        q, k, v = views
        out_view = lse_view = None
        if out is not None:
            out_view = as_view(out, "out", stream=stream)
            check_result("out", out_view, self.shape_out, self.spec.dtype)
        if lse is not None:
            lse_view = as_view(lse, "lse", stream=stream)
            check_result("lse", lse_view, self.shape_lse, DType.F32)
        self._check_places(views, out_view, lse_view)
        for name, view in (("q", q), ("k", k), ("v", v)):
            if not self.items or view.strides[3] != 1 or view.pointer & 15:
                check_memory(name, view)
        finish_out: Callable[[], Any] = lambda: out  # noqa: E731
        finish_lse: Callable[[], Any] = lambda: lse  # noqa: E731
        if out_view is None:
            out_view, finish_out = allocate(
                q, self.shape_out, self.spec.dtype, device=self.device, stream=stream
            )
        if return_lse and lse_view is None:
            lse_view, finish_lse = allocate(
                q, self.shape_lse, DType.F32, device=self.device, stream=stream
            )
        if self.items:
            workspace = None
            if self._splits:
                workspace = shared_workspace(self.device, stream, self.workspace_bytes)
            self._launch(Operands(q, k, v, out_view, lse_view), workspace)(stream)
        return (finish_out(), finish_lse()) if return_lse else finish_out()

    def bind(
        self, q: Array, k: Array, v: Array, out: Array, lse: Array | None = None
    ) -> BoundLaunch:
        """Fix all operands, for launches that cost one driver call.

        Raises
        ------
        PlanError
            For an lse, if the plan was made without it.
        """
        return BoundLaunch(self, q, k, v, out, lse)

    def operands(self, q: Array, k: Array, v: Array, out: Array, lse: Array | None) -> Operands:
        """All operands as views, held to the plan."""
        check_lse_planned(self.spec, lse is not None)
        views = tuple(as_view(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        self._explain_mismatch(views)
        out_view = as_view(out, "out")
        check_result("out", out_view, self.shape_out, self.spec.dtype)
        lse_view = None
        if lse is not None:
            lse_view = as_view(lse, "lse")
            check_result("lse", lse_view, self.shape_lse, DType.F32)
        self._check_places(views, out_view, lse_view)
        return Operands(views[0], views[1], views[2], out_view, lse_view)

    def _explain_mismatch(self, views: tuple[TensorView, ...]) -> None:
        """Which rule, or which part of the plan, the operands break."""
        q, k, v = views
        check_operands(q, k, v, layout=self.spec.layout)
        for name, view, wanted in (
            ("q", q, self.shape_q),
            ("k", k, self.shape_k),
            ("v", v, self.shape_v),
        ):
            if view.dtype is not self.spec.dtype:
                raise ArgumentError(
                    f"{name}: the plan is for {self.spec.dtype.long_name}, "
                    f"got {dtype_name(view.dtype)}"
                )
            if tuple(view.shape) != wanted:
                raise ArgumentError(
                    f"{name}: the plan is for shape {wanted}, got {tuple(view.shape)}"
                )

    def _check_places(
        self, views: tuple[TensorView, ...], out: TensorView | None, lse: TensorView | None
    ) -> None:
        named = (("q", views[0]), ("k", views[1]), ("v", views[2]), ("out", out), ("lse", lse))
        check_places(self.device, named)

    # ---- launches

    def _launch(self, operands: Operands, workspace: Workspace | None = None) -> Launch:
        """The launch for these operands, from the latest ones if it is there."""
        q, k, v, out, lse = operands
        strides = (
            q.strides, k.strides, v.strides, out.strides, None if lse is None else lse.strides,
        )  # fmt: skip
        pointers = (
            q.pointer, k.pointer, v.pointer, out.pointer, None if lse is None else lse.pointer,
        )  # fmt: skip
        key = (pointers, strides, workspace and workspace.address)
        with self._lock:
            launch = self._launches.get(key)
            if launch is not None:
                self._launches.move_to_end(key)
                return launch
        launch = self._prepare(operands, strides, workspace)
        with self._lock:
            self._launches[key] = launch
            if len(self._launches) > _LAUNCHES_KEPT:
                self._launches.popitem(last=False)
        return launch

    def bound(self, operands: Operands, workspace: Workspace | None) -> Launch:
        """The launch for these operands; one with a workspace is kept by nobody here."""
        if workspace is None:
            return self._launch(operands)
        strides = tuple(None if view is None else view.strides for view in operands)
        return self._prepare(operands, strides, workspace)

    def _prepare(
        self, operands: Operands, strides: tuple[Any, ...], workspace: Workspace | None
    ) -> Launch:
        with self._lock:
            template = self._templates.get(strides)
        if template is None:
            template = self._make_template(operands)
        block = self._pointed(template, operands, workspace)
        assert self._kernel is not None  # there are items
        if self._splits is None or workspace is None:
            regions = _regions(operands)
        else:
            regions = [*_regions(operands)[:3], self._splits.region(workspace)]
        launch: Launch = self._kernel.prepare(grid=self.grid, params=block, regions=regions)
        if self._splits is not None and workspace is not None:
            merge = self._splits.prepare(
                operands.out, operands.lse, self._scalars["scale_log2"], workspace
            )
            launch = SplitLaunch(launch, merge, workspace)
        with self._lock:
            self._templates[strides] = template
            if len(self._templates) > _TEMPLATES_KEPT:
                self._templates.popitem(last=False)
        return launch

    def _make_template(self, operands: Operands) -> _Template:
        """Checks all that depends on strides, and encodes the tensor maps."""
        self._check_memory(operands)
        q, _, _, _, lse = operands
        variant, layout = self.variant, self.spec.layout
        rows = (variant.box_rows_q, variant.box_rows_kv, variant.box_rows_kv, variant.box_rows_o)
        assert self._kernel is not None  # there are items
        parameters = self._kernel.parameters
        values: dict[str, int | float | bytes] = dict(self._scalars)
        for name, view, box_rows in zip(_MAPS, operands[:4], rows, strict=True):
            if name not in parameters.fields:
                continue
            spec = tensor_map(view, layout=layout, box_rows=box_rows)
            # An empty array has no address; no kernel touches its map's memory.
            values[name] = self.device.encode(
                spec, view.pointer if holds_elements(view) else q.pointer
            )
        values["lse"] = 0 if lse is None else lse.pointer
        values["lse_stride_batch"] = 0 if lse is None else pitch(lse, 0)
        values["lse_stride_head"] = 0 if lse is None else pitch(lse, 1)
        values["partial_o"] = values["partial_sums"] = 0  # of the launch's workspace
        wanted = {name: value for name, value in values.items() if name in parameters.fields}
        spans = tuple(0 if view is None else span(view) for view in operands)
        return _Template(bytes(parameters.pack(wanted)), spans)

    def _pointed(
        self, template: _Template, operands: Operands, workspace: Workspace | None
    ) -> bytes:
        """The template's block for other addresses, which are held to their own rules."""
        assert self._kernel is not None  # there are items
        q, k, v, out, lse = operands
        if (q.pointer | k.pointer | v.pointer | out.pointer) & 15 or (lse and lse.pointer & 3):
            self._check_memory(operands)
        for name, view, size in zip("qkv", operands[:3], template.spans, strict=False):
            check_apart("out", out, template.spans[3], name, view, size)
            if lse is not None:
                check_apart("lse", lse, template.spans[4], name, view, size)
        if lse is not None:
            check_apart("lse", lse, template.spans[4], "out", out, template.spans[3])
        block = bytearray(template.block)
        fields = self._kernel.parameters.fields
        for name, view in zip(_MAPS, operands[:4], strict=True):
            if name in fields and holds_elements(view):
                self.device.readdress(block, fields[name].offset, view.pointer)
        places = {"lse": lse.pointer} if lse is not None else {}
        if self._splits is not None and workspace is not None:
            places = self._splits.places(workspace)
        for name, address in places.items():
            at = fields[name].offset
            block[at : at + 8] = address.to_bytes(8, "little")
        return bytes(block)

    def _check_memory(self, operands: Operands) -> None:
        check_distinct("out", operands.out)
        for name, view in zip(("q", "k", "v", "out"), operands[:4], strict=True):
            check_memory(name, view)
        if operands.lse is not None:
            check_distinct("lse", operands.lse)
            check_lse_memory(operands.lse)

    # ---- telling

    def explain(self) -> PlanReport:
        """What runs, on what, in how many blocks."""
        variant, device = self.variant, self.device
        waves = self.items / max(device.processors, 1)
        return PlanReport(
            (
                ("kernel", variant.name),
                ("device", f"{device.name} ({device.arch}), {device.processors} processors"),
                ("tile", f"{variant.tile_q} queries x {variant.tile_k} keys"),
                ("block", f"{variant.threads} threads, {variant.smem_bytes} shared bytes"),
                ("registers", ", ".join(f"{r} x {t} threads" for r, t in variant.roles) or "even"),
                ("splits", f"{self.num_splits} of the keys of a tile of queries"),
                ("grid", f"{self.grid} blocks for {self.items} items, {waves:.2f} a processor"),
                ("workspace", f"{self.workspace_bytes} bytes"),
            )
        )

    def __repr__(self) -> str:
        return f"Plan({self.variant.name}, {self.shape}, {self.device.name})"


class BoundLaunch:
    """A plan with its operands fixed and kept alive, and a workspace of its own where it needs one.

    Calling it is one launch, or two where keys are split. It allocates and encodes nothing, so it
    may be captured in a CUDA graph. Launches of one bound launch must not overlap.
    """

    def __init__(
        self, plan: Plan, q: Array, k: Array, v: Array, out: Array, lse: Array | None
    ) -> None:
        self.plan = plan
        self._arrays: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        self._workspace: Workspace | None = None
        if plan.workspace_bytes:
            self._workspace = own_workspace(plan.device, plan.workspace_bytes)
        self._bind()

    def _bind(self) -> None:
        operands = self.plan.operands(**self._arrays)
        self._operands = operands
        self._framework = operands.q.framework
        self._launch = self.plan.bound(operands, self._workspace) if self.plan.items else None

    def __call__(self, stream: Stream | None = None) -> None:
        """Launch on a stream, the current one of q's framework if left out."""
        if self._launch is not None:
            self._launch(stream_for(self.plan.device, stream, self._framework))

    def rebind(
        self,
        *,
        q: Array | None = None,
        k: Array | None = None,
        v: Array | None = None,
        out: Array | None = None,
        lse: Array | None = None,
    ) -> None:
        """Point at other operands of the same shapes; what is left out stays.

        Raises
        ------
        PlanError
            For an lse, if the plan was made without it.
        """
        given = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        before = self._arrays
        self._arrays = before | {name: x for name, x in given.items() if x is not None}
        try:
            self._bind()
        except BaseException:
            self._arrays = before
            raise


def tensor_map(view: TensorView, *, layout: str, box_rows: int) -> TensorMapSpec:
    """The map over (head_dim, rows, heads, batch) of a q, k, v or out."""
    heads, rows = layout.index("h"), layout.index("s")
    head_dim = view.shape[3]
    size = itemsize(view)
    order = (rows, heads, 0)
    empty = not holds_elements(view)
    strides = tuple(
        # An axis of extent 1 is never stepped along, whatever stride it says.
        head_dim * size if empty or view.shape[axis] == 1 else view.strides[axis] * size
        for axis in order
    )
    assert isinstance(view.dtype, DType)  # check_dtype has seen to it
    return TensorMapSpec(
        dtype=view.dtype.value,
        dims=(head_dim, *(max(view.shape[axis], 1) for axis in order)),
        strides=strides,
        box=(_BOX_COLUMNS, box_rows, 1, 1),
        swizzle="128B",
        l2_promotion="128B",
    )


def _regions(operands: Operands) -> list[Region]:
    names = ("q", "k", "v", "out", "lse")
    return [
        Region(view.pointer, span(view), name in ("out", "lse"), name)
        for name, view in zip(names, operands, strict=True)
        if view is not None
    ]
