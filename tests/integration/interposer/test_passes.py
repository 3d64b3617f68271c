"""Functions without a hook: the driver gets every argument as the program gave it, and the program its answer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from nvshare import native

ROOT = Path(__file__).resolve().parents[3]
TYPES = {"W": "unsigned long", "F": "float", "S": "struct big"}
HEAD = """
#include <stdio.h>
#include <string.h>
#include <dlfcn.h>
struct big { unsigned long w[8]; };
struct seen { char name[64]; int count; double value[16]; };
static double of_word(unsigned long v) { return (double)v; }
static double of_float(float v) { return v; }
static double of_big(struct big v) { return (double)(v.w[0] + 3 * v.w[7]); }
#define VALUE(v) _Generic((v), unsigned long: of_word, float: of_float, struct big: of_big)(v)
"""


def passing() -> dict[str, str]:
    """Function -> a letter for each parameter."""
    text = (ROOT / "native/include/surface.def").read_text()
    line = r"^NVS_(?:SURFACE|SIMULATED)(?:_PT)?\((\w+), *(?:(_pt\wz|_ptds), *)?\w+, *\d+, *(\w+), *(\w+)\)"
    found: dict[str, str] = {}
    for name, variant, reason, takes in re.findall(line, text, re.M):
        letters = "W" * int(takes) if takes.isdigit() else takes
        if reason != "HOOKED":
            found |= dict.fromkeys({name, name + variant}, letters)
    return found


def driver_of(functions: dict[str, str]) -> str:
    """A driver that writes down what it is given, and answers with a number of each function's own."""
    source = [HEAD, "struct seen seen;\n"]
    for number, (name, letters) in enumerate(functions.items()):
        parameters = ", ".join(f"{TYPES[letter]} p{place}" for place, letter in enumerate(letters)) or "void"
        values = "".join(f"seen.value[{place}] = VALUE(p{place}); " for place in range(len(letters)))
        source.append(
            f'int {name}({parameters}) {{ strcpy(seen.name, "{name}"); seen.count = {len(letters)}; {values}'
            f"return {1000 + number}; }}\n"
        )
    return "".join([*source, "int cuInit(unsigned flags) { return 0; }\n"])


def program_of(functions: dict[str, str]) -> str:
    """A program that calls each with other values, on the stack and in registers, and prints what is wrong."""
    source = [HEAD, "int main(void) {\nint wrong = 0;\n"]
    source.append('void *cuda = dlopen("libcuda.so.1", RTLD_NOW); struct seen *seen = dlsym(cuda, "seen");\n')
    for number, (name, letters) in enumerate(functions.items()):
        types = ", ".join(TYPES[letter] for letter in letters) or "void"
        given = [(number % 97 + 1) * 1000 + place for place in range(len(letters))]
        literal = {"W": "{0}ul", "F": "{0}.5f", "S": "(struct big){{{{{0}, 0, 0, 0, 0, 0, 0, 7}}}}"}
        arguments = ", ".join(literal[letter].format(value) for letter, value in zip(letters, given, strict=True))
        expected = [value + {"W": 0, "F": 0.5, "S": 21}[letter] for letter, value in zip(letters, given, strict=True)]
        checks = "".join(f" || seen->value[{place}] != {value}" for place, value in enumerate(expected))
        source.append(
            f'{{ int (*f)({types}) = dlsym(cuda, "{name}"); Dl_info info; dladdr(f, &info); int got = f({arguments});\n'
            f'if (got != {1000 + number} || strcmp(seen->name, "{name}") || seen->count != {len(letters)}{checks}'
            f' || strstr(info.dli_fname, "libnvshare") == NULL) {{ wrong++; puts("{name}"); }} }}\n'
        )
    return "".join([*source, 'printf("%d wrong\\n", wrong); return 0; }\n'])


def test_every_argument_passes(tmp_path: Path) -> None:
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the library is for x86-64 and arm64")
    # GIVEN a stand-in driver that has all functions without a hook
    functions = passing()
    assert len(functions) > 400
    for name, source, flags in (
        ("libcuda.so.1", driver_of(functions), ["-shared", "-fPIC"]),
        ("program", program_of(functions), ["-ldl"]),
    ):
        (tmp_path / f"{name}.c").write_text(source)
        command: list[str | Path] = ["cc", "-w", "-D_GNU_SOURCE", tmp_path / f"{name}.c", "-o", tmp_path / name, *flags]
        subprocess.run(command, check=True)
    # WHEN a program calls each of them under the library
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": str(native.interposer())}
    done = subprocess.run([tmp_path / "program"], env=environment, check=True, capture_output=True, text=True)
    # THEN it reaches the library's wrapper, and the driver gets what the program gave
    assert done.stdout == "0 wrong\n"
