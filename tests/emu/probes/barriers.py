# SPDX-License-Identifier: Apache-2.0
"""mbarrier objects step by step, cp.async, and named barriers that reduce."""

from __future__ import annotations

import numpy as np

from .base import Output, Probe, module

SETUP = [
    ".reg .b32 %lane, %at32, %count, %flag;",
    ".reg .b64 %out, %state, %index;",
    ".reg .pred %leader, %p;",
    "mov.u32 %lane, %tid.x;",
    "mov.u32 %at32, barrier;",
    "setp.eq.u32 %leader, %lane, 0;",
    "@!%leader bra end;",
    "ld.param.u64 %out, [p0];",
    "mbarrier.init.shared::cta.b64 [%at32], 3;",
]


def script(name: str, steps: list[str], answers: int) -> Probe:
    """Thread 0 runs the steps; `?0`, `?1`, `?state` ask about that phase, `value` stores %p."""
    lines, number = list(SETUP), 0
    for step in steps:
        if step.startswith("?"):
            what = step[1:]
            test = f"mbarrier.test_wait.parity.shared::cta.b64 %p, [%at32], {what};"
            if what == "state":
                test = "mbarrier.test_wait.shared::cta.b64 %p, [%at32], %state;"
            lines += [
                test,
                "selp.u32 %flag, 1, 0, %p;",
                f"st.global.u32 [%out+{4 * number}], %flag;",
            ]
            number += 1
        elif step == "value":
            lines += ["selp.u32 %flag, 1, 0, %p;", f"st.global.u32 [%out+{4 * number}], %flag;"]
            number += 1
        elif step == "pending":
            lines += [
                "mbarrier.pending_count.b64 %count, %state;",
                f"st.global.u32 [%out+{4 * number}], %count;",
            ]
            number += 1
        else:
            lines.append(step)
    if number != answers:
        raise ValueError(f"{name}: {number} answers, said {answers}")
    lines += ["end:", "ret;"]
    before = ".shared .align 8 .b64 barrier;"
    return Probe(
        name=name,
        text=module([".param .u64 p0"], lines, before=before, block=32),
        arguments=(Output((answers,), "uint32"),),
        block=32,
    )


ARRIVE = "mbarrier.arrive.shared::cta.b64 %state, [%at32];"
TWO = "mbarrier.arrive.shared::cta.b64 %state, [%at32], 2;"
NO_COMPLETE = "mbarrier.arrive.noComplete.shared::cta.b64 %state, [%at32], 2;"
DROP = "mbarrier.arrive_drop.shared::cta.b64 %state, [%at32];"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%at32], 64;"
COMPLETE = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%at32], 64;"
ARRIVE_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%at32], 64;"
DROP_EXPECT = "mbarrier.arrive_drop.expect_tx.shared::cta.b64 %state, [%at32], 64;"


def scripts():
    yield script("mbarrier.init and parities of a new barrier", ["?0", "?1"], 2)
    yield script("mbarrier.arrive three times", [ARRIVE, "?0", ARRIVE, "?0", "?state", ARRIVE, "?0",
                                                 "?1", "?state"], 6)  # fmt: skip
    yield script("mbarrier.arrive with a count", [TWO, "?0", ARRIVE, "?0", "?1"], 3)
    yield script("mbarrier.arrive.noComplete", [NO_COMPLETE, "pending", "?0", ARRIVE, "?0"], 3)
    yield script("mbarrier.pending_count", [ARRIVE, "pending", ARRIVE, "pending", ARRIVE, "pending",
                                            ARRIVE, "pending"], 4)  # fmt: skip
    three = [TWO, ARRIVE, "?0", "?1", ARRIVE, TWO, "?0", "?1", TWO, "?0", "?1", ARRIVE, "?0", "?1"]
    yield script("mbarrier over three phases", three, 8)
    yield script("mbarrier.arrive_drop lowers the next phase's count",
                 [DROP, TWO, "?0", ARRIVE, "?1", ARRIVE, "?1", "?0"], 4)  # fmt: skip
    yield script("mbarrier.expect_tx and complete_tx",
                 [EXPECT, TWO, ARRIVE, "?0", COMPLETE, "?0", "?1"], 3)  # fmt: skip
    yield script("mbarrier.complete_tx before expect_tx",
                 [COMPLETE, TWO, EXPECT, "?0", ARRIVE, "?0"], 2)  # fmt: skip
    yield script("mbarrier.arrive.expect_tx", [TWO, ARRIVE_EXPECT, "?0", COMPLETE, "?0"], 2)
    yield script("mbarrier.arrive_drop.expect_tx",
                 [TWO, DROP_EXPECT, "?0", COMPLETE, "?0", TWO, "?1"], 3)  # fmt: skip
    again = [TWO, "mbarrier.inval.shared::cta.b64 [%at32];"]
    again += ["mbarrier.init.shared::cta.b64 [%at32], 1;", "?0", ARRIVE, "?0"]
    yield script("mbarrier.inval and init again", again, 2)
    for form in ("try_wait.parity", "try_wait.parity.acquire.cta", "test_wait.parity.acquire.cta"):
        yield script(
            f"mbarrier.{form}",
            [TWO, ARRIVE, f"mbarrier.{form}.shared::cta.b64 %p, [%at32], 0;",
             "value", "?0", "?1"], 3,
        )  # fmt: skip


