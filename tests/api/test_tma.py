# SPDX-License-Identifier: Apache-2.0
"""TensorMapSpec: every rule of the encoder, refused with argument, rule and value; no driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cufmha.emu import tensormap
from cufmha.errors import ArgumentError
from cufmha.tma import TensorMapSpec

GOLDEN = Path(__file__).parent.parent / "emu" / "golden" / "descriptors.json"
GOOD: dict[str, Any] = {
    "dtype": "bf16",
    "dims": (128, 300, 8, 2),
    "strides": (2048, 256, 614400),
    "box": (64, 128, 1, 1),
    "swizzle": "128B",
}


def spec(**changes: Any) -> TensorMapSpec:
    return TensorMapSpec(**{**GOOD, **changes})


BREACHES = [
    ({"dtype": "bf17"}, "dtype", "bf17"),
    ({"swizzle": "256B"}, "swizzle", "256B"),
    ({"interleave": "8B"}, "interleave", "8B"),
    ({"l2_promotion": "512B"}, "l2_promotion", "512B"),
    ({"oob_fill": "ones"}, "oob_fill", "ones"),
    ({"dims": (), "strides": (), "box": ()}, "dims", "got 0"),
    ({"dims": (64,) * 6, "strides": (128,) * 5, "box": (8,) * 6}, "dims", "got 6"),
    ({"strides": (2048, 256)}, "strides", "got 2"),
    ({"box": (64, 128, 1)}, "box", "got 3"),
    ({"element_strides": (1, 1, 1)}, "element_strides", "got 3"),
    ({"dims": (128, 0, 8, 2)}, "dims[1]", "got 0"),
    ({"dims": (128, 2**32 + 1, 8, 2)}, "dims[1]", "4294967297"),
    ({"strides": (2048, 136, 614400)}, "strides[1]", "136"),
    ({"strides": (2048, -256, 614400)}, "strides[1]", "-256"),
    ({"strides": (2048, 256, 2**40)}, "strides[2]", str(2**40)),
    ({"box": (64, 0, 1, 1)}, "box[1]", "got 0"),
    ({"box": (64, 257, 1, 1)}, "box[1]", "257"),
    ({"box": (60, 128, 1, 1)}, "box[0]", "120"),
    ({"box": (72, 128, 1, 1)}, "box[0]", "144"),
    ({"box": (64, 128, 1, 1), "swizzle": "64B"}, "box[0]", "128"),
    ({"element_strides": (1, 9, 1, 1)}, "element_strides[1]", "got 9"),
    ({"element_strides": (1, 0, 1, 1)}, "element_strides[1]", "got 0"),
    ({"dtype": "u16", "oob_fill": "nan"}, "oob_fill", "u16"),
    ({"interleave": "32B", "swizzle": "128B", "box": (16, 4, 1, 1)}, "interleave", "128B"),
    ({"interleave": "16B", "dims": (64, 9), "strides": (128,), "box": (8, 4)}, "interleave", "2"),
]


@pytest.mark.parametrize("changes, argument, value", BREACHES, ids=lambda x: str(x)[:40])
def test_a_breach_names_argument_and_value(changes, argument, value):
    with pytest.raises(ArgumentError) as raised:
        spec(**changes)
    text = str(raised.value)
    assert text.startswith(argument)
    assert value in text


def test_the_most_basic_rule_speaks_first():
    with pytest.raises(ArgumentError, match=r"^dtype"):
        spec(dtype="x", dims=(0,), strides=(7,), box=(3,))
    with pytest.raises(ArgumentError, match=r"^strides: must have"):
        spec(strides=(7,), box=(3, 3, 3, 3))
    with pytest.raises(ArgumentError, match=r"^dims\[0\]"):
        spec(dims=(0, 300, 8, 2), strides=(7, 256, 614400))


@pytest.mark.parametrize("changes", [
    {"strides": (0, 0, 0)},
    {"strides": (16, 2**40 - 16, 2048)},
    {"dims": (1, 1, 1, 2**32)},
    {"box": (8, 256, 1, 1)},
    {"dims": (128,), "strides": (), "box": (64,)},
    {"element_strides": (1, 8, 1, 1)},
    {"dtype": "f16", "oob_fill": "nan"},
    {"dtype": "u8", "box": (128, 4, 1, 1)},
])  # fmt: skip
def test_what_the_rules_allow_is_taken(changes):
    assert spec(**changes).rank == len(spec(**changes).dims)


@pytest.mark.parametrize("address, good", [(0, True), (16, True), (8, False), (-16, False)])
def test_the_base_is_a_multiple_of_sixteen_bytes(address, good):
    if good:
        spec().check_address(address)
    else:
        with pytest.raises(ArgumentError, match="address"):
            spec().check_address(address)


def test_a_box_counts_its_elements_by_their_strides():
    stepped = spec(box=(64, 10, 3, 1), element_strides=(1, 4, 2, 1))
    assert stepped.box_elements == (64, 3, 2, 1)
    assert stepped.box_bytes == 64 * 3 * 2 * 2


def test_narrow_swizzled_rows_are_as_far_apart_as_the_swizzle():
    assert spec(box=(8, 4, 1, 1)).shared_bytes == 4 * 128
    assert spec(box=(8, 4, 1, 1), swizzle="none").shared_bytes == 4 * 16


def test_specs_are_plain_hashable_data():
    assert spec() == spec()
    assert len({spec(), spec(), spec(box=(64, 64, 1, 1))}) == 2
    assert eval(repr(spec())) == spec()


def test_importing_it_needs_neither_numpy_nor_a_driver():
    code = (
        "import sys, cufmha.tma; cufmha.tma.TensorMapSpec(dtype='bf16', dims=(64,), strides=(), "
        "box=(64,)); sys.exit('numpy' in sys.modules or 'cuda' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what the driver wrote


def recorded() -> list[tuple[TensorMapSpec, int, bytes]]:
    """Descriptors that a card's driver made, where it made one."""
    found = []
    for line in json.loads(GOLDEN.read_text()):
        if not line["bytes"].startswith("<"):
            found.append((eval(line["spec"]), line["address"], bytes.fromhex(line["bytes"])))
    return found


