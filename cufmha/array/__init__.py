# SPDX-License-Identifier: Apache-2.0
"""Arrays of any framework at the door: views, dtypes, streams, allocation."""