def copies():
    """cp.async of 4, 8 and 16 bytes, with fewer source bytes (zero-filled), and ignored sources."""
    data = np.arange(1, 513, dtype=np.uint32) * np.uint32(0x01010107)
    for cache, size, source in (("ca", 4, 4), ("ca", 8, 8), ("ca", 16, 16), ("cg", 16, 16),
                                ("ca", 4, 2), ("ca", 16, 7), ("cg", 16, 0)):  # fmt: skip
        sizes = f"{size}" if source == size else f"{size}, {source}"
        lines = [
            ".reg .b32 %lane, %to, %word;",
            ".reg .b64 %at, %index, %out;",
            "mov.u32 %lane, %tid.x;",
            "mov.u32 %to, tile;",
            f"mad.lo.u32 %to, %lane, {size}, %to;",
            "ld.param.u64 %at, [p0];",
            f"mul.wide.u32 %index, %lane, {size};",
            "add.u64 %at, %at, %index;",
            f"cp.async.{cache}.shared.global [%to], [%at], {sizes};",
            "cp.async.commit_group;",
            "cp.async.wait_group 0;",
            "ld.param.u64 %out, [p1];",
            "add.u64 %out, %out, %index;",
            *(
                line
                for i in range(size // 4)
                for line in (
                    f"ld.shared.b32 %word, [%to+{4 * i}];",
                    f"st.global.b32 [%out+{4 * i}], %word;",
                )
            ),
            "ret;",
        ]
        yield Probe(
            name=f"cp.async.{cache} {size} bytes, {source} from the source",
            text=module(
                [".param .u64 p0", ".param .u64 p1"],
                lines,
                before=".shared .align 16 .b8 tile[2048];",
            ),
            arguments=(data, Output((32 * size,), "uint32")),
        )


def reducing_barriers():
    values = np.array([0, 1, 1, 1] * 32, np.uint32)
    for name, predicate in (("mixed", values), ("all", values * 0 + 1), ("none", values * 0)):
        for form in ("popc.u32", "and.pred", "or.pred"):
            result = "%count" if form == "popc.u32" else "%q"
            lines = [
                ".reg .b32 %lane, %count;",
                ".reg .b64 %at, %index;",
                ".reg .pred %p, %q;",
                "mov.u32 %lane, %tid.x;",
                "mul.wide.u32 %index, %lane, 4;",
                "ld.param.u64 %at, [p0];",
                "add.u64 %at, %at, %index;",
                "ld.global.u32 %count, [%at];",
                "setp.ne.u32 %p, %count, 0;",
                f"barrier.cta.red.{form} {result}, 1, 128, %p;",
                *([] if form == "popc.u32" else ["selp.u32 %count, 1, 0, %q;"]),
                "ld.param.u64 %at, [p1];",
                "add.u64 %at, %at, %index;",
                "st.global.u32 [%at], %count;",
                "ret;",
            ]
            yield Probe(
                name=f"barrier.cta.red.{form} {name}",
                text=module([".param .u64 p0", ".param .u64 p1"], lines),
                arguments=(predicate, Output((128,), "uint32")),
            )


PROBES = [*scripts(), *copies(), *reducing_barriers()]
