# SPDX-License-Identifier: Apache-2.0
"""Forms of the instructions: groups of modifiers and operand counts; what fits none is no PTX.

A form reads `mbarrier try_wait parity? $sem? $scope? shared|shared::cta b64 / 3-4`: the opcode,
groups (`?` optional, `|` alternatives, `$` a named set), and operand counts. ptxas takes modifiers
in any order, so each modifier fills the first free group that holds it; types keep their order,
because equal groups fill from left to right. An opcode without a form here is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from . import nodes

SETS: dict[str, str] = {
    "sem": "weak|volatile|relaxed|acquire|release|acq_rel|sc",
    "scope": "cta|cluster|gpu|sys",
    "space": "global|shared|shared::cta|shared::cluster|local|const|param|param::entry|param::func",
    "shared": "shared|shared::cta|shared::cluster",
    "cache": "ca|cg|cs|lu|cv|wb|wt",
    "L1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "L2": "L2::evict_normal|L2::evict_first|L2::evict_last|L2::64B|L2::128B|L2::256B",
    "hint": "L2::cache_hint",
    "v": "v2|v4|v8",
    "int": "u16|u32|u64|s16|s32|s64|u16x2|s16x2",
    "float": "f16|f16x2|bf16|bf16x2|f32|f32x2|f64",
    "bits": "b8|b16|b32|b64|b128",
    "any": "b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f16|f16x2|bf16|bf16x2|f32|f32x2|f64",
    "rnd": "rn|rz|rm|rp|rna|rs",
    "irnd": "rni|rzi|rmi|rpi",
    "cmp": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan",
    "bool": "and|or|xor",
    "narrow": "e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2|ue8m0x2|e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4|tf32",
    "atom": "and|or|xor|cas|exch|add|inc|dec|min|max",
    "group": "cta_group::1|cta_group::2",
    "dim": "1d|2d|3d|4d|5d",
    "tile": "tile|tile::gather4|tile::scatter4|im2col|im2col::w|im2col::w::128|im2col_no_offs",
    "tx": "mbarrier::complete_tx::bytes",
    "kind": "kind::f16|kind::tf32|kind::f8f6f4|kind::i8|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4",
    "shape": "16x64b|16x128b|16x256b|32x32b|16x32bx2",
    "times": "x1|x2|x4|x8|x16|x32|x64|x128",
    "block": "scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32",
    "collector": "|".join(
        f"collector::{m}::{u}" for m in ("a", "b0", "b1", "b2", "b3")
        for u in ("fill", "use", "lastuse", "discard")
    ),
    "wtype": "f16|bf16|tf32|e4m3|e5m2|s8|u8|b1",
    "m": "f16|bf16|tf32|f32|f64|e4m3|e5m2|e3m2|e2m3|e2m1|s8|u8|s4|u4|b1|s32|ue8m0|ue4m3",
}  # fmt: skip

FORMS = """
abs ftz? $int|$float / 2
neg ftz? $int|$float / 2
add $rnd? ftz? sat? $int|$float / 3
add $rnd? sat? f32 f16|bf16 / 3
add cc u32|s32|u64|s64 / 3
sub $rnd? ftz? sat? $int|$float / 3
sub $rnd? sat? f32 f16|bf16 / 3
sub cc u32|s32|u64|s64 / 3
addc cc? u32|s32|u64|s64 / 3
subc cc? u32|s32|u64|s64 / 3
mul $rnd? ftz? sat? $float / 3
mul hi|lo|wide $int / 3
mul24 hi|lo u32|s32 / 3
mad hi|lo|wide cc? sat? $int / 4
mad $rnd? ftz? sat? f32|f64 / 4
madc hi|lo cc? u32|s32|u64|s64 / 4
fma $rnd ftz? sat? relu? oob? $float / 4
fma $rnd sat? f32 f16|bf16 / 4
div $int / 3
div approx|full|$rnd ftz? f32|f64 / 3
rem $int / 3
min ftz? NaN? xorsign? abs? relu? $int|$float / 3-4
max ftz? NaN? xorsign? abs? relu? $int|$float / 3-4
rcp approx|$rnd ftz? f32|f64 / 2
sqrt approx|$rnd ftz? f32|f64 / 2
rsqrt approx ftz? f32|f64 / 2
sin approx ftz? f32 / 2
cos approx ftz? f32 / 2
lg2 approx ftz? f32 / 2
ex2 approx ftz? f32|f16|f16x2|bf16|bf16x2 / 2
tanh approx f32|f16|f16x2|bf16|bf16x2 / 2
copysign f32|f64 / 3
testp finite|infinite|number|notanumber|normal|subnormal f32|f64 / 2
and pred|$bits / 3
or pred|$bits / 3
xor pred|$bits / 3
not pred|$bits / 2
cnot $bits / 2
lop3 b32 / 5
lop3 and|or b32 / 6
shl $bits / 3
shr $bits|$int / 3
shf l|r wrap|clamp b32 / 4
prmt b32 f4e|b4e|rc8|ecl|ecr|rc16? / 4
popc b32|b64 / 2
clz b32|b64 / 2
brev b32|b64 / 2
bfind shiftamt? u32|u64|s32|s64 / 2
bfe u32|u64|s32|s64 / 4
bfi b32|b64 / 5
szext wrap|clamp u32|s32 / 3
bmsk wrap|clamp b32 / 3
fns b32 / 4
sad $int / 4
dp4a u32|s32 u32|s32 / 4
dp2a lo|hi u32|s32 u32|s32 / 4
set $cmp $bool? ftz? $any $any / 3-4
setp $cmp $bool? ftz? $any / 3-4
selp $any / 4
slct ftz? $any s32|f32 / 4
mov pred|$any / 2
cvt $rnd|$irnd? ftz? sat? satfinite? relu? $any|$narrow $any|$narrow / 2-4
cvt $rnd|$irnd? ftz? sat? satfinite? relu? scaled::n2::ue8m0 $any|$narrow $any|$narrow / 2-4
cvt pack sat u16|s16|u8|s8|u4|s4|u2|s2 s32 b32? / 3-4
cvta to? $space u32|u64 / 2
isspacep $space / 2
ld $sem? mmio? $scope? $space? $cache? nc? $L1? $L2? $L2? $hint? $v? $any / 2-3
ldu $space? $v? $any / 2
st $sem? mmio? $scope? $space? $cache? $L1? $L2? $hint? $v? $any / 2-3
st async weak? release? $scope? shared::cluster $tx? $v? $any / 3
st bulk weak? shared|shared::cta? / 2-3
atom $sem? $scope? $space? $atom noftz? $hint? $v? $any / 3-5
red $sem? $scope? $space? $atom noftz? $hint? $v? $any / 2-3
red async relaxed? $scope? shared::cluster $tx $atom $any / 3
prefetch tensormap|L1|L2|L2::evict_last|L2::evict_normal $space? / 1
prefetch $space tensormap / 1
prefetchu L1 / 1
discard global? L2 / 2
applypriority global? L2::evict_normal / 2
bra uni? / 1
brx idx uni? / 2
call uni? / 1-4
ret uni? / 0
exit / 0
trap / 0
brkpt / 0
nanosleep u32 / 1
activemask b32 / 1
elect sync / 2
vote sync any|all|uni|ballot pred|b32 / 3
match any|all sync b32|b64 / 3
shfl sync idx|up|down|bfly b32 / 5
redux sync add|min|max|and|or|xor abs? NaN? u32|s32|b32|f32 / 3
bar cta? sync|arrive / 1-2
bar cta? red popc|and|or u32|pred / 3-4
bar warp sync / 1
barrier cta? sync|arrive aligned? / 1-2
barrier cta? red popc|and|or aligned? u32|pred / 3-4
barrier cluster arrive release|relaxed? aligned? / 0
barrier cluster wait acquire? aligned? / 0
membar cta|gl|sys / 0
membar proxy alias|async|async.global|async.shared::cta / 0
fence sc|acq_rel|acquire|release $scope / 0
fence acquire|release sync_restrict::shared::cluster|sync_restrict::shared::cta cluster / 0
fence mbarrier_init release cluster / 0
fence proxy alias|async global|shared|shared::cta|shared::cluster? / 0
fence proxy tensormap::generic|async::generic release|acquire $scope / 0-2
fence proxy async::generic acquire|release $restrict cluster / 0
griddepcontrol launch_dependents|wait / 0
setmaxnreg inc|dec sync aligned u32 / 1
mapa $shared? u32|u64 / 3
getctarank $shared? u32|u64 / 2
createpolicy fractional $prim $prim? b64 / 1-2
createpolicy range global? $prim $prim? b64 / 3-4
mbarrier init|inval $shared? b64 / 1-2
mbarrier arrive|arrive_drop noComplete? expect_tx? $sem? $scope? $shared? b64 / 1-3
mbarrier expect_tx|complete_tx $sem? $scope? $shared? b64 / 2
mbarrier test_wait|try_wait parity? $sem? $scope? $shared? b64 / 3-4
mbarrier pending_count b64 / 2
cp async ca|cg $shared global $hint? L2::64B|L2::128B|L2::256B? / 3-5
cp async commit_group|wait_all / 0
cp async wait_group / 1
cp async mbarrier arrive noinc? $shared? b64 / 1
cp async bulk $shared global $tx multicast::cluster? $hint? / 4-6
cp async bulk shared::cluster shared::cta $tx / 4
cp async bulk global shared::cta bulk_group $hint? cp_mask? / 3-5
cp async bulk commit_group / 0
cp async bulk wait_group read? / 1
cp async bulk prefetch L2 global $hint? / 2-3
cp reduce async bulk shared::cluster shared::cta $tx $atom $any / 4
cp reduce async bulk global shared::cta bulk_group $hint? $atom noftz? $any / 3-4
cp async bulk tensor $dim $shared global $tile? $tx multicast::cluster? $group? $hint? / 3-6
cp async bulk tensor $dim global shared::cta $tile? bulk_group $hint? / 2-3
cp reduce async bulk tensor $dim global shared::cta $atom $tile? bulk_group $hint? / 2-3
cp async bulk prefetch tensor $dim L2 global $tile? $hint? / 1-3
tensormap replace tile $field global|shared::cta? b1024 b32|b64 / 2-3
tensormap cp_fenceproxy global shared::cta tensormap::generic release $scope sync aligned / 3
clusterlaunchcontrol try_cancel async shared::cta? $tx multicast::cluster::all? b128 / 2
clusterlaunchcontrol query_cancel is_canceled pred b128 / 2
clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128 / 2
clusterlaunchcontrol query_cancel $ctaid b32 b128 / 2
ldmatrix sync aligned m8n8|m16n16|m8n16 $many trans? $own? b16|b8|b8x16 $unpack? / 2
stmatrix sync aligned m8n8|m16n8 $many trans? $own? b16|b8 / 2
movmatrix sync aligned m8n8 trans b16 / 2
mma sync aligned $mmashape $major $major satfinite? $m $m $m $m / 4
mma sync aligned $mmashape $major $major $kind $m $m $m $m / 4
mma sync aligned $mmashape $major $major $kind block_scale $block? $m $m $m $m $m / 10
wgmma fence|commit_group sync aligned / 0
wgmma wait_group sync aligned / 1
wgmma mma_async sp? sync aligned $wshape f32|f16|s32 $wtype $wtype satfinite? / 4-9
tcgen05 alloc $group sync aligned shared|shared::cta? b32 / 2
tcgen05 dealloc $group sync aligned b32 / 2
tcgen05 relinquish_alloc_permit $group sync aligned / 0
tcgen05 mma sp? $group $kind ashift? $collector? / 4-8
tcgen05 mma sp? $group $kind block_scale $block? $collector? / 6-8
tcgen05 mma ws sp? $group $kind $collector? / 4-8
tcgen05 commit $group mbarrier::arrive::one shared::cluster? multicast::cluster? b64 / 1-2
tcgen05 ld sync aligned $shape $times pack::16b? b32 / 2-3
tcgen05 ld red sync aligned 32x32b|16x32bx2 $times min|max abs? NaN? u32|s32|f32 / 3-4
tcgen05 st sync aligned $shape $times unpack::16b? b32 / 2-3
tcgen05 wait::ld|wait::st sync aligned / 0
tcgen05 cp $group $cpshape $warps? b8x16? $unpack? / 2
tcgen05 shift $group down / 1
tcgen05 fence::before_thread_sync|fence::after_thread_sync / 0
"""
SETS |= {
    "restrict": "sync_restrict::shared::cluster|sync_restrict::shared::cta",
    "unpack": "b6x16_p32|b4x16_p64",
    "major": "row|col",
    "many": "x1|x2|x4",
    "own": "shared|shared::cta",
    "cpshape": "128x256b|4x256b|128x128b|64x128b|32x128b",
    "warps": "warpx2::02_13|warpx2::01_23|warpx4",
    "prim": "L2::evict_first|L2::evict_last|L2::evict_normal|L2::evict_unchanged",
    "field": "global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype"
    "|interleave_layout|swizzle_mode|swizzle_atomicity|fill_mode",
    "ctaid": "get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z",
    "mmashape": "m8n8k4|m8n8k16|m8n8k32|m8n8k128|m16n8k4|m16n8k8|m16n8k16|m16n8k32|m16n8k64"
    "|m16n8k128|m16n8k256",
    "wshape": "|".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32, 256)),
}


@dataclass(frozen=True, slots=True)
class Form:
    """One line of FORMS."""

    groups: tuple[tuple[frozenset[str], bool], ...]
    fewest: int
    most: int

    def unfit(self, modifiers: tuple[str, ...]) -> tuple[int, str | None]:
        """How many modifiers fit, and what is wrong with the next one or what is missing."""
        free = list(self.groups)
        for count, modifier in enumerate(modifiers):
            index = next((i for i, (words, _) in enumerate(free) if modifier in words), None)
            if index is None:
                return count, f"takes no .{modifier} there"
            del free[index]
        missing = next((words for words, optional in free if not optional), None)
        if missing is None:
            return len(modifiers), None
        return len(modifiers), f"lacks one of .{', .'.join(sorted(missing)[:6])}"


def _group(text: str) -> tuple[frozenset[str], bool]:
    words: list[str] = []
    for word in text.removesuffix("?").split("|"):
        words += SETS[word[1:]].split("|") if word.startswith("$") else [word]
    return frozenset(words), text.endswith("?")


@cache
def forms() -> dict[str, tuple[Form, ...]]:
    """Forms by opcode."""
    found: dict[str, tuple[Form, ...]] = {}
    for line in FORMS.strip().splitlines():
        text, _, counts = line.partition(" / ")
        opcode, *groups = text.split()
        fewest, _, most = counts.partition("-")
        form = Form(tuple(map(_group, groups)), int(fewest), int(most or fewest))
        found[opcode] = (*found.get(opcode, ()), form)
    return found


@cache
def _misfit(opcode: str, modifiers: tuple[str, ...], operands: int) -> str | None:
    known = forms().get(opcode)
    if known is None:
        return None
    name = ".".join((opcode, *modifiers))
    outcomes = [form.unfit(modifiers) for form in known]
    fitting = [form for form, (_, why) in zip(known, outcomes, strict=True) if why is None]
    if not fitting:
        _, nearest = max(outcomes, key=lambda outcome: outcome[0])
        return f"{name} is no known form: it {nearest}"
    if not any(form.fewest <= operands <= form.most for form in fitting):
        return f"{name} does not take {operands} operand{'s' * (operands != 1)}"
    return None


def misfit(instruction: nodes.Instruction) -> str | None:
    """Why an instruction fits no form of its opcode, or None."""
    return _misfit(instruction.opcode, instruction.modifiers, len(instruction.operands))
