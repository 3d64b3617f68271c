"""The C header and the Python messages are the same protocol, byte for byte: compiled and compared."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from nvshare.wire import messages as wire

INCLUDE = Path(__file__).resolve().parents[2] / "native" / "include"
HEADER_FIELDS = (("magic", "I"), ("version", "H"), ("type", "H"), ("length", "I"), ("sequence", "I"))
PYTHON = {
    "nvs_header": HEADER_FIELDS,
    "nvs_gpu_entry": wire.GpuEntry.LAYOUT,
    "nvs_process_entry": wire.ProcessEntry.LAYOUT,
    **{f"nvs_{cls.TYPE.name.lower()}": cls.LAYOUT for cls in wire.BY_TYPE.values() if cls.LAYOUT},
}
CONSTANTS = {
    "NVS_MAGIC": wire.MAGIC,
    "NVS_VERSION": wire.VERSION,
    "NVS_MAX_REQUEST": wire.MAX_REQUEST,
    "NVS_MAX_GPUS": wire.MAX_GPUS,
    "NVS_MAX_PROCESSES": wire.MAX_PROCESSES,
    "NVS_ALL_GPUS": wire.ALL_GPUS,
    "NVS_FLAG_CAN_SWAP": wire.FLAG_CAN_SWAP,
    "NVS_FLAG_OVERSIZE": wire.FLAG_OVERSIZE,
    "NVS_FLAG_EXCLUSIVE": wire.FLAG_EXCLUSIVE,
    "NVS_FLAG_CONTENDED": wire.FLAG_CONTENDED,
    "NVS_FLAG_STAYS": wire.FLAG_STAYS,
    "NVS_FLAG_TURNS": wire.FLAG_TURNS,
    "NVS_FLAG_ALONE": wire.FLAG_ALONE,
    **{f"NVS_{kind.name}": int(kind) for kind in wire.MessageType},
    **{f"NVS_RELEASE_{reason.name}": int(reason) for reason in wire.ReleaseReason},
    **{f"NVS_TURN_{reason.name}": int(reason) for reason in wire.TurnReason},
    **{f"NVS_DENY_{reason.name}": int(reason) for reason in wire.DenyReason},
}


def c_structs() -> dict[str, list[str]]:
    """Every struct of the header with the names of its fields, in order."""
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / "nvshare_protocol.h").read_text(), flags=re.DOTALL)
    structs = re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\d+\])?;", body) for name, body in structs}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says: sizes, offsets and values by name."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    lines = [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in CONSTANTS]
    for struct_name, fields in c_structs().items():
        lines.append(f'printf("{struct_name} %zu\\n", sizeof(struct {struct_name}));')
        for field in fields:
            what = f"struct {struct_name}, {field}"
            lines.append(f'printf("{struct_name}.{field} %zu\\n", offsetof({what}));')
            lines.append(f'printf("{struct_name}.{field}.size %zu\\n", sizeof(((struct {struct_name} *)0)->{field}));')
    directory = tmp_path_factory.mktemp("layout")
    source = directory / "layout.c"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "nvshare_protocol.h"\n'
    source.write_text(includes + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    program = directory / "layout"
    subprocess.run([compiler, "-std=c11", "-Wall", "-Werror", f"-I{INCLUDE}", source, "-o", program], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_both_sides_define_the_same_structs():
    assert set(c_structs()) == set(PYTHON)


@pytest.mark.parametrize("name", sorted(PYTHON))
def test_layout_is_the_same(compiled, name):
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
def test_value_is_the_same(compiled, name):
    assert compiled[name] == CONSTANTS[name]
