"""The runner of all acceptance commands: what becomes of checks that pass, fail, raise, or cannot be made."""

from __future__ import annotations

import pytest

from nvshare.acceptance.exit_code import exit_code, passed
from nvshare.acceptance.finding import Finding, Verdict
from nvshare.acceptance.runner import Check, NotMade, run


def found(ok: bool | None) -> Finding:
    return Finding("check", "", "", ok)


def test_checks_are_carried_out_in_order_on_the_same_place() -> None:
    told: list[str] = []
    checks = [Check[str](name, lambda place: Verdict(place, ok=True), "promise", name.upper()) for name in "ab"]
    findings = list(run(checks, "here", lambda check: told.append(check.name)))
    assert told == ["a", "b"]
    assert [(one.check, one.title, one.expected, one.seen, one.ok) for one in findings] == [
        ("a", "A", "promise", "here", True),
        ("b", "B", "promise", "here", True),
    ]
    assert all(one.seconds is not None and one.seconds >= 0 for one in findings)


def test_a_check_that_raises_has_failed_and_the_next_one_is_made() -> None:
    def breaks(place: None) -> Verdict:
        raise KeyError("gone")

    checks = [Check("a", breaks), Check[None]("b", lambda place: Verdict("fine", ok=True))]
    assert [(one.seen, one.ok) for one in run(checks, None)] == [("KeyError: 'gone'", False), ("fine", True)]


def test_a_check_that_cannot_be_made_is_neither_passed_nor_failed() -> None:
    def no_card(place: None) -> Verdict:
        raise NotMade("there is one card only")

    (finding,) = run([Check("a", no_card)], None, attempts=2)
    assert (finding.seen, finding.ok) == ("there is one card only", None)


def test_a_check_that_fails_is_made_again_and_says_so() -> None:
    seen = iter([False, True])
    (finding,) = run([Check[None]("a", lambda place: Verdict("x", next(seen)))], None, attempts=2)
    assert (finding.seen, finding.ok) == ("x (attempt 2)", True)
    (finding,) = run([Check[None]("a", lambda place: Verdict("x", ok=False))], None)
    assert (finding.seen, finding.ok) == ("x", False)


def test_ctrl_c_ends_the_run() -> None:
    def interrupted(place: None) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run([Check("a", interrupted)], None, attempts=2))


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [([True], 0), ([True, None], 0), ([True, False], 1), ([False, None], 1), ([None], 2), ([], 2)],
)
def test_the_exit_code_counts_what_was_judged(verdicts: list[bool | None], code: int) -> None:
    findings = [found(ok) for ok in verdicts]
    assert exit_code(findings) == code
    assert passed(findings) is (code == 0)
