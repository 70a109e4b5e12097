# SPDX-License-Identifier: Apache-2.0
"""Hand-written PTX that holds every construct the front end knows, some of it nasty."""

from __future__ import annotations

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"

MODULE_SCOPE = (
    HEAD
    + """
.file 1 "a b , c.cu", 1700000000, 42
.global .u32 a, b[2], c = 7;
.extern .shared .align 1024 .b8 dynamic[];
.weak .global .align 8 .b64 w;
.common .global .b32 shared_by_files[4];
.global .attribute(.managed) .s32 m;
.global .u64 pointers[2] = {generic(a)+4, a+-4};
.global .u8 parts[2] = {0xFF(a), 0xFF00(a)};
.const .align 8 .v2 .f32 table[1][2] = {{0f3F800000, -1.5e3}, {1., 2}};
.pragma "nounroll";
.section .debug_str { L: .b8 1,2
.b32 .debug_abbrev+4 }
"""
)

FUNCTIONS = (
    HEAD
    + """
.func (.param .b32 rv) f (.param .b32 x, .param .b8 y[16]) .noreturn;
.func (.reg .b32 rv) g (.reg .b32 x) { mov.b32 rv, x; ret; }
.weak .func h() { ret; }
.visible .entry k (
  .param .u64 .ptr .global .align 16 p,  // a comment
  .param .u64 .ptr q, /* another
  one */ .param .align 64 .b8 map[128]
) .reqntid 128, 1, 1 .minnctapersm 1 .maxnreg 255 .reqnctapercluster 2, 1, 1
  .explicitcluster .pragma "nounroll", "enable_smem_spilling";
{
  .reg .b32 %r<4>, plain; .reg .pred %p<2>; .reg .v4 .f32 %v;
  .loc 1 2 3, function_name $L__x, inlined_at 1 2 3
$L: call (rv), f, (1, t, {%r1, %r2}), proto; call.uni h; call h, (); call (rv), %r1, (%r1), ts;
  proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b8 _[16]);
  ts: .branchtargets $L, $M;
  { .param .b32 t; { .local .align 4 .b8 frame[8]; st.param.b32 [t+0], %r1; } }
$M: @!%p1 bra.uni $L; brx.idx %r1, ts; ;
  ret;
}
"""
)

OPERANDS = (
    HEAD
    + """
.entry k() {
  setp.eq.or.s32 %p1|%p2, %r1, -1, !%p3;
  elect.sync _|%p1, 0xFFFFFFFF;
  neg.s32 r, -r; neg.s32 %r1, -%r1; mov.u32 %r1, -WARP_SZ; mov.u32 %r1, !0;
  mov.u32 %r1, %tid.x; mov.u32 r, tid.x; mov.u64 %rd1, %clock64; mov.b32 a$b, %%odd;
  mov.u32 %r1, 0x1fU; mov.u32 %r1, 017; mov.u32 %r1, 0b101; mov.u32 %r1, -2147483648;
  mov.u64 %rd1, (((.s64) 0xFFFFFFFFFFFFFFFFU) >> 3) ? WARP_SZ * 2 : 3 << 2;
  mov.u64 %rd1, 7 / 2 % 3 + (1 < 2) * ~4 ^ 5 & 6 | !1 && 1 || 0;
  mov.f32 %f1, 0f3F800000; mov.f32 %f1, -0F3f800000; mov.f64 %d1, 0D3ff0000000000000;
  mov.f32 %f1, 1.; mov.f32 %f1, -2e-3; mov.f64 %d1, 1E400;
  ld.b32 %r1, [ %rd1 + 0 ]; ld.b32 %r1, [%rd1+-8]; ld.b32 %r1, [%rd1-8]; ld.b32 %r1, [64+2*3];
  ld.shared::cluster.v4.b32 {%r1, _, r, 4}, [dynamic+4]; mov.b64 {%r1, {%r2, %v.x}}, %rd1;
  mov.u64 %rd1, dynamic+4; fma.rn.f32x2 %rd1, %rd1, %rd1, %rd1;
  cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
    [r], [%r1, {r, 0x10, -3}, {%r1}], [%r1];
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2}, %rd1, %rd2, 1, -1, 1, 0, 0;
  tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r1], [%r2], %rd1, %r3,
    [%r4], [%r5], %p1;
  @%p1 tcgen05.wait::ld.sync.aligned;
  ret;
}
"""
)

SAMPLES = {"module scope": MODULE_SCOPE, "functions": FUNCTIONS, "operands": OPERANDS}
