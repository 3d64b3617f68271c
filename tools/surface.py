"""Keep native/include/surface.def, the classification of every function that the CUDA driver exports.

    .venv/bin/python tools/surface.py                                 # bring the HOOKED marks in line with hooks.def
    .venv/bin/python tools/surface.py --download build/cuda --headers build/cuda    # fetch headers, take in what is new
    .venv/bin/python tools/surface.py --check --headers /usr/local/cuda/include     # write nothing, fail if any is new
    .venv/bin/python tools/surface.py --check --library /usr/lib/x86_64-linux-gnu/libcuda.so.1   # the same for a driver

The headers are NVIDIA's and stay where they are: only names of functions, the release that brought each, and how its
parameters are passed, are taken from them. What is known keeps its class and its reason; what is new comes in as
UNCLASSIFIED, which a test refuses.
Parameters in hooks.def are compared with those in the headers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "native/include/surface.def"
HOOKS = ROOT / "native/include/hooks.def"

UNCLASSIFIED = "UNCLASSIFIED"
HOOKED = "HOOKED"
PER_THREAD = ("_ptsz", "_ptds")

# One wheel per minor release, the last of each; 12.7 was never published.
WHEELS = (
    "nvidia-cuda-runtime-cu11==11.8.89",
    *(
        f"nvidia-cuda-runtime-cu12=={release}"
        for release in (
            "12.0.146", "12.1.105", "12.2.140", "12.3.101", "12.4.127", "12.5.82", "12.6.77", "12.8.90", "12.9.79"
        )
    ),
    *(f"nvidia-cuda-runtime=={release}" for release in ("13.0.96", "13.1.80", "13.2.86", "13.3.29", "13.4.92")),
)  # fmt: skip
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
TYPEDEFS = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)
# What those include and may not be there; only names are wanted, so an empty file will do.
STAND_INS = ("cudaProfiler.h", "GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h", "vdpau/vdpau_x11.h")
# Every symbol is declared in one of these three readings of the headers.
READINGS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))


class SurfaceError(Exception):
    """Something the user can put right; shown without a traceback."""


@dataclass(frozen=True)
class Function:
    """One line of the table: a symbol, and its per-thread-default-stream variant where there is one."""

    name: str
    variant: str = ""  # "_ptsz", "_ptds" or none
    kind: str = UNCLASSIFIED
    since: int = 0  # as CUDA_VERSION: 12080 is 12.8
    reason: str = UNCLASSIFIED
    takes: str = UNCLASSIFIED  # how its parameters are passed, as `signature` writes it
    simulated: bool = False  # whether the simulated driver has it too

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.name, self.name + self.variant) if self.variant else (self.name,)


@dataclass(frozen=True)
class Surface:
    preamble: str  # all before the first function, kept as it is
    functions: tuple[Function, ...]

    @property
    def symbols(self) -> dict[str, Function]:
        return {symbol: function for function in self.functions for symbol in function.symbols}

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(re.findall(r"^NVS_CLASS\((\w+),", self.preamble, re.MULTILINE))

    @property
    def reasons(self) -> dict[str, str]:
        return dict(re.findall(r'^NVS_REASON\((\w+),\s*\w+,\s*"([^"]*)"\)', self.preamble, re.MULTILINE))


# ---- the table ----

LINE = re.compile(r"^NVS_(SURFACE|SIMULATED)(?:_PT)?\((\w+), *(?:(_pt(?:sz|ds)), *)?(\w+), *(\d+), *(\w+), *(\w+)\)$")


def read_surface(text: str) -> Surface:
    """The table as it is checked in."""
    first = re.search(r"^NVS_(SURFACE|SIMULATED)", text, re.MULTILINE)
    if first is None:
        return Surface(text, ())
    start = first.start()
    functions = []
    for line in text[start:].split("\n#undef", maxsplit=1)[0].splitlines():
        match = LINE.match(line)
        if match is None:
            raise SurfaceError(f"{SURFACE.name}: not a line of the table: {line!r}")
        macro, name, variant, kind, since, reason, takes = match.groups()
        functions.append(Function(name, variant or "", kind, int(since), reason, takes, macro == "SIMULATED"))
    return Surface(text[:start], tuple(functions))


MACROS = ("CLASS", "REASON", "SURFACE_PT", "SURFACE", "SIMULATED_PT", "SIMULATED")
ENDING = "".join(f"#undef NVS_{macro}\n" for macro in MACROS)


def write_surface(surface: Surface) -> str:
    """The same, sorted, in columns."""
    lines = []
    for function in sorted(surface.functions, key=lambda each: each.name):
        macro = f"NVS_{'SIMULATED' if function.simulated else 'SURFACE'}{'_PT' if function.variant else ''}"
        variant = f"{function.variant}, " if function.variant else ""
        head = f"{macro}({function.name}, {variant}"
        tail = f"{function.kind + ',':<14}{function.since:>5}, {function.reason + ',':<16}{function.takes})"
        lines.append(f"{head:<64}{tail}\n")
    return surface.preamble + "".join(lines) + ENDING


# ---- the list of hooks ----

MACRO = r"^NVS_(SUBMIT|NEEDS|WAIT|HOOK|CALL)(?:_SET|_WAIT)?(_PT)?"
PROTOTYPE = re.compile(MACRO + r"\((?P<names>[^()]*)\((?P<parameters>[^()]*)\)", re.MULTILINE)
HOOK = re.compile(MACRO + r"\((.*)")


def read_hooks(text: str) -> dict[str, str]:
    """Symbol -> SUBMIT, NEEDS, WAIT, HOOK or CALL, from hooks.def."""
    hooks = {}
    for line in text.splitlines():
        match = HOOK.match(line)
        if match is None:
            continue
        kind, per_thread, rest = match.groups()
        fields = [field.strip() for field in rest.split(",")]
        name = fields[1] if kind == "CALL" else fields[0]
        hooks[name] = kind
        if per_thread:
            hooks[name + fields[1]] = kind
    return hooks


def read_prototypes(text: str) -> dict[str, tuple[str, ...]]:
    """Function -> the shapes of its parameters, from hooks.def."""
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    prototypes = {}
    for match in PROTOTYPE.finditer(plain):
        names = [name for name in re.findall(r"\w+", match["names"]) if re.match(r"cu[A-Z]", name)]
        prototypes[names[0]] = shapes(match["parameters"])
    return prototypes


# How a parameter is passed. A type that starts with CU and is none of these is a handle: a pointer.
EIGHT_BYTES = {"CUdeviceptr", "CUmemGenericAllocationHandle", "size_t", "unsigned long long", "cuuint64_t"}
FOUR_BYTES = {
    *("int", "unsigned", "unsigned int", "unsigned char", "unsigned short", "cuuint32_t", "CUlogicalEndpointId"),
    *("CUdevice", "VdpDevice", "CUpointer_attribute", "CUdevice_attribute", "CUstreamCaptureMode"),
    *("CUmemRangeHandleType", "CUmemAllocationHandleType", "CUmemAllocationGranularity_flags", "CUmemPool_attribute"),
}


def shapes(parameters: str) -> tuple[str, ...]:
    """How each parameter is passed: enough to see one that is missing, or of another kind."""
    found = []
    for parameter in parameters.split(","):
        words = parameter.replace("const ", "").split()
        kind = " ".join(words[:-1])
        if words in ([], ["void"]):
            continue
        if "*" in parameter:
            found.append("pointer")
        elif kind in EIGHT_BYTES:
            found.append("8 bytes")
        elif kind in FOUR_BYTES:
            found.append("4 bytes")
        else:
            found.append(kind if kind.startswith("CUmemLocation") or not kind.startswith("CU") else "pointer")
    return tuple(found)


# One letter for each way to pass a parameter; signatures.h makes C functions of them. S: a structure of 64 bytes.
LETTERS = {"float": "F", "CUipcMemHandle": "S", "CUipcEventHandle": "S", "CUeglFrame": "S"}


def signature(parameters: str) -> str:
    """How a function's parameters are passed: their number where all are words (integers, handles and pointers), else a
    letter for each, W for a word. A structure of eight bytes is passed as a word is."""
    kinds = [each.replace("const ", "").split() for each in parameters.split(",") if each.split() not in ([], ["void"])]
    starred = [any("*" in word for word in words) for words in kinds]
    letters = ["W" if star else LETTERS.get(words[0], "W") for words, star in zip(kinds, starred, strict=True)]
    return str(len(letters)) if set(letters) <= {"W"} else "".join(letters)


def mark_hooked(function: Function, hooks: Mapping[str, str]) -> Function:
    """What is in hooks.def is HOOKED, and nothing else is: one that lost its hook needs a reason again."""
    hooked = hooks.get(function.name, "CALL") != "CALL"
    if hooked:
        return replace(function, reason=HOOKED)
    return replace(function, reason=UNCLASSIFIED) if function.reason == HOOKED else function


# ---- NVIDIA's headers ----

DECLARATION = re.compile(r"(?<!inline )\bCUresult\s+(cu[A-Z]\w*)\s*\(([^()]*)\)")  # an inline function is no export
POINTER = re.compile(r"\*\s*PFN_(cu[A-Z]\w*?)_v(\d{4,5})\s*\)\s*\(([^()]*)\)")
VERSIONED = re.compile(r"(cu\w+?)(?:_v(\d+))?$")


def preprocess(directory: Path, options: Iterable[str]) -> str:
    """The declarations of all headers in a directory, under one reading of them."""
    present = [name for name in (*HEADERS, *TYPEDEFS) if (directory / name).exists()]
    with tempfile.TemporaryDirectory() as scratch:
        for name in STAND_INS:
            (Path(scratch) / name).parent.mkdir(exist_ok=True)
            (Path(scratch) / name).touch()
        command = ["cc", "-E", "-P", *options, f"-I{directory}", f"-I{scratch}", "-x", "c", "-"]
        source = "".join(f'#include "{name}"\n' for name in present)
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SurfaceError(f"{directory}: the C preprocessor could not read the headers:\n{done.stderr.strip()}")
    return done.stdout


def read_declarations(text: str) -> tuple[dict[str, str], dict[tuple[str, int], str]]:
    """The parameters of every symbol declared, and of every function type by (base name, release)."""
    pointers = {(base, int(release)): parameters for base, release, parameters in POINTER.findall(text)}
    return dict(DECLARATION.findall(text)), pointers


def generation(symbol: str) -> tuple[str, int]:
    """cuMemAlloc_v2 is the second generation of cuMemAlloc."""
    match = VERSIONED.match(symbol)
    assert match is not None
    return match[1], int(match[2] or 1)


def releases_of(symbols: Iterable[str], pointers: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Symbol -> the release that brought it. The headers name releases by base name: its generations and its releases,
    each in order, belong together."""
    of_base: dict[str, list[int]] = {}
    for base, release in sorted(pointers):
        of_base.setdefault(base, []).append(release)
    generations: dict[str, list[str]] = {}
    for symbol in sorted(symbols, key=generation):
        generations.setdefault(generation(symbol)[0], []).append(symbol)
    found: dict[str, int] = {}
    for base, names in generations.items():
        releases = of_base.get(base, [])
        if len(releases) != len(names):
            raise SurfaceError(f"{base}: symbols {names}, but releases {releases}; give all headers up to the newest")
        found.update(zip(names, releases, strict=True))
    return found


