# SPDX-License-Identifier: Apache-2.0
"""Templates to PTX text, and rendered lines back to the template's own lines.

A template is PTX but for `//%` line statements and `${ }` expressions (Jinja2). The files are found
in the package (a wheel carries them as cufmha/ptx) or beside it (a checkout).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AssemblyError

if TYPE_CHECKING:
    import jinja2

    from .catalog import KernelVariant

_MARK = "\x1f"
_MARKED = re.compile(f"{_MARK}([^{_MARK}]*){_MARK}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """PTX text; `places[n - 1]` is (template file, line) of its line n."""

    text: str
    places: tuple[tuple[str, int], ...]

    def place(self, line: int) -> tuple[str, int]:
        """Where line `line` (from 1) of the text comes from."""
        return self.places[min(max(line, 1), len(self.places)) - 1]

    def explain(self, log: str) -> str:
        """An assembler's log with the template's place and line after each of its own lines."""

        def add(match: re.Match[str]) -> str:
            number = int(match[2])
            file, line = self.place(number)
            source = (root() / file).read_text().splitlines()[line - 1].strip()
            return f"{match[0]} (ptx/{file}:{line}: {source})"

        return re.sub(r"(line )(\d+)", add, log)


@cache
def root() -> Path:
    """The folder with the templates."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "ptx", package.parent / "ptx"):
        if (folder / "include").is_dir():
            return folder
    raise AssemblyError(
        f"kernel files not found: neither {package / 'ptx'} nor {package.parent / 'ptx'} exists; "
        "the installation is incomplete"
    )


def render(variant: KernelVariant) -> Rendered:
    """The variant's PTX."""
    return _render(variant.template, tuple(variant.template_values().items()))


@cache
def _render(template: str, values: tuple[tuple[str, Any], ...]) -> Rendered:
    import jinja2

    try:
        marked = _environment().get_template(template).render(dict(values))
    except jinja2.TemplateError as error:
        raise AssemblyError(f"ptx/{template}: {error}") from None
    lines, places = [], []
    place = (template, 1)
    for line in marked.splitlines():
        marks = _MARKED.findall(line)
        if marks:
            file, _, number = marks[-1].rpartition(":")
            place = (file, int(number))
        text = _MARKED.sub("", line).rstrip()
        if text or (lines and lines[-1]):
            lines.append(text)
            places.append(place)
    return Rendered("\n".join(lines) + "\n", tuple(places))


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    class Loader(jinja2.FileSystemLoader):
        """Marks every line that is not a template statement with its own file and number."""

        def get_source(self, environment: Any, name: str) -> Any:
            source, filename, fresh = super().get_source(environment, name)
            return _marked(source, name), filename, fresh

    return jinja2.Environment(
        loader=Loader(root()),
        line_statement_prefix="//%",
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="\x02%",
        block_end_string="%\x02",
        comment_start_string="\x03",
        comment_end_string="\x03",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _marked(source: str, name: str) -> str:
    """Lines get an invisible mark in front, but for statements and one-line macro results."""
    lines = source.split("\n")
    out = []
    for number, line in enumerate(lines, 1):
        plain = line.strip()
        inline = number > 1 and _opens_inline(lines, number)
        if not plain or plain.startswith("//%") or inline:
            out.append(line)
        else:
            out.append(f"{_MARK}{name}:{number}{_MARK}{line}")
    return "\n".join(out)


def _opens_inline(lines: list[str], number: int) -> bool:
    """Whether the line stands in a macro that ends in `//%-`: its text goes inside another line."""
    for line in lines[number:]:
        text = line.strip()
        if text.startswith("//%- endmacro"):
            return True
        if text.startswith("//% endmacro") or text.startswith("//% macro"):
            return False
    return False
