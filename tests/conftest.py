# SPDX-License-Identifier: Apache-2.0
"""The `device` fixture: one test body, run on the emulator as each chip and, when asked, on a card.

`pytest` runs the emulator; `pytest --device cuda` runs the same bodies on the card, `--device all`
both. On the card, arrays are torch tensors; on the emulator, NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

EMULATED = ("sm_90a", "sm_100a", "sm_103a")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("emulator", "cuda", "all"), default="emulator")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's cache of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUFMHA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("archs")
        emulated = marker.args if marker else EMULATED[:2]
        asked = metafunc.config.getoption("--device")
        names = [] if asked == "cuda" else list(emulated)
        names += [] if asked == "emulator" else ["cuda"]
        metafunc.parametrize("device", names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `card` need one; without `--device cuda` they are not selected at all."""
    if config.getoption("--device") == "emulator":
        card = [item for item in items if item.get_closest_marker("card")]
        config.hook.pytest_deselected(items=card)
        items[:] = [item for item in items if item not in card]


class EmulatedDevice:
    """Arrays of the emulator are NumPy arrays."""

    def __init__(self, arch: str) -> None:
        self.name = self.arch = arch

    def put(self, array: np.ndarray) -> Any:
        return array

    def get(self, array: Any) -> np.ndarray:
        return np.asarray(array)


class CardDevice:
    """Arrays of the card are torch tensors; bfloat16 crosses as its bits."""

    name = "cuda"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        major, minor = torch.cuda.get_device_capability()
        self.arch = f"sm_{major}{minor}a"

    def put(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            bits = self.torch.from_numpy(array.view(np.int16).copy())
            return bits.cuda().view(self.torch.bfloat16)
        return self.torch.from_numpy(array.copy()).cuda()

    def get(self, array: Any) -> np.ndarray:
        if array.dtype is self.torch.bfloat16:
            from cufmha.testing import numpy_dtype

            return array.cpu().view(self.torch.int16).numpy().view(numpy_dtype("bf16"))
        return array.cpu().numpy()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[EmulatedDevice | CardDevice]:
    import cufmha

    if request.param == "cuda":
        with cufmha.use_device("cuda"):
            yield CardDevice()
    else:
        with cufmha.use_device("emulator", arch=request.param):
            yield EmulatedDevice(request.param)
