# SPDX-License-Identifier: Apache-2.0
"""The emulator answers as the card did, probe by probe (tests/emu/golden, recorded on hardware)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import probes
import pytest
from probes.replay import difference, emulate, float_kind

GOLDEN = Path(__file__).parent / "golden"
CASES = [(family, probe) for family in probes.FAMILIES for probe in probes.family(family)]


@pytest.fixture(scope="module")
def answers():
    loaded = {}
    for family in probes.FAMILIES:
        with np.load(GOLDEN / f"{family}.npz") as file:
            loaded[family] = dict(file)
    return loaded


@pytest.mark.parametrize(
    ("family", "probe"), CASES, ids=[f"{family}: {probe.name}" for family, probe in CASES]
)
def test_the_emulator_answers_as_the_card_did(answers, family, probe):
    for number, got in enumerate(emulate(probe)):
        card = answers[family][f"{probe.name}|{number}"]
        assert not difference(probe, got, card, float_kind(probe))


def test_at_least_three_hundred_probes_are_recorded_and_none_is_without_a_probe(answers):
    recorded = {(family, key.rsplit("|", 1)[0]) for family in answers for key in answers[family]}
    assert recorded == {(family, probe.name) for family, probe in CASES}
    assert len(recorded) >= 300
