"""What the tool takes from headers, on headers of our own in the manner of CUDA's."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

HEADER = """
#if defined(__CUDA_API_VERSION_INTERNAL) || defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define PER_THREAD(name) name ## _ptsz
#else
#define PER_THREAD(name) name
#endif
#define cuThingMake cuThingMake_v2
#define cuThingRun PER_THREAD(cuThingRun)
typedef int CUresult;
typedef unsigned long size_t;
CUresult cuThingMake(void **thing, size_t size);
CUresult cuThingRun(void *thing,
                    void *stream);
#if defined(__CUDA_API_VERSION_INTERNAL)
#undef cuThingMake
#undef cuThingRun
CUresult cuThingMake(void **thing, unsigned size);
CUresult cuThingRun(void *thing, void *stream);
#endif
static inline CUresult cuThingHelp(void) { return 0; }
"""
TYPES = """
#include <cuda.h>
typedef CUresult (*PFN_cuThingMake_v3020)(void **, size_t);
typedef CUresult (*PFN_cuThingRun_v4000)(void *, void *);
typedef CUresult (*PFN_cuThingRun_v7000_ptsz)(void *, void *);
#if defined(__CUDA_API_VERSION_INTERNAL)
typedef CUresult (*PFN_cuThingMake_v2000)(void **, unsigned);
#endif
"""
PREAMBLE = 'NVS_CLASS(PASSES, "none")\nNVS_REASON(NOTHING, NONE, "no")\n\n'


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").write_text(HEADER)
    (tmp_path / "include/cudaTypedefs.h").write_text(TYPES)
    return tmp_path


def test_headers_give_symbols_variants_and_releases(tool: ModuleType, headers: Path) -> None:
    # WHEN headers with two generations of a function and a per-thread variant of another are read
    found, prototypes = tool.read_headers([headers])
    # THEN each symbol is there once, with its variant and the release that brought it, and no inline function
    assert found == [
        tool.Function("cuThingMake", since=2000, takes="2"),
        tool.Function("cuThingMake_v2", since=3020, takes="2"),
        tool.Function("cuThingRun", "_ptsz", since=4000, takes="2"),
    ]
    # AND how its parameters are passed, in the form of that symbol
    assert prototypes["cuThingMake"] == ("pointer", "4 bytes")
    assert prototypes["cuThingMake_v2"] == ("pointer", "8 bytes")


def test_new_functions_come_in_unclassified_and_known_ones_keep_what_they_have(tool: ModuleType, headers: Path) -> None:
    # GIVEN a table that knows one function of the headers, and one that they no longer have
    known = tool.Surface(
        PREAMBLE,
        (
            tool.Function("cuThingMake_v2", kind="PASSES", since=3020, reason="NOTHING"),
            tool.Function("cuThingOld", kind="PASSES", since=2000, reason="NOTHING"),
        ),
    )
    # WHEN the headers are merged in
    merged = tool.merge(known, tool.read_headers([headers])[0], {}).symbols
    # THEN both keep their class, and the new ones wait for theirs
    assert {name: each.kind for name, each in merged.items()} == {
        "cuThingMake": tool.UNCLASSIFIED,
        "cuThingMake_v2": "PASSES",
        "cuThingOld": "PASSES",
        "cuThingRun": tool.UNCLASSIFIED,
        "cuThingRun_ptsz": tool.UNCLASSIFIED,
    }


def test_table_survives_a_round_trip(tool: ModuleType) -> None:
    functions = (
        tool.Function("cuA", "", "PASSES", 2000, "NOTHING", "3"),
        tool.Function("cuB", "_ptds", "PASSES", 12080, "HOOKED", "WF"),
    )
    text = tool.write_surface(tool.Surface(PREAMBLE, functions))
    assert tool.read_surface(text) == tool.Surface(PREAMBLE, functions)
    assert tool.write_surface(tool.read_surface(text)) == text


def test_hook_list_is_read_with_variants_and_line_breaks(tool: ModuleType) -> None:
    text = """
#define NVS_HOOK_PT(name, suffix, params, args) NVS_HOOK(name, params, args)
NVS_SUBMIT_PT(cuRun, _ptsz,
              (void *stream), (stream), stream)
NVS_NEEDS(cuName, (void *p), (p))
NVS_CALL(CUresult, cuAsk, (int *answer))
"""
    assert tool.read_hooks(text) == {"cuRun": "SUBMIT", "cuRun_ptsz": "SUBMIT", "cuName": "NEEDS", "cuAsk": "CALL"}


def test_parameters_are_read_from_the_hook_list(tool: ModuleType) -> None:
    text = """
NVS_SUBMIT_PT(cuRun, _ptsz,
              (CUfunction f, unsigned n, void **params,
               CUstream stream),
              (f, n, params, stream), stream)
NVS_CALL(CUresult, cuAsk, (int *answer, CUdeviceptr p))
NVS_HOOK(cuEnd, (void), ())
"""
    assert tool.read_prototypes(text) == {
        "cuRun": ("pointer", "4 bytes", "pointer", "pointer"),
        "cuAsk": ("pointer", "8 bytes"),
        "cuEnd": (),
    }


@pytest.mark.parametrize(
    ("parameters", "takes"),
    [
        ("void", "0"),
        ("CUfunction f, int n, const void *p", "3"),
        ("const float *list, size_t n", "2"),
        ("CUtexref t, float low, float high", "WFF"),
        ("CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags", "WSW"),
        ("CUdeviceptr p, CUmemLocation where", "2"),
    ],
)
def test_how_parameters_are_passed(tool: ModuleType, parameters: str, takes: str) -> None:
    assert tool.signature(parameters) == takes


def test_a_function_that_lost_its_hook_needs_a_reason(tool: ModuleType) -> None:
    hooked = tool.Function("cuRun", "", "SUBMITS", 4000, "HOOKED")
    assert tool.mark_hooked(hooked, {}).reason == tool.UNCLASSIFIED
    assert tool.mark_hooked(hooked, {"cuRun": "SUBMIT"}) == hooked


def test_headers_that_do_not_name_all_releases_are_refused(tool: ModuleType) -> None:
    with pytest.raises(tool.SurfaceError, match="cuThingMake"):
        tool.releases_of(["cuThingMake", "cuThingMake_v2"], [("cuThingMake", 3020)])


def test_directory_without_headers_is_an_error_that_says_what_to_do(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(tool.SurfaceError, match="--download"):
        tool.read_headers([tmp_path])
