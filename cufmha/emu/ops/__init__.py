# SPDX-License-Identifier: Apache-2.0
"""One file per family of instructions; importing a file registers its operations."""
