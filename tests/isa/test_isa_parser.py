# SPDX-License-Identifier: Apache-2.0
"""PTX text becomes nodes and comes back; what is no PTX is refused at its place."""

from __future__ import annotations

import importlib.util
import random
import re
import time
from pathlib import Path

import pytest
from isa_samples import FUNCTIONS, HEAD, MODULE_SCOPE, OPERANDS, SAMPLES

from cufmha.errors import PtxSyntaxError
from cufmha.isa import nodes, parse, print_module
from cufmha.isa.check import lint

KERNELS = Path(__file__).parents[2] / "ptx"


def first_operands(text: str) -> tuple[nodes.Operand, ...]:
    entry = parse(f"{HEAD}.entry k() {{ {text} }}").functions["k"]
    return entry.body.items[0].operands


def rendered_kernels() -> list[str]:
    if importlib.util.find_spec("cufmha.kernels.render") is None:
        return []
    from kernel_sample import sampled

    from cufmha.kernels import render

    texts = []
    for variant in sampled():
        rendered = render.render(variant)
        texts.append(rendered if isinstance(rendered, str) else rendered.text)
    return texts


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_printed_sample_parses_to_equal_nodes(text):
    module = parse(text)
    printed = print_module(module)
    assert parse(printed) == module
    assert print_module(parse(printed)) == printed


def test_every_shipped_kernel_round_trips():
    texts = rendered_kernels()
    if not texts:
        pytest.skip("no kernel catalog to render")
    for text in texts:
        module = parse(text)
        assert print_module(module) == text


def test_an_instruction_keeps_opcode_modifiers_guard_and_place():
    line = "  @!%p1 mbarrier.try_wait.shared::cta.b64 %p2, [%r1], 0;"
    module = parse(f"{HEAD}.entry k() {{\n{line}\n}}")
    (instruction,) = module.functions["k"].body.items
    assert instruction.opcode == "mbarrier"
    assert instruction.modifiers == ("try_wait", "shared::cta", "b64")
    assert instruction.guard == nodes.Guard(nodes.Register("%p1"), negated=True)
    assert (instruction.span.line, instruction.span.column) == (5, 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1fU", 31),
        ("017", 15),
        ("0b101", 5),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("1 + 2 * 3 << 1", 14),
        ("10 - 4 - 3", 3),
        ("1 ? 2 : 3", 2),
        ("~0", -1),
        ("(.u64) -1", 2**64 - 1),
        ("(.s64) 0xFFFFFFFFFFFFFFFF", -1),
        ("WARP_SZ * 2", 64),
        ("1 < 2 && 3 != 3", 0),
        ("6 & 3 | 8 ^ 1", 11),
    ],
)
def test_constant_expressions_fold_as_c_does(text, value):
    assert first_operands(f"mov.u64 %rd1, {text};")[1] == nodes.Integer(value, text)


@pytest.mark.parametrize(
    ("text", "bits", "width"),
    [
        ("0f3F800000", 0x3F800000, 32),
        ("-0f3F800000", 0xBF800000, 32),
        ("0d3FF0000000000000", 0x3FF0000000000000, 64),
        ("-1.5", 0xBFF8000000000000, 64),
    ],
)
def test_floats_keep_their_bits(text, bits, width):
    assert first_operands(f"mov.f32 %f1, {text};")[1] == nodes.Float(bits, width, text)


def test_addresses_keep_base_offset_and_coordinates():
    assert first_operands("ld.b32 r, [ a + -8 ];")[1] == nodes.Address(nodes.Name("a"), -8)
    assert first_operands("ld.b32 r, [%a-8];")[1] == nodes.Address(nodes.Register("%a"), -8)
    assert first_operands("ld.b32 r, [64];")[1] == nodes.Address(None, 64)
    assert first_operands("x [m, {1, %r1}];")[0] == nodes.TensorAddress(
        nodes.Name("m"), (nodes.Vector((nodes.Integer(1, "1"), nodes.Register("%r1"))),)
    )


def test_a_call_keeps_its_lists_apart_from_expressions():
    results, callee, arguments = first_operands("call (r), f, (1, x);")
    assert results == nodes.Group((nodes.Name("r"),))
    assert callee == nodes.Name("f")
    assert arguments == nodes.Group((nodes.Integer(1, "1"), nodes.Name("x")))


