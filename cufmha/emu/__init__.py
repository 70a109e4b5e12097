# SPDX-License-Identifier: Apache-2.0
"""An emulator of PTX for sm_90a, sm_100a and sm_103a on NumPy, stricter than the hardware."""
