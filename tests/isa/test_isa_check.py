# SPDX-License-Identifier: Apache-2.0
"""What a target lacks is refused as ptxas refuses it, and lint sees what one can see unrun."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from isa_answers import REGISTERS, answers
from isa_samples import HEAD

from cufmha.errors import ArgumentError, UnsupportedTarget
from cufmha.isa import parse
from cufmha.isa.check import lint, require_target
from cufmha.isa.targets import Need, Target

ENTRY = ".visible .entry k(.param .align 64 .b8 map[128]) .reqntid 128 .minnctapersm 1"
TRIED = [
    ("sm_80", "9.0"), ("sm_89", "9.0"), ("sm_90", "9.0"), ("sm_90", "7.8"), ("sm_90a", "8.0"),
    ("sm_90a", "8.5"), ("sm_100", "9.0"), ("sm_100a", "8.6"), ("sm_100a", "8.7"),
    ("sm_100f", "8.8"), ("sm_103a", "8.8"), ("sm_103f", "9.0"), ("sm_110a", "9.0"),
    ("sm_120a", "9.0"), ("sm_120f", "9.0"),
]  # fmt: skip


def text_of(target: str, version: str, lines: list[str]) -> str:
    """One instruction a line from line 6 on, so that a message's line tells which it means."""
    wide = " .reg .b128 %q<4>;" if any("%q" in line for line in lines) else ""
    head = f".version {version}\n.target {target}\n.address_size 64\n{ENTRY} {{\n"
    return "\n".join([f"{head}{REGISTERS}{wide}", *lines, "ret;", "}"])


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def instructions(version: str) -> list[tuple[str, tuple[str, ...], str]]:
    return [row for row in answers() if "%q" not in row[2] or number(version) >= (8, 3)]


def refused_lines(text: str) -> set[int]:
    return {f.line for f in lint(parse(text)) if f.rule in ("target", "version") and f.line > 5}


@pytest.mark.parametrize(("target", "version"), TRIED)
def test_the_table_refuses_just_what_the_recorded_answers_refuse(target, version):
    rows = instructions(version)
    text = text_of(target, version, [line for _, _, line in rows])
    chip = parse(text).target[0]
    expected = {
        place
        for place, (least, targets, _) in enumerate(rows, start=6)
        if not meets(least, targets, chip, version)
    }
    assert refused_lines(text) == expected


def meets(least: str, targets: tuple[str, ...], target: str, version: str) -> bool:
    need = Need(number(least), targets)
    return need.met_by(Target.parse(target)) and number(version) >= need.version


def test_no_recorded_instruction_is_an_unknown_form():
    text = text_of("sm_100a", "9.0", [line for _, _, line in answers()])
    assert [f for f in lint(parse(text)) if f.rule not in ("target", "version")] == []


def ptxas() -> str:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility("ptxas")
    found = found or shutil.which("ptxas")
    if found is None:
        pytest.skip("no ptxas on this machine")
    release = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    if "release 13.0" not in release.stdout:
        pytest.skip("the answers are those of ptxas 13.0")
    return found


