# SPDX-License-Identifier: Apache-2.0
"""Any DLPack producer, and our own reader and writer of it."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import cufmha
from cufmha import testing
from cufmha.array import dlpack
from cufmha.array.view import as_view
from cufmha.errors import ArgumentError, DTypeError


class Producer:
    """An array of a framework that nobody knows."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_an_unknown_producer_is_read_and_gets_numpy_arrays():
    q, k, v = testing.make_qkv(heads_q=2, seqlen_q=20, head_dim=64, dtype="f16")
    with cufmha.use_device("emulator", arch="sm_90a"):
        got = cufmha.attention(*(Producer(x) for x in (q, k, v)), layout="bhsd")
    assert isinstance(got, np.ndarray)
    testing.assert_attention_close(got, None, q, k, v)


def test_strides_and_places_come_through():
    array = np.zeros((4, 6, 8), np.float32)[1:, ::2, 3:]
    view = as_view(Producer(array), "x")
    assert view.pointer == array.__array_interface__["data"][0]
    assert (view.shape, view.strides) == ((3, 3, 5), (48, 16, 1))
    assert view.device == ("cpu", 0)


def test_a_producer_that_refuses_is_named():
    import ml_dtypes

    with pytest.raises(DTypeError, match=r"x: .*Producer does not give its memory by DLPack"):
        as_view(Producer(np.zeros(3, ml_dtypes.bfloat16)), "x")


class WithoutDevice:
    """Half of the protocol."""

    def __dlpack__(self, **options):
        return np.zeros(3).__dlpack__()


class Sharded(WithoutDevice):
    """As JAX's arrays on several devices."""

    def __dlpack_device__(self):
        raise BufferError("only of one device")


@pytest.mark.parametrize("producer", [WithoutDevice(), Sharded()])
def test_a_producer_that_does_not_say_where_is_named(producer):
    with pytest.raises(DTypeError, match=r"k: .* does not give its memory by DLPack \(.*device"):
        as_view(producer, "k")


def test_a_second_device_of_the_cpu_is_told_from_the_first():
    """JAX can divide the CPU into several devices."""
    held = np.zeros((1, 8, 1, 64), np.float16)
    other = dlpack.Exporter(
        held, address=held.ctypes.data, shape=held.shape, strides=dlpack.dense(held.shape),
        type_code=2, bits=16, device=(dlpack.CPU, 1),
    )  # fmt: skip
    with (
        cufmha.use_device("emulator", arch="sm_90a"),
        pytest.raises(ArgumentError, match=r"k: must be on the CPU, .*got CPU device 1"),
    ):
        cufmha.attention(held, other, held)


def test_other_element_types_are_named():
    assert as_view(Producer(np.zeros(3, np.int8)), "x").dtype == "int8"
    assert as_view(Producer(np.zeros(3, np.complex64)), "x").dtype == "complex64"


def test_a_read_only_producer_is_no_out():
    q, k, v = testing.make_qkv(seqlen_q=4, head_dim=64, dtype="f16")
    out = np.zeros_like(q)
    out.flags.writeable = False
    with (
        cufmha.use_device("emulator", arch="sm_90a"),
        pytest.raises((ArgumentError, DTypeError), match="out: "),
    ):
        cufmha.attention(q, k, v, layout="bhsd", out=Producer(out))


def exporter(array):
    code, bits = (2, 8 * array.itemsize)
    return dlpack.Exporter(
        array,
        address=array.__array_interface__["data"][0],
        shape=array.shape,
        strides=tuple(step // array.itemsize for step in array.strides),
        type_code=code,
        bits=bits,
        device=(dlpack.CPU, 0),
    )


def test_what_we_export_numpy_reads_in_place():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    got = np.from_dlpack(exporter(array))
    assert (got == array).all() and got.strides == array.strides
    array[0, 0, 0] = 99
    assert got[0, 0, 0] == 99


def test_exports_end_with_their_consumer_or_unused():
    before = len(dlpack._exported)
    got = np.from_dlpack(exporter(np.ones(5, np.float32)))
    unused = exporter(np.ones(5, np.float32)).__dlpack__()
    assert len(dlpack._exported) == before + 2
    dlpack.collect()
    assert len(dlpack._exported) == before + 2, "somebody holds it"
    del unused
    dlpack.collect()
    assert len(dlpack._exported) == before + 1 and got.sum() == 5
    del got
    gc.collect()
    assert len(dlpack._exported) == before


def test_a_used_capsule_is_refused():
    array = np.ones(3, np.float32)

    class Once:
        capsule = exporter(array).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return self.capsule

    np.from_dlpack(Once())
    with pytest.raises(DTypeError, match="not an unused DLPack capsule"):
        as_view(Once(), "x")


@pytest.mark.parametrize("kept", ["capsule", "consumer"])
def test_what_outlives_the_interpreter_does_not_crash_it(kept):
    """Nobody lets go before the process ends; its callbacks must not run then."""
    text = f"""
import sys
import numpy as np
from cufmha.array.dlpack import Exporter
data = np.arange(6, dtype=np.int32)
export = Exporter(data, address=data.ctypes.data, shape=(6,), strides=(1,), type_code=0, bits=32,
                  device=(1, 0))
sys.kept = np.from_dlpack(export) if {kept!r} == "consumer" else export.__dlpack__()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
