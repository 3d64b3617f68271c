"""Write the protocol for C: ``python -m nvshare.wire.c_header native/include/nvshare_protocol.h``.

The header has the constants and message structs of ``messages.py`` and the enumerations of ``enums.py``, with their
docstrings and the comments of their fields. Static assertions in it prove that the C compiler lays the structs out as
Python does.
"""

from __future__ import annotations

import enum
import inspect
import re
import struct
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from nvshare.wire import enums, messages
from nvshare.wire.layout import Fields, WithEntries

_WIDTH, _TAB = 120, 8  # columns
_TYPES = {"H": "uint16_t", "I": "uint32_t", "Q": "uint64_t", "s": "char", "x": "uint8_t"}
_COMMENTED = re.compile(
    r'\s*(?:\("(?P<laid>\w+)", "\w+"\),?|(?P<assigned>\w+)(?:: [^=#]+)?(?: = [^#]+)?)  # (?P<text>.+)'
)

Comments = dict[tuple[str, str], str]
"""By class, "" for the module itself, and name."""

_HEAD = """\
/* Generated from src/nvshare/wire by `make generate`: do not edit.
 *
 * The wire protocol for C. All integers are little-endian, all fields naturally aligned; text is UTF-8 in fixed fields
 * padded with zero bytes. Reserved bytes are sent as zeros and ignored when received. */
#ifndef NVSHARE_PROTOCOL_H
#define NVSHARE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>
"""
_LEAST = (
    "The bytes of each struct that the previous release sends too. Fields behind them may be missing: read as zeros."
)
_CHECKS = """\
/* The compiler's layout is that of Python: where each field begins and ends, and the size of each struct. */
#define NVS_END(t, f) (offsetof(struct t, f) + sizeof(((struct t *)0)->f))
#define NVS_FIELD(t, f, at, end) _Static_assert(offsetof(struct t, f) == at && NVS_END(t, f) == end, #t "." #f)
#define NVS_SIZE(t, size) _Static_assert(sizeof(struct t) == size, #t)
"""
_FOOT = """\
#undef NVS_END
#undef NVS_FIELD
#undef NVS_SIZE

#endif
"""


def header(protocol: ModuleType = messages) -> str:
    """The C header for the messages of this module, or of another that defines them in the same way."""
    comments = _comments(inspect.getsource(enums)) | _comments(inspect.getsource(protocol))
    constants = [(name, value) for name, value in vars(protocol).items() if name.isupper() and isinstance(value, int)]
    enumerations = [kind for kind in _classes(enums) if issubclass(kind, enum.IntEnum)]
    structs = [
        kind for kind in _classes(protocol) if issubclass(kind, Fields) and "LAYOUT" in kind.__dict__ and kind.NAMES
    ]
    return "\n".join(
        [
            _HEAD,
            "".join(_constant(name, value, comments) for name, value in constants),
            *(_enum(kind, comments) for kind in enumerations),
            *(_struct(kind, comments) for kind in structs),
            _least(structs),
            _CHECKS + "".join(_checks(kind) for kind in structs),
            _FOOT,
        ]
    )


def _classes(module: ModuleType) -> list[type]:
    """What a module defines itself."""
    return [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]


def _comments(source: str) -> Comments:
    """The comments behind constants, members of enumerations, attributes, and lines of ``LAYOUT``."""
    found: Comments = {}
    owner = ""
    for line in source.splitlines():
        if line and not line[0].isspace():
            opened = re.match(r"class (\w+)", line)
            owner = opened[1] if opened else ""
        if match := _COMMENTED.match(line):
            found[owner, match["laid"] or match["assigned"]] = match["text"]
    return found


def _comment(text: str | None, indent: str = "") -> str:
    """A C comment, in as many lines as it takes; nothing where there is no text."""
    if not text:
        return ""
    width = _WIDTH - _TAB * len(indent) - len("/* ")
    glued = inspect.cleandoc(text).replace("``", "") + "\0*/"  # the end is never alone on a line
    paragraphs = [textwrap.wrap(" ".join(part.split()), width, break_on_hyphens=False) for part in glued.split("\n\n")]
    lines = [line for paragraph in paragraphs for line in ("", *paragraph)][1:]
    joined = "\n".join(f"{indent} * {line}".rstrip() for line in lines).replace("\0", " ")
    return f"{joined.replace(' *', '/*', 1)}\n"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _constant(name: str, value: int, comments: Comments) -> str:
    literal = f"{value:#x}u" if value >= 1 << 30 else f"{value}u"
    return f"{_comment(comments.get(('', name)))}#define NVS_{name} {literal}\n"


def _enum(kind: type[enum.IntEnum], comments: Comments) -> str:
    name = _snake(kind.__name__)
    prefix = "NVS_" if name == "message_type" else f"NVS_{name.partition('_')[0].upper()}_"
    members = ""
    for one in kind:
        members += _comment(comments.get((kind.__name__, one.name)), "\t")
        members += f"\t{prefix}{one.name} = {one.value},\n"
    return f"{_comment(kind.__doc__)}enum nvs_{name} {{\n{members}}};\n"


def _struct(kind: type[Fields], comments: Comments) -> str:
    fields = ""
    for name, code in kind.LAYOUT:
        fields += _comment(comments.get((kind.__name__, name)), "\t")
        fields += f"\t{_TYPES[code[-1]]} {name}{f'[{code[:-1]}]' if code[:-1] else ''};\n"
    if issubclass(kind, WithEntries):
        attribute, counter, entry, _, _ = kind.ENTRIES
        fields += _comment(f"struct nvs_{_snake(entry.__name__)} {attribute}[{counter}]", "\t")
    return f"{_comment(kind.__doc__)}struct nvs_{_snake(kind.__name__)} {{\n{fields}}};\n"


def _least(structs: list[type[Fields]]) -> str:
    lines = "".join(f"\tnvs_{_snake(kind.__name__)}_least = {kind.LEAST},\n" for kind in structs)
    return f"{_comment(_LEAST)}enum {{\n{lines}}};\n"


def _checks(kind: type[Fields]) -> str:
    name, lines, end = f"nvs_{_snake(kind.__name__)}", "", 0
    for field, code in kind.LAYOUT:
        begin, end = end, end + struct.calcsize(f"<{code}")
        lines += f"NVS_FIELD({name}, {field}, {begin}, {end});\n"
    return f"{lines}NVS_SIZE({name}, {end});\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
