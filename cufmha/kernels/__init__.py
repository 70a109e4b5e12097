# SPDX-License-Identifier: Apache-2.0
"""The PTX files as a catalog of variants: rendering, parameters, assembling."""
