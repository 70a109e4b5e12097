# SPDX-License-Identifier: Apache-2.0
"""Templates of ptx/ to PTX, and back: which template line a line of the result came from."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AssemblyError, PtxSyntaxError
from ..isa import nodes, parse, print_module

if TYPE_CHECKING:
    import jinja2

    from .catalog import KernelVariant

# Characters that PTX never holds. While rendering, every template line begins with one mark; what
# a macro or a loop repeats carries the mark of the line that it was written on.
_OPEN, _CLOSE = "\x0e", "\x0f"
_MARK = re.compile(f"{_OPEN}([0-9]+):([0-9]+){_CLOSE}")
_STATEMENT = "//%"
_LINE_NUMBER = re.compile(r"\bline (\d+)")


@dataclass(frozen=True)
class Rendered:
    """A kernel's PTX.

    Attributes
    ----------
    text : str
        What is assembled, loaded and emulated: the printer's form, without comments.
    annotated : str
        As the template has it, comments and all.
    filename : str
        The template.
    origins : tuple of (file, line)
        Where each line of `annotated` came from.
    """

    text: str
    annotated: str
    filename: str
    origins: tuple[tuple[str, int], ...]

    def origin(self, line: int) -> tuple[str, int]:
        """Template file and line, both as an editor shows them, of a line of `text`."""
        if not 1 <= line <= self.text.count("\n"):
            return self.filename, line
        return self.origins[self._annotated_line(line) - 1]

    def _annotated_line(self, line: int) -> int:
        at = bisect_right(self._pairs, line, key=lambda pair: pair[0])
        return self._pairs[at - 1][1] if at else 1

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        """(line of `text`, line of `annotated`) of everything that has a place in both."""
        printed, written = (
            _head(text) + _places(parse(text)) for text in (self.text, self.annotated)
        )
        return sorted(zip(printed, written, strict=True))

    def explain(self, log: str) -> str:
        """An assembler's log; behind each line that names one, the template's own."""
        explained = []
        for message in log.rstrip().splitlines():
            explained.append(message)
            found = _LINE_NUMBER.search(message)
            if found and 1 <= int(found[1]) <= self.text.count("\n"):
                file, line = self.origin(int(found[1]))
                source = _lines(file)
                text = source[line - 1].strip() if line <= len(source) else ""
                explained.append(f"    {file}:{line}: {text}")
        return "\n".join(explained)


@cache
def template_root() -> Path:
    """The folder ptx/: inside the package (a wheel) or beside it (a checkout, an editable install).

    Raises
    ------
    AssemblyError
        If it is in neither place.
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package / "ptx", package.parent / "ptx"):
        if (root / "include").is_dir():
            return root
    raise AssemblyError(
        f"the kernels' templates are neither in {package / 'ptx'} nor in {package.parent / 'ptx'}; "
        "the installation is incomplete"
    )


@cache
def render(variant: KernelVariant) -> Rendered:
    """The PTX of a variant."""
    return render_file(variant.file, **dict(variant.template))


def render_file(file: str, **values: Any) -> Rendered:
    """The PTX of a template under ptx/ with the given values.

    Raises
    ------
    AssemblyError
        For a template that fails, with its file and line.
    """
    import jinja2

    try:
        marked = _environment().get_template(file).render(**values)
    except jinja2.TemplateError as error:
        raise AssemblyError(f"{_place(error, file)}: {error}") from error
    lines, origins = [], []
    previous_blank = False
    last = (file, 1)
    for line in marked.split("\n"):
        marks = _MARK.findall(line)
        if marks:
            # The innermost macro's line is the last mark before the text proper.
            last = (_names()[int(marks[-1][0])], int(marks[-1][1]))
        plain = _MARK.sub("", line).rstrip()
        # Macro calls on lines of their own leave blank lines behind; one in a row is enough.
        if plain or not previous_blank:
            lines.append(plain)
            origins.append(last)
        previous_blank = not plain
    text = "\n".join(lines).strip("\n") + "\n"
    skipped = len(lines) - len("\n".join(lines).lstrip("\n").split("\n"))
    kept = tuple(origins[skipped : skipped + text.count("\n")])
    try:
        printed = print_module(parse(text, file))
    except PtxSyntaxError as error:
        place, number = kept[min(error.lineno or 1, len(kept)) - 1]
        raise AssemblyError(f"{place}:{number}: {error.msg}: {error.text}") from error
    return Rendered(printed, text, file, kept)


def _head(text: str) -> list[int]:
    """Lines of the three directives that every text begins with, comments aside."""
    lines = text.splitlines()
    return [
        next(n for n, line in enumerate(lines, 1) if line.split()[:1] == [word])
        for word in (".version", ".target", ".address_size")
    ]


def _places(module: nodes.Module) -> list[int]:
    """Lines of all that has one, in the order of the text."""
    lines: list[int] = []
    pending: list[Any] = list(reversed(module.items))
    while pending:
        item = pending.pop()
        lines.append(item.span.line)
        if isinstance(item, nodes.Block):
            pending.extend(reversed(item.items))
        elif isinstance(item, nodes.Function):
            if item.body is not None:
                pending.append(item.body)
            pending.extend(reversed(item.parameters))
    return lines


def _place(error: Exception, file: str) -> str:
    """Template file and line of an error: Jinja2 rewrites tracebacks to the templates' lines."""
    place, line = file, getattr(error, "lineno", None)
    if line is not None:
        return f"{getattr(error, 'name', None) or file}:{line}"
    root = str(template_root())
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(root):
            place = f"{Path(name).relative_to(root).as_posix()}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


@cache
def _names() -> list[str]:
    """Template files met so far; a mark holds the index."""
    return []


@cache
def _lines(file: str) -> list[str]:
    return (template_root() / file).read_text(encoding="utf-8").splitlines()


def _is_statement(line: str) -> bool:
    return line.lstrip().startswith(_STATEMENT)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    class MarkingLoader(jinja2.FileSystemLoader):
        """Puts a mark before every line of output, keeping lines and their numbers."""

        def get_source(self, environment: jinja2.Environment, template: str) -> Any:
            source, path, fresh = super().get_source(environment, template)
            names = _names()
            if template not in names:
                names.append(template)
            index = names.index(template)
            marked = [
                ("" if _is_statement(line) else f"{_OPEN}{index}:{n}{_CLOSE}") + line
                for n, line in enumerate(source.split("\n"), 1)
            ]
            return "\n".join(marked), path, fresh

    return jinja2.Environment(
        loader=MarkingLoader(template_root()),
        line_statement_prefix=_STATEMENT,
        variable_start_string="${",
        variable_end_string="}",
        # Delimiters that PTX cannot hold: blocks and comments are line statements only.
        block_start_string="\x01{",
        block_end_string="}\x01",
        comment_start_string="\x02{",
        comment_end_string="}\x02",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
