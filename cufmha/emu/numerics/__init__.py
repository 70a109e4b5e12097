# SPDX-License-Identifier: Apache-2.0
"""Number formats bit for bit, as pure functions over arrays."""
