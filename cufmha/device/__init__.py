# SPDX-License-Identifier: Apache-2.0
"""The device in use: the card that holds q, or the emulator, by `use_device` or CUFMHA_DEVICE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from .. import _env
from ..errors import ArgumentError

if TYPE_CHECKING:
    from ..array.view import TensorView
    from .base import Device

KINDS = ("cuda", "emulator")
_CUDA = "cuda"

# "cuda", or the emulated (or a test's) device itself.
_chosen: ContextVar[Any] = ContextVar("cufmha_device", default=None)


@contextmanager
def use_device(
    kind: Literal["cuda", "emulator"] | Device,
    *,
    arch: str | None = None,
    processors: int | None = None,
    seed: int | None = None,
) -> Iterator[Any]:
    """Within the block, in this thread, kernels run on cards or on an emulated chip.

    Parameters
    ----------
    kind : "cuda" or "emulator"
        "cuda" takes arrays in a card's memory, and runs on the card that holds q. "emulator" takes
        arrays in CPU memory. An object that implements `cufmha.device.base.Device` is also taken.
    arch : str, optional
        Of the emulated chip: "sm_90a", "sm_100a" (default) or "sm_103a".
    processors : int, optional
        Of the emulated chip; they bound the grid of a persistent kernel. 4 by default.
    seed : int, optional
        Order of asynchronous work on the emulated chip; 0 by default.

    Yields
    ------
    Device or None
        The emulated chip.
    """
    if not isinstance(kind, str):
        chosen: Any = kind
    elif kind == "emulator":
        chosen = _emulator(arch or _env.arch(), processors, seed)
    elif kind == _CUDA:
        for name, value in (("arch", arch), ("processors", processors), ("seed", seed)):
            if value is not None:
                raise ArgumentError(f"{name}: only an emulated chip has a choice, got {value!r}")
        chosen = _CUDA
    else:
        raise ArgumentError(f'kind: must be "cuda" or "emulator", got {kind!r}')
    token = _chosen.set(chosen)
    try:
        yield None if chosen == _CUDA else chosen
    finally:
        _chosen.reset(token)


def _emulator(arch: str, processors: int | None, seed: int | None) -> Any:
    from .emulator import emulator

    return emulator(
        arch,
        processors=_env.processors() if processors is None else processors,
        seed=_env.seed() if seed is None else seed,
    )


def chosen() -> Any:
    """ "cuda", or the device that the block or the environment chose."""
    found = _chosen.get()
    if found is not None:
        return found
    return _CUDA if _env.device() == _CUDA else _emulator(_env.arch(), None, None)


def device_for(view: TensorView) -> Device:
    """The device to run on, for q."""
    found = chosen()
    place, ordinal = view.device
    if found == _CUDA:
        if place != "cuda":
            raise ArgumentError(
                f"q: must be in a card's memory, got an array in {_memory(place)}; move it to a "
                'card, or run on the emulator: cufmha.use_device("emulator") or '
                "CUFMHA_DEVICE=emulator"
            )
        from .cuda import device

        return device(ordinal)
    if place != "cpu":
        raise ArgumentError(
            f"q: the emulator takes arrays in CPU memory, got one in {_memory(place)}; copy it to "
            'the CPU, or run on the card: cufmha.use_device("cuda")'
        )
    return found  # type: ignore[no-any-return]


def _memory(place: str) -> str:
    return {"cpu": "CPU memory", "cuda": "a card's memory"}.get(place, f"memory of {place!r}")


def current_device(ordinal: int | None = None) -> Device:
    """The device in use; on cards, the given one, or the calling thread's current one."""
    found = chosen()
    if found == _CUDA:
        from . import cuda

        return cuda.device(cuda.current_ordinal() if ordinal is None else ordinal)
    return found  # type: ignore[no-any-return]


def current_arch() -> str:
    """The chip of the device in use."""
    return current_device().arch


def device_of_pointer(pointer: int) -> int:
    """The card that holds an address."""
    from . import cuda

    return cuda.device_of_pointer(pointer)
