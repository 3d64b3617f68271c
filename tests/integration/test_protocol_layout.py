"""The C header and the Python messages are the same protocol, byte for byte: compiled and compared."""

from __future__ import annotations

import importlib
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from nvshare.wire import c_header
from nvshare.wire import messages as wire

HEADER = Path(__file__).resolve().parents[2] / "native" / "include" / "nvshare_protocol.h"
PYTHON = {
    "nvs_header": wire.Header.LAYOUT,
    "nvs_gpu_entry": wire.GpuEntry.LAYOUT,
    "nvs_process_entry": wire.ProcessEntry.LAYOUT,
    **{f"nvs_{cls.TYPE.name.lower()}": cls.LAYOUT for cls in wire.BY_TYPE.values() if cls.LAYOUT},
}
CONSTANTS = {
    **{f"NVS_{name}": value for name, value in vars(wire).items() if name.isupper() and isinstance(value, int)},
    **{f"NVS_{kind.name}": int(kind) for kind in wire.MessageType},
    **{f"NVS_RELEASE_{reason.name}": int(reason) for reason in wire.ReleaseReason},
    **{f"NVS_TURN_{reason.name}": int(reason) for reason in wire.TurnReason},
    **{f"NVS_DENY_{reason.name}": int(reason) for reason in wire.DenyReason},
    **{f"NVS_REFUSAL_{code.name}": int(code) for code in wire.RefusalCode},
    **{f"NVS_BAR_{reason.name}": int(reason) for reason in wire.BarReason},
    **{f"NVS_SLEPT_{outcome.name}": int(outcome) for outcome in wire.SleptOutcome},
}


def c_structs() -> dict[str, list[str]]:
    """Every struct of the header with the names of its fields, in order."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    structs = re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\d+\])?;", body) for name, body in structs}


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("needs a C compiler")
    return found


@pytest.fixture(scope="module")
def compiled(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says: sizes, offsets and values by name."""
    lines = [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in CONSTANTS]
    for struct_name, fields in c_structs().items():
        lines.append(f'printf("{struct_name} %zu\\n", sizeof(struct {struct_name}));')
        for field in fields:
            what = f"struct {struct_name}, {field}"
            lines.append(f'printf("{struct_name}.{field} %zu\\n", offsetof({what}));')
            lines.append(f'printf("{struct_name}.{field}.size %zu\\n", sizeof(((struct {struct_name} *)0)->{field}));')
    directory = tmp_path_factory.mktemp("layout")
    source = directory / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\n}\n")
    program = directory / "layout"
    subprocess.run([compiler, "-std=c11", "-Wall", "-Werror", source, "-o", program], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_both_sides_define_the_same_structs() -> None:
    assert set(c_structs()) == set(PYTHON)


@pytest.mark.parametrize("name", sorted(PYTHON))
def test_layout_is_the_same(compiled: dict[str, int], name: str) -> None:
    layout = PYTHON[name]
    assert c_structs()[name] == [field for field, _ in layout]
    offset = 0
    for field, code in layout:
        size = struct.calcsize("<" + code)
        assert compiled[f"{name}.{field}"] == offset, field
        assert compiled[f"{name}.{field}.size"] == size, field
        offset += size
    assert compiled[name] == offset


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_value_is_the_same(compiled: dict[str, int], name: str) -> None:
    assert compiled[name] == CONSTANTS[name]


def complaints(compiler: str, text: str) -> str:
    """What the compiler has to say about C text."""
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stderr


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Makes a module like messages.py, with one piece of its text replaced."""

    def change(old: str, new: str) -> ModuleType:
        text = Path(str(wire.__file__)).read_text()
        assert text.count(old) == 1
        (tmp_path / "changed_messages.py").write_text(text.replace(old, new))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "changed_messages", raising=False)
        return importlib.import_module("changed_messages")

    return change


def checks(header: str) -> str:
    """The static assertions at the end of a header."""
    return header[header.index("#define NVS_END") :]


def test_header_compiles_by_itself(compiler: str) -> None:
    assert complaints(compiler, f'#include "{HEADER}"\n') == ""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('("quantum_ms", "I"), ("', '("quantum_ms", "Q"), ("', "nvs_lock_ok.quantum_ms"),
        ('(("gpu", "I"), ("deadline_ms", "I"),', '(("deadline_ms", "I"), ("gpu", "I"),', "nvs_drop_lock.gpu"),
        ('(("uuid", "48s"),)', '(("uuid", "40s"),)', "nvs_share.uuid"),
    ],
    ids=["wider", "swapped", "shorter"],
)
def test_changed_message_is_noticed_by_python_and_by_c(
    compiler: str, changed: Callable[[str, str], ModuleType], old: str, new: str, what: str
) -> None:
    # GIVEN a message that has changed, and a header that has not
    header = c_header.header(changed(old, new))
    # THEN the header is stale
    assert header != HEADER.read_text()
    # AND its structs do not pass for what Python sends now
    assert what in complaints(compiler, f'#include "{HEADER}"\n{checks(header)}')


def test_appended_field_need_not_be_sent(changed: Callable[[str, str], ModuleType]) -> None:
    layout = '("quantum_ms", "I"), ("reserved", "4x"))'
    grown = changed(layout, '("quantum_ms", "I"), ("reserved", "4x"), ("new", "Q"))\n    APPENDED = 1')
    header = c_header.header(grown)
    assert "nvs_lock_ok_least = 24," in header
    assert "NVS_SIZE(nvs_lock_ok, 32);" in header


def test_struct_that_was_changed_by_hand_does_not_compile(compiler: str) -> None:
    text = HEADER.read_text()
    assert text.count("\tuint32_t quantum_ms;") == 1
    changed = text.replace("\tuint32_t quantum_ms;", "\tuint64_t quantum_ms;")
    assert "nvs_lock_ok.quantum_ms" in complaints(compiler, changed)