def test_performance_directives_are_found_by_name():
    entry = parse(FUNCTIONS).functions["k"]
    assert entry.directive("reqntid") == ("128", "1", "1")
    assert entry.directive("explicitcluster") == ()
    assert entry.directive("maxntid") is None


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("", 1, 1, "'.version'"),
        (".target sm_90a\n", 1, 1, "'.version' first"),
        (".version 9\n", 1, 10, "a version such as 8.6"),
        (".version 9.0\n", 2, 1, "'.target'"),
        (HEAD + ".entry k(\n  .param .b32 x\n  .param .b32 y)\n{ }", 6, 3, "','"),
        (HEAD + ".entry k() {\n  add.s32 %r1 %r2;\n}", 5, 15, "',' or ';'"),
        (HEAD + ".entry k() {\n  add.s32 %r1, ;\n}", 5, 16, "an operand"),
        (HEAD + ".entry k() {\n  ld.b32 %r1, [%r2;\n}", 5, 19, "']'"),
        (HEAD + ".entry k() {\n  ret;\n", 6, 1, "'}'"),
        (HEAD + ".entry k() {\n  mov.u32 %r1, 1 / 0;\n}", 5, 18, "a divisor other than 0"),
        (HEAD + ".entry k() {\n  mov.u32 %r1, 09;\n}", 5, 16, "an octal constant"),
        (HEAD + ".entry k() {\n  mov.u32 %r1, \x00;\n}", 5, 16, "a token"),
        (HEAD + ".entry k() {\n  /* ret;\n}", 5, 3, "a closing '*/'"),
        (HEAD + '.pragma "x;\n', 4, 9, "a closing '\"'"),
        (HEAD + ".shared .align 4 x;", 4, 18, "a type such as .b32"),
        (HEAD + ".entry k() {\n  @1 bra L;\n}", 5, 4, "a predicate register"),
    ],
)
def test_an_error_names_file_line_column_and_what_was_expected(text, line, column, expected):
    with pytest.raises(PtxSyntaxError, match=re.escape(f"expected {expected}")) as caught:
        parse(text, filename="broken.ptx")
    error = caught.value
    assert (error.filename, error.lineno, error.offset) == ("broken.ptx", line, column)
    assert error.text == text.split("\n")[line - 1]


@pytest.mark.parametrize(
    "text",
    [
        ".entry k() " + "{" * 5000,
        ".entry k() { mov.u32 r, " + "(" * 5000 + "1;}",
        ".entry k() { mov.u32 r, " + "-" * 5000 + "1;}",
        ".entry k() { mov.u32 r, " + "1?" * 5000 + "1;}",
        ".entry k() { mov.u32 r, " + "{" * 5000 + "1;}",
        ".entry k() { mov.u32 r, " + "[a," * 5000 + "1;}",
        ".entry k() { call " + "(a," * 5000 + "1;}",
        ".global .b32 x = " + "{" * 5000 + "1;",
        ".entry k() { mov.u32 r, " + "9" * 5000 + ";}",
        ".version " + "9" * 5000 + ".0",
    ],
)
def test_nesting_and_digits_have_a_limit_with_an_error_of_their_own(text):
    with pytest.raises(PtxSyntaxError):
        parse(HEAD + text)


def test_a_long_kernel_parses_in_well_under_a_second():
    body = "  fma.rn.f32 %f1, %f2, 0f3F800000, %f3; ld.shared.b32 %r1, [%r2+16];\n" * 2000
    text = f"{HEAD}.entry k() {{\n{body}}}"
    start = time.process_time()
    module = parse(text)
    assert time.process_time() - start < 1
    assert len(module.functions["k"].body.items) == 4000


def mutate(text: str, chance: random.Random) -> str:
    """One to four random edits of single characters or of whole tokens."""
    for _ in range(chance.randint(1, 4)):
        pieces = re.findall(r"\w+|\s+|.", text) if chance.random() < 0.6 else list(text)
        at, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
        match chance.randrange(5):
            case 0:
                del pieces[at]
            case 1:
                pieces.insert(other, pieces[at])
            case 2:
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3:
                pieces[at] = chance.choice('{}()[];,.:"/*%@!-+<>|\\\0\u0663\u2028\r \n0x9fUe')
            case 4:
                del pieces[at : at + chance.randint(1, 30)]
        text = "".join(pieces)
        if not text:
            break
    return text


def test_ten_thousand_mutated_files_parse_and_lint_or_end_in_a_syntax_error():
    chance = random.Random(20261201)
    bases = [MODULE_SCOPE, FUNCTIONS, *(sample for sample in split_operands())]
    outcomes = {"parsed": 0, "refused": 0}
    for _ in range(10_000):
        text = mutate(chance.choice(bases), chance)
        try:
            module = parse(text)
        except PtxSyntaxError as error:
            outcomes["refused"] += 1
            lines = text.split("\n")
            assert 1 <= error.lineno <= len(lines)
            assert 1 <= error.offset <= len(lines[error.lineno - 1]) + 1
        else:
            outcomes["parsed"] += 1
            assert parse(print_module(module)) == module, text
            assert all("\n" not in str(finding) for finding in lint(module, "sm_100a"))
    assert min(outcomes.values()) > 500, outcomes


def split_operands() -> list[str]:
    """The operand sample as several small files, so that one edit weighs more."""
    head, _, body = OPERANDS.partition("{\n")
    lines = body.rpartition("}")[0].replace("\n    ", " ").splitlines()
    return [f"{head}{{\n{chr(10).join(lines[n : n + 5])}\n}}" for n in range(0, len(lines), 5)]
