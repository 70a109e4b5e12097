# SPDX-License-Identifier: Apache-2.0
"""Nodes back to PTX text, such that parsing it gives equal nodes."""

from __future__ import annotations

from . import nodes

INDENT = "    "


def print_module(module: nodes.Module) -> str:
    """The whole file in one canonical form."""
    lines = [
        f".version {module.version[0]}.{module.version[1]}",
        f".target {', '.join(module.target)}",
        f".address_size {module.address_size}",
        "",
    ]
    for item in module.items:
        if isinstance(item, nodes.Function):
            lines += [*_function(item), ""]
        elif isinstance(item, nodes.Variable):
            lines.append(variable(item) + ";")
        else:
            lines.append(_directive(item))
    return "\n".join(lines) + "\n"


def _function(function: nodes.Function) -> list[str]:
    head = f".{function.linkage} " if function.linkage else ""
    before = [d for d in function.directives if d.name == "attribute"]
    after = [d for d in function.directives if d.name != "attribute"]
    head += f".{function.kind} " + "".join(_tuning(d) + " " for d in before)
    if function.results:
        head += f"({', '.join(_parameter(p) for p in function.results)}) "
    lines = [head + function.name + "("]
    lines += [",\n".join(INDENT + _parameter(p) for p in function.parameters)]
    lines += [")", *(_tuning(d) for d in after)]
    if function.body is None:
        lines[-1] += ";"
    else:
        lines += _block(function.body, 0)
    return lines


def _parameter(parameter: nodes.Variable | nodes.RegisterDecl) -> str:
    if isinstance(parameter, nodes.RegisterDecl):
        return _registers(parameter)
    return variable(parameter)


def _block(block: nodes.Block, level: int) -> list[str]:
    lines = [INDENT * level + "{"]
    for item in block.items:
        if isinstance(item, nodes.Block):
            lines += _block(item, level + 1)
        elif isinstance(item, nodes.Label):
            lines.append(INDENT * level + item.name + ":")
        else:
            lines.append(INDENT * (level + 1) + _statement(item))
    return [*lines, INDENT * level + "}"]


def _statement(item: nodes.Statement) -> str:
    if isinstance(item, nodes.Instruction):
        return instruction(item)
    if isinstance(item, nodes.RegisterDecl):
        return _registers(item) + ";"
    if isinstance(item, nodes.Variable):
        return variable(item) + ";"
    if isinstance(item, nodes.Directive):
        return _directive(item)
    raise TypeError(type(item).__name__)


def _registers(item: nodes.RegisterDecl) -> str:
    vector = f".v{item.vector} " if item.vector > 1 else ""
    names = (name if count is None else f"{name}<{count}>" for name, count in item.names)
    return f".reg {vector}.{item.type} {', '.join(names)}"


def variable(item: nodes.Variable) -> str:
    """A declaration without its semicolon."""
    words = [f".{item.linkage}"] if item.linkage else []
    words.append(f".{item.space}")
    late = item.space == "param" and "ptr" in item.attributes
    if item.align is not None and not late:
        words.append(f".align {item.align}")
    words += [f".{a}" for a in item.attributes if "(" in a]
    if item.vector > 1:
        words.append(f".v{item.vector}")
    words.append(f".{item.type}")
    words += [f".{a}" for a in item.attributes if "(" not in a]
    if item.align is not None and late:
        words.append(f".align {item.align}")
    words.append(item.name + "".join(f"[{'' if d is None else d}]" for d in item.dimensions))
    text = " ".join(words)
    return text if item.initializer is None else f"{text} = {_initializer(item.initializer)}"


def _initializer(value: tuple | nodes.Operand) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(_initializer(v) for v in value) + "}"
    return operand(value)


def _directive(item: nodes.Directive) -> str:
    label = f"{item.label}: " if item.label else ""
    text = f"{label}.{item.name}"
    for argument in item.arguments:
        text += argument if argument == "," else f" {argument}"
    return text + (";" if item.semicolon else "")


def _tuning(item: nodes.Directive) -> str:
    """A directive between a function's head and its body."""
    if item.name == "attribute":
        return f".attribute{''.join(item.arguments)}"
    text = f".{item.name} {', '.join(item.arguments)}".rstrip()
    return text + (";" if item.semicolon else "")


def instruction(item: nodes.Instruction) -> str:
    """One instruction with its guard and semicolon."""
    guard = ""
    if item.guard:
        guard = f"@{'!' if item.guard.negated else ''}{item.guard.register.name} "
    operands = ", ".join(operand(o) for o in item.operands)
    return f"{guard}{item.name}{' ' if operands else ''}{operands};"


def operand(item: nodes.Operand) -> str:
    match item:
        case nodes.Register(name=name) | nodes.Name(name=name):
            return name
        case nodes.Integer(text=text) | nodes.Float(text=text):
            return text
        case nodes.Address(text="bare", base=base, offset=offset) if base:
            return f"{base.name}+{offset}"
        case nodes.Address(base=None, offset=offset):
            return f"[{offset}]"
        case nodes.Address(base=base, offset=0) if base:
            return f"[{base.name}]"
        case nodes.Address(base=base, offset=offset) if base:
            return f"[{base.name}+{offset}]"
        case nodes.TensorAddress(base=base, parts=parts):
            return "[" + ", ".join([base.name, *(operand(p) for p in parts)]) + "]"
        case nodes.Vector(items=items):
            return "{" + ", ".join(operand(i) for i in items) + "}"
        case nodes.Pair(first=first, second=second):
            return f"{operand(first)}|{operand(second)}"
        case nodes.Negated(operand=inner, sign=sign):
            return f"{sign}{inner.name}"
        case nodes.Group(items=items):
            return "(" + ", ".join(operand(i) for i in items) + ")"
    raise TypeError(type(item).__name__)
