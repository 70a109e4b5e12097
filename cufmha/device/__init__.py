# SPDX-License-Identifier: Apache-2.0
"""Where kernels run: the CUDA driver or the emulator, behind one protocol."""