def read_headers(directories: Iterable[Path]) -> tuple[list[Function], dict[str, tuple[str, ...]]]:
    """Every function of the headers below the directories, without a class; and the shapes of their parameters."""
    prototypes: dict[str, str] = {}
    pointers: dict[tuple[str, int], str] = {}
    places = sorted({header.parent for directory in directories for header in directory.rglob("cuda.h")})
    if not places:
        raise SurfaceError("no cuda.h below the given directories; --download DIR fetches NVIDIA's packages")
    for place in places:
        for options in READINGS:
            declared, typed = read_declarations(preprocess(place, options))
            prototypes |= declared
            pointers |= typed
    # Some functions have a type only: most packages leave the profiler's declarations out.
    declared_bases = {generation(symbol)[0] for symbol in prototypes}
    prototypes |= {base: parameters for (base, _), parameters in pointers.items() if base not in declared_bases}
    symbols = set(prototypes)
    plain = {symbol for symbol in symbols if not symbol.endswith(PER_THREAD)}
    since = releases_of(plain, pointers)
    functions = []
    for name in sorted(plain):
        variant = next((each for each in PER_THREAD if name + each in symbols), "")
        functions.append(Function(name, variant, since=since[name], takes=signature(prototypes[name])))
    return functions, {name: shapes(parameters) for name, parameters in prototypes.items()}