def field(raw: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(raw[at : at + size], "little")


def test_every_recorded_descriptor_has_a_spec_that_the_rules_allow():
    assert len(recorded()) >= 80


def test_a_recorded_descriptor_starts_with_the_address_and_ends_in_extents_and_boxes():
    """Dimensions less one from byte 32 on, boxes less one from byte 55 on."""
    for made, address, raw in recorded():
        assert field(raw, 0, 8) == address
        assert [field(raw, 32 + 4 * i) + 1 for i in range(made.rank)] == list(made.dims)
        assert [raw[55 + i] + 1 for i in range(made.rank)] == list(made.box)


def test_the_emulators_descriptor_carries_every_recorded_spec():
    for made, address, _ in recorded():
        fields = tensormap.decode(tensormap.encode(made, address))
        assert fields.address == address
        back = fields.spec()
        assert back.steps == made.steps
        same = ("dtype", "dims", "strides", "box", "swizzle", "l2_promotion", "oob_fill")
        assert all(getattr(back, name) == getattr(made, name) for name in same)


# ---- the drivers' defect


SPARSE = {"dims": (64, 100), "strides": (256,), "box": (64, 8)}
BIT = 1 << 21


def descriptor(word: int) -> bytes:
    return bytes(range(8)) + word.to_bytes(8, "little") + bytes(range(112))


@pytest.mark.parametrize(
    "changes, driver, cleared",
    [
        (SPARSE, 13000, True),
        (SPARSE, 13010, True),
        (SPARSE, 13020, False),
        ({**SPARSE, "strides": (128,)}, 13010, False),
        ({**SPARSE, "dims": (64, 512)}, 13010, True),
        ({**SPARSE, "dims": (64, 513)}, 13010, False),
    ],
)
def test_the_defect_of_old_drivers_is_taken_out_of_small_sparse_maps(changes, driver, cleared):
    """513 rows 256 bytes apart are 131,200 bytes long; 512 rows just fall short of the limit."""
    raw = descriptor(BIT | 0x123)
    repaired = spec(**changes).repaired(raw, driver_version=driver)
    assert repaired == (descriptor(0x123) if cleared else raw)


def test_a_descriptor_without_the_defect_is_left_as_it_is():
    raw = descriptor(0x123)
    assert spec(**SPARSE).repaired(raw, driver_version=13010) == raw
