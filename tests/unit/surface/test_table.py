"""Every function of the driver is classified, and every one that matters is hooked or says why not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from nvshare import native

# Classes of which a function is hooked, or has a reason of weight.
ACTING = ("ALLOCATES", "FREES", "SUBMITS", "NAMES", "REPORTS", "CONTEXT", "RESOLVES")
NO_REASON = ("HOOKED", "NOTHING", "OBJECT")  # for those


@pytest.fixture(scope="module")
def surface(tool: ModuleType) -> Any:
    return tool.read_surface(tool.SURFACE.read_text())


@pytest.fixture(scope="module")
def hooks(tool: ModuleType) -> dict[str, str]:
    found: dict[str, str] = tool.read_hooks(tool.HOOKS.read_text())
    return found


def test_no_function_is_unclassified(surface: Any) -> None:
    # GIVEN the table WHEN it is read THEN every function has a class and a reason that the table defines
    assert len(surface.functions) > 500
    strangers = [
        each.name for each in surface.functions if each.kind not in surface.kinds or each.reason not in surface.reasons
    ]
    assert strangers == []


def test_how_every_function_takes_its_parameters_is_known(tool: ModuleType, surface: Any) -> None:
    # GIVEN the macros that make C functions of the column
    text = (tool.ROOT / "native/include/signatures.h").read_text()
    # THEN there is one for every entry of it
    assert [each.name for each in surface.functions if f"#define NVS_PARAMETERS_{each.takes} (" not in text] == []


def test_parameters_of_hooks_agree_with_the_table(tool: ModuleType, surface: Any) -> None:
    # GIVEN the parameters of hooks.def, which the tool compares with CUDA's headers
    prototypes = tool.read_prototypes(tool.HOOKS.read_text())
    # THEN the table, which was read from the headers, has as many for each
    counts = {name: len(parameters) for name, parameters in prototypes.items()}
    takes = {symbol: each.takes for symbol, each in surface.symbols.items()}
    wrong = [
        name
        for name, count in counts.items()
        if (int(takes[name]) if takes[name].isdigit() else len(takes[name])) != count
    ]
    assert wrong == []


def test_functions_that_act_are_hooked_or_say_why_not(surface: Any, hooks: dict[str, str]) -> None:
    # GIVEN all functions that allocate, free, submit, name memory, report, make contexts or find functions
    acting = [each for each in surface.functions if each.kind in ACTING]
    # WHEN one has no hook, in any of its variants
    unhooked = [each for each in acting if any(hooks.get(symbol, "CALL") == "CALL" for symbol in each.symbols)]
    # THEN its reason is a real one
    assert [each.name for each in unhooked if each.reason in NO_REASON] == []


def test_table_and_hooks_agree(surface: Any, hooks: dict[str, str]) -> None:
    hooked = {name for name, kind in hooks.items() if kind != "CALL"}
    # THEN the table knows every function of the list, those that we only call as well
    assert set(hooks) - set(surface.symbols) == set()
    # AND says HOOKED of exactly those that are
    assert {symbol for symbol, each in surface.symbols.items() if each.reason == "HOOKED"} == hooked


def test_generated_wrappers_fit_the_class(surface: Any, hooks: dict[str, str]) -> None:
    # THEN what passes the gate as work is classified as work, what waits for its memory as naming memory,
    # AND nothing that is said to pass has a wrapper
    fits = {
        "SUBMIT": {"SUBMITS"},
        "NEEDS": {"NAMES"},
        "WAIT": {"WAITS"},
        "HOOK": {*ACTING, "LIFE"} - {"SUBMITS"},
        "CALL": set(surface.kinds),
    }
    assert [name for name, kind in hooks.items() if surface.symbols[name].kind not in fits[kind]] == []


def test_every_reason_is_given_by_some_function(surface: Any) -> None:
    assert set(surface.reasons) == {each.reason for each in surface.functions}


def test_the_simulated_driver_has_the_functions_that_are_marked_so(tool: ModuleType, surface: Any) -> None:
    # GIVEN the functions that the table says the simulated driver has
    simulated = {symbol for each in surface.functions if each.simulated for symbol in each.symbols}
    # THEN it exports exactly those
    assert simulated == tool.exports(native.simulated_driver() / "libcuda.so.1")


def test_table_is_as_the_tool_writes_it(tool: ModuleType, surface: Any, hooks: dict[str, str]) -> None:
    # GIVEN the table WHEN the tool runs without headers THEN nothing changes
    assert tool.write_surface(tool.merge(surface, [], hooks)) == tool.SURFACE.read_text()