@pytest.mark.parametrize(("target", "version"), TRIED)
def test_ptxas_gives_the_recorded_answers(target, version, tmp_path):
    assembler = ptxas()
    text = text_of(target, version, [line for _, _, line in instructions(version)])
    source = tmp_path / "k.ptx"
    source.write_text(text)
    done = subprocess.run(
        [assembler, f"-arch={target}", str(source), "-o", str(tmp_path / "k.cubin")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "fatal   : Parsing error" not in done.stderr
    assert {int(n) for n in re.findall(r"line (\d+); error", done.stderr)} == refused_lines(text)


@pytest.mark.parametrize(
    ("target", "version", "line", "needs"),
    [
        ("sm_90a", "9.0", "tcgen05.wait::ld.sync.aligned;", "sm_100a, sm_100f, sm_103a"),
        ("sm_100a", "9.0", "wgmma.fence.sync.aligned;", "it needs sm_90a"),
        ("sm_90a", "9.0", "add.rn.f32x2 %rd1, %rd2, %rd3;", "it needs sm_100 or newer"),
        ("sm_90a", "8.0", "max.f32 %f1, %f2, %f3, %f4;", "it needs sm_100 or newer"),
        ("sm_90", "9.0", "setmaxnreg.inc.sync.aligned.u32 240;", "it needs sm_90a"),
        ("sm_100a", "8.6", "max.f32 %f1, %f2, %f3, %f4;", "needs .version 8.8"),
        ("sm_80", "9.0", "mov.u32 %r1, %cluster_ctarank;", "it needs sm_90 or newer"),
    ],
)
def test_a_refusal_names_line_instruction_target_and_what_it_needs(target, version, line, needs):
    module = parse(text_of(target, version, ["ret;", line]), filename="k.ptx")
    with pytest.raises(UnsupportedTarget, match=re.escape(needs)) as caught:
        require_target(module, target)
    assert str(caught.value).startswith(f"k.ptx, line 7: {line.split(maxsplit=1)[0].rstrip(';')}")


@pytest.mark.parametrize(
    ("target", "chips", "others"),
    [
        ("sm_90", ["sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a"], ["sm_80"]),
        ("sm_90a", ["sm_90a"], ["sm_100a", "sm_89", "sm_103a"]),
        ("sm_100f", ["sm_100a", "sm_103a"], ["sm_90a", "sm_110a", "sm_120a"]),
        ("sm_103f", ["sm_103a"], ["sm_100a"]),
        ("sm_100a", ["sm_100a"], ["sm_103a", "sm_90a"]),
    ],
)
def test_text_loads_on_the_chips_its_target_names(target, chips, others):
    module = parse(text_of(target, "9.0", []))
    for chip in chips:
        require_target(module, chip)
    for chip in others:
        with pytest.raises(UnsupportedTarget, match=f"does not load on {chip}"):
            require_target(module, chip)


def test_a_version_older_than_the_target_is_refused():
    with pytest.raises(UnsupportedTarget, match=re.escape(".target sm_100f needs .version 8.8")):
        require_target(parse(text_of("sm_100f", "8.6", [])), "sm_100a")


def test_a_target_line_without_a_known_target_is_refused():
    module = parse(HEAD.replace("sm_100a", "sm_10g0a"))
    with pytest.raises(UnsupportedTarget, match=re.escape(".target sm_10g0a names no sm_XX")):
        require_target(module, "sm_100a")


def test_an_arch_that_is_no_target_is_an_argument_error():
    with pytest.raises(ArgumentError, match="got 'hopper'"):
        require_target(parse(text_of("sm_90a", "9.0", [])), "hopper")


CLEAN = """
.extern .shared .align 16 .b8 smem[];
.func helper(.param .b32 x) { ret; }
.entry k(.param .u64 p) .reqntid 128 .minnctapersm 1 {
  .reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<2>; .reg .v2 .f32 %v; .reg .pred named;
$top:
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mov.b32 %r0, %v.x;
  setp.eq.u32 %p1, %r1, 0; @%p1 bra $top; @!named bra.uni $end;
  { .reg .b32 inner; mov.b32 inner, %r3; bra $end; .param .b32 a;
    st.param.b32 [a], inner; call helper, (a); }
  targets: .branchtargets $top, $end;
  brx.idx %r1, targets;
  setmaxnreg.dec.sync.aligned.u32 24;
$end:
  ret;
}
"""


def test_a_clean_kernel_has_no_findings():
    assert lint(parse(HEAD + CLEAN), "sm_100a") == []


@pytest.mark.parametrize(
    ("before", "after", "rule", "message"),
    [
        ("mov.u32 %r1, %tid.x", "mov.u32 %r4, %tid.x", "undeclared", "register %r4"),
        ("mov.u32 %r1, %tid.x", "mov.u32 %r01, %tid.x", "undeclared", "register %r01"),
        ("mov.u32 %r1, %tid.x", "mov.u32 %r1, %tidy.x", "undeclared", "register %tidy.x"),
        ("[p]", "[q]", "undeclared", "q is not declared"),
        ("$end:", "mov.b32 inner, %r3; $end:", "undeclared", "inner is not declared"),
        ("@!named", "@!nobody", "undeclared", "register nobody"),
        ("@%p1 bra", "@%r1 bra", "guard", "guard %r1 is .b32, not .pred"),
        ("bra.uni $end", "bra.uni $nowhere", "unknown-label", "label $nowhere"),
        ("$top, $end;", "$top, $ends;", "unknown-label", "label $ends"),
        ("$end:", "$top:", "duplicate-label", "label $top stands twice"),
        (".reg .pred named", ".reg .pred named, named", "duplicate", "register named"),
        (" .minnctapersm 1", "", "setmaxnreg", "C7508"),
        (".reqntid 128 ", "", "setmaxnreg", "C7508"),
        ("mov.u32 %r2, smem", "mov.u33 %r2, smem", "form", "takes no .u33 there"),
        ("mov.u32 %r2, smem", "mov %r2, smem", "form", "lacks one of"),
        ("mov.u32 %r2, smem", "mov.u32 %r2", "form", "does not take 1 operand"),
        ("setmaxnreg", "elect.sync _|%p1, -1; @%p1 setmaxnreg", "aligned", "%p1 differs"),
        ("setmaxnreg", "@%p1 setmaxnreg", "aligned", "%p1 differs"),
    ],
)
def test_lint_finds_one_planted_mistake(before, after, rule, message):
    assert before in CLEAN
    planted = (HEAD + CLEAN).replace(before, after, 1)
    findings = lint(parse(planted), "sm_100a")
    assert rule in {f.rule for f in findings}
    assert any(f.rule == rule and message in f.message for f in findings), findings
    line = HEAD.count("\n") + CLEAN[: CLEAN.index(before)].count("\n") + 1
    if rule in ("undeclared", "guard", "form"):
        assert any(f.rule == rule and f.line == line for f in findings)


def test_maxnreg_alone_keeps_setmaxnreg():
    text = (HEAD + CLEAN).replace(".reqntid 128 .minnctapersm 1", ".maxnreg 128")
    assert lint(parse(text), "sm_100a") == []
