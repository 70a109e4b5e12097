# SPDX-License-Identifier: Apache-2.0
"""A device that records launches in place of running them."""

from __future__ import annotations

import ctypes

from cufmha.device.emulator import HostMemory
from cufmha.emu.tensormap import SIZE, encode, replaced
from cufmha.kernels.params import parameters
from cufmha.kernels.render import render


class FakeDevice:
    """Takes CPU arrays, as the emulator does. `launches` holds (variant, grid, values, stream)."""

    kind = "emulator"
    ordinal = 0
    name = "fake"

    def __init__(self, arch="sm_90a", processors=5):
        self.arch, self.processors = arch, processors
        self.launches, self.loaded, self.encoded, self.workspaces = [], [], [], []

    def kernel(self, variant):
        self.loaded.append(variant)
        return FakeKernel(self, variant)

    def encode(self, spec, address):
        self.encoded.append((spec, address))
        return encode(spec, address)

    def workspace(self, size):
        self.workspaces.append(size)
        return HostMemory(size)

    def upload(self, address, source, size, stream):
        ctypes.memmove(address, source, size)

    def download(self, address, size, stream):
        return ctypes.string_at(address, size)

    def readdress(self, block, offset, address):
        block[offset : offset + SIZE] = replaced(
            bytes(block[offset : offset + SIZE]), address=address
        )


class FakeKernel:
    def __init__(self, device, variant):
        self.device, self.variant = device, variant
        self.parameters = parameters(render(variant).text, variant.operation)

    def prepare(self, *, grid, params, regions):
        import struct

        values = {
            name: struct.unpack_from("<" + field.format, params, field.offset)[0]
            if field.format
            else params[field.offset : field.offset + field.size]
            for name, field in self.parameters.fields.items()
        }

        def launch(stream):
            self.device.launches.append((self.variant, grid, values, stream))

        return launch