def merge(known: Surface, found: Iterable[Function], hooks: Mapping[str, str]) -> Surface:
    """What is known keeps its class and reason; a function once seen stays, for old drivers have it."""
    functions = {function.name: function for function in known.functions}
    for function in found:
        old = functions.get(function.name, function)
        functions[function.name] = replace(
            old,
            variant=old.variant or function.variant,
            since=min(old.since, function.since),
            takes=function.takes if old.takes == UNCLASSIFIED else old.takes,
        )
    return Surface(known.preamble, tuple(mark_hooked(each, hooks) for each in functions.values()))


def download(directory: Path) -> None:
    """NVIDIA's headers of every release, from its packages for Python, one directory each."""
    directory.mkdir(parents=True, exist_ok=True)
    for wheel in WHEELS:
        target = directory / wheel.split("==")[1]
        if (target / "cuda.h").exists():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, wheel]
            if subprocess.run(command, check=False).returncode != 0:
                raise SurfaceError(f"{wheel} cannot be downloaded; give headers that are there with --headers DIR")
            target.mkdir(exist_ok=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
                for member in archive.namelist():
                    if Path(member).name in (*HEADERS, *TYPEDEFS):
                        (target / Path(member).name).write_bytes(archive.read(member))


# ---- a driver ----


def exports(library: Path) -> set[str]:
    """Names of the driver's functions that a shared library exports."""
    command = ["nm", "-D", "--defined-only", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SurfaceError(f"{library}: {done.stderr.strip()}")
    return {name for name in re.findall(r" [TW] (\w+)", done.stdout) if re.match(r"cu[A-Z]", name)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--headers", type=Path, nargs="+", default=[], metavar="DIR", help="directories with cuda.h below"
    )
    parser.add_argument("--download", type=Path, metavar="DIR", help="put NVIDIA's headers of all releases there first")
    parser.add_argument(
        "--library", type=Path, metavar="FILE", help="list what this driver exports and the table lacks"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table would change")
    arguments = parser.parse_args()
    try:
        if arguments.download is not None:
            download(arguments.download)
        text = SURFACE.read_text()
        known = read_surface(text)
        hooks = HOOKS.read_text()
        found, declared = read_headers(arguments.headers) if arguments.headers else ([], {})
        surface = merge(known, found, read_hooks(hooks))
        beyond = sorted(exports(arguments.library) - set(surface.symbols)) if arguments.library else []
    except SurfaceError as error:
        print(f"surface: {error}", file=sys.stderr)
        return 2
    for name in beyond:
        print(f"not in the table: {name}")
    ours = read_prototypes(hooks)
    wrong = [name for name in ours if name in declared and ours[name] != declared[name]]
    for name in wrong:
        print(f"{HOOKS.name}: {name} takes {ours[name]}, in the headers {declared[name]}")
    changed = write_surface(surface) != text
    if changed and not arguments.check:
        SURFACE.write_text(write_surface(surface))
    unclassified = [each.name for each in surface.functions if UNCLASSIFIED in (each.kind, each.reason, each.takes)]
    for name in unclassified:
        print(f"unclassified: {name}")
    print(f"{len(surface.symbols)} symbols, {len(unclassified)} unclassified", end="")
    print(f", {SURFACE.name} {'differs' if arguments.check else 'written'}" if changed else "")
    return 1 if beyond or wrong or unclassified or (changed and arguments.check) else 0


if __name__ == "__main__":
    sys.exit(main())
