# SPDX-License-Identifier: Apache-2.0
"""`python -m cufmha.emu`: launches from files, lint, canonical text, profile, trace, debugger."""

from __future__ import annotations

import io
import json

import ml_dtypes
import numpy as np
import pytest

from cufmha.emu.__main__ import main
from cufmha.emu.spelled import parse_arguments, parse_dimension
from cufmha.errors import ArgumentError

AXPY = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %out;
    .reg .b32 %i, %n, %block, %threads;
    .reg .f32 %x, %y, %a;
    .reg .b64 %p, %q, %at;
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %out, %i, %n;
    @%out bra end;
    ld.param.u64 %p, [x];
    ld.param.u64 %q, [y];
    ld.param.f32 %a, [a];
    mul.wide.u32 %at, %i, 4;
    add.u64 %p, %p, %at;
    add.u64 %q, %q, %at;
    ld.global.f32 %x, [%p];
    ld.global.f32 %y, [%q];
    fma.rn.f32 %y, %a, %x, %y;
    bar.sync 0;
    st.global.f32 [%q], %y;
end:
    ret;
}
"""


@pytest.fixture
def ptx(tmp_path):
    path = tmp_path / "axpy.ptx"
    path.write_text(AXPY)
    return path


def launch(command, ptx, *arguments, options=()):
    return main([command, str(ptx), "--arch", "sm_90a", "--grid", "2", "--block", "64", *options,
                 "--args", *arguments])  # fmt: skip


def test_run_takes_arrays_from_files_and_saves_them(ptx, tmp_path, capsys):
    x, y = np.arange(128, dtype=np.float32), np.ones(128, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "data.npz", other=x, y=y)
    status = launch(
        "run", ptx, f"{tmp_path}/x.npy", f"{tmp_path}/data.npz:y", "f32:2.5", "u32:128",
        options=("--save", f"{tmp_path}/out.npz"),
    )  # fmt: skip
    assert status == 0
    with np.load(tmp_path / "out.npz") as saved:
        assert (saved["arg1"] == 2.5 * x + y).all()
        assert (saved["arg0"] == x).all()
    assert "instructions" in capsys.readouterr().out
    assert (np.load(tmp_path / "x.npy") == x).all()


def test_a_program_that_goes_wrong_ends_in_one_sentence_and_status_2(ptx, capsys):
    assert launch("run", ptx, "zeros:f32:100", "zeros:f32:128", "f32:1", "u32:128") == 2
    text = capsys.readouterr().err
    assert text.startswith("OutOfBounds: axpy, line 23, block 1")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["zeros:f32:100"], "takes 4 arguments"),
        (["zeros:f33:1"] * 4, "f33"),
        (["nothing.npy"] * 4, "no file nothing.npy"),
        (["zeros:f32:1", "zeros:f32:1", "f32:x", "u32:1"], "'x' is no number"),
    ],
)
def test_wrong_arguments_are_named(ptx, capsys, arguments, match):
    assert launch("run", ptx, *arguments) == 2
    assert match in capsys.readouterr().err


def test_a_missing_file_and_broken_text_are_errors_too(tmp_path, capsys):
    assert launch("run", tmp_path / "none.ptx") == 2
    broken = tmp_path / "broken.ptx"
    broken.write_text(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k( {\n")
    assert main(["disasm", str(broken)]) == 2
    assert "broken.ptx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"), [("a.npy", b"\x00" * 40), ("a.npz", b"PK\x03\x04junk"), ("a.npy", b"")]
)
def test_damaged_files_are_errors(ptx, tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    assert launch("run", ptx, f"{tmp_path}/{name}:x", "zeros:f32:1", "f32:1", "u32:1") == 2
    assert name in capsys.readouterr().err


def test_arrays_of_any_order_and_kind_are_shown(ptx, tmp_path, capsys):
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((16, 8), np.float32)))
    np.save(tmp_path / "s.npy", np.array(["abc"] * 100))
    status = launch("run", ptx, f"{tmp_path}/f.npy", f"{tmp_path}/s.npy", "f32:0", "u32:64")
    assert status == 0
    assert "16x8" in capsys.readouterr().out


def test_places_that_cannot_be_written_and_sizes_that_do_not_fit_are_errors(ptx, capsys):
    arguments = ("zeros:f32:128", "zeros:f32:128", "f32:0", "u32:64")
    assert launch("run", ptx, *arguments, options=("--save", "/nonexistent/out.npz")) == 2
    assert "/nonexistent/out.npz" in capsys.readouterr().err
    assert launch("run", ptx, "zeros:f32:9000000x9000000", *arguments[1:]) == 2
    assert "memory" in capsys.readouterr().err
    assert launch("run", ptx, *arguments, options=("--seed", "-1")) == 2
    assert "--seed" in capsys.readouterr().err


def test_check_lists_findings_and_sets_the_status(ptx, tmp_path, capsys):
    assert main(["check", str(ptx), "--arch", "sm_90a"]) == 0
    other = tmp_path / "other.ptx"
    other.write_text(AXPY.replace("%q, [y]", "%typo, [y]"))
    assert main(["check", str(other)]) == 1
    assert "%typo" in capsys.readouterr().out
    assert main(["check", str(ptx), "--arch", "sm_100a"]) == 1


def test_disasm_prints_text_that_parses_to_the_same(ptx, tmp_path, capsys):
    assert main(["disasm", str(ptx)]) == 0
    first = capsys.readouterr().out
    again = tmp_path / "again.ptx"
    again.write_text(first)
    assert main(["disasm", str(again)]) == 0
    assert capsys.readouterr().out == first


def test_the_profile_counts_what_ran(ptx, capsys):
    status = launch("profile", ptx, "ones:f32:128", "ones:f32:128", "f32:1", "u32:128",
                    options=("--lines", "2"))  # fmt: skip
    out = capsys.readouterr().out
    assert status == 0
    assert "warps 0-1" in out
    assert [line.split("│")[2].strip() for line in out.splitlines() if "float" in line] == ["4"]
    assert "most executed" in out


def test_the_timeline_has_every_warp_and_its_waits(ptx, tmp_path):
    path = tmp_path / "trace.json"
    status = launch("trace", ptx, "ones:f32:128", "ones:f32:128", "f32:1", "u32:128",
                    options=("--out", str(path)))  # fmt: skip
    assert status == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {"warp 0", "warp 1"}
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] > 0 for e in spans)
    assert {e["cat"] for e in spans} >= {"run"}
    assert {e["pid"] for e in spans} == {0, 1}


def test_the_timeline_as_a_picture(ptx, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "trace.png"
    status = launch("trace", ptx, "ones:f32:128", "ones:f32:128", "f32:1", "u32:128",
                    options=("--png", str(path)))  # fmt: skip
    assert status == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_trace_wants_somewhere_to_write(ptx, capsys):
    assert launch("trace", ptx, "ones:f32:128", "ones:f32:128", "f32:1", "u32:128") == 2
    assert "--out" in capsys.readouterr().err


def debug(monkeypatch, capsys, ptx, commands):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(commands) + "\n"))
    arguments = ("ones:f32:128", "ones:f32:128", "f32:2", "u32:128")
    assert launch("debug", ptx, *arguments) == 0
    return capsys.readouterr().out


def test_the_debugger_stops_at_a_line_of_a_warp_and_shows_registers(monkeypatch, capsys, ptx):
    out = debug(monkeypatch, capsys, ptx, ["break 25 1 1", "c", "print %i 0", "print %x 3", "step",
                                           "print %y 3", "warps", "continue"])  # fmt: skip
    assert "block 1, warp 1, all lanes, line 25: fma.rn.f32 %y, %a, %x, %y;" in out
    assert "%i (.b32) 0x60" in out
    assert "%x (.f32) 1.0" in out
    assert "%y (.f32) 3.0" in out
    assert "block 1, warp 1: line 26" in out
    assert "the launch has ended" in out


def test_the_debugger_answers_mistakes_and_quits(monkeypatch, capsys, ptx):
    out = debug(monkeypatch, capsys, ptx, ["jump", "break 2", "smem 0", "print %nope", "tmem",
                                           "help", "quit"])  # fmt: skip
    assert "no command 'jump'" in out
    assert "line 2 holds no instruction" in out
    assert "OutOfBounds" in out
    assert "%nope is no register" in out
    assert "wrong arguments" in out
    assert "breakpoints by line" not in out
    assert "smem OFFSET" in out
    assert "ended" not in out


def test_arguments_are_made_up_as_told():
    made = parse_arguments(["zeros:bf16:2x3", "random:u8:5", "nan:f32:1", "i64:-7", "hex:00ff",
                            "random:u8:5"], seed=3)  # fmt: skip
    assert made[0].shape == (2, 3)
    assert made[0].dtype == ml_dtypes.bfloat16
    assert made[1].dtype == np.uint8
    assert np.isnan(made[2]).all()
    assert made[3] == -7
    assert made[4] == b"\x00\xff"
    assert (made[1] != made[5]).any()
    assert (parse_arguments(["random:f32:4"], seed=1)[0]
            == parse_arguments(["random:f32:4"], seed=1)[0]).all()  # fmt: skip


def test_tensor_maps_name_an_array_or_an_earlier_argument():
    array, (spec, mapped), (again, same) = parse_arguments(
        ["zeros:bf16:4x128", "tma:@0;box=64x4;swizzle=128B", "tma:@1;box=64x2"]
    )
    assert mapped is array
    assert same is array
    assert spec.dims == (128, 4)
    assert spec.strides == (256,)
    assert spec.box == (64, 4)
    assert spec.swizzle == "128B"
    assert again.dtype == "bf16"


@pytest.mark.parametrize(
    ("text", "match"),
    [("tma:@0;box=64", "no array"), ("tma:zeros:f32:8x8", "box"), ("u8:300", "does not fit"),
     ("tma:zeros:f32:8x8;boxes=1", "boxes"), ("zeros:f32:0", "extents"), ("nan:u8:3", "no NaN"),
     ("hex:0g", "hex digits"), ("what", "neither")],
)  # fmt: skip
def test_arguments_that_say_nothing_are_refused(text, match):
    with pytest.raises(ArgumentError, match=match):
        parse_arguments([text])


def test_dimensions_have_one_to_three_positive_extents():
    assert parse_dimension("4", "--grid") == (4, 1, 1)
    assert parse_dimension("4x2,3", "--grid") == (4, 2, 3)
    for text in ("0", "1,2,3,4", "x", ""):
        with pytest.raises(ArgumentError, match="--grid"):
            parse_dimension(text, "--grid")
