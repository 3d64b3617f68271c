"""The watch of pods against the double of the API server: what it sees, and what it survives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from nvshare.kube.pods import watch
from nvshare.kube.pods.api import Access, Api
from nvshare.kube.pods.complaints import Complaints
from nvshare.kube.pods.desired import Wanted
from nvshare.kube.pods.store import Store
from nvshare.kube.pods.watch import PodWatch
from tests.kube.doubles.api import ApiDouble
from tests.kube.world import CORE_LIMIT, GPUMEM, MEMORY_LIMIT, wait_for

PATIENCE = 20.0
NODE = "node-1"
GIB = 1 << 30


class Watched:
    """A watch that runs in threads of this process, and what it has found."""

    def __init__(self, api: ApiDouble) -> None:
        self.api = api
        self.tokens = iter(range(1_000_000))
        self._news = threading.Condition()
        self._ended = threading.Event()
        server = Api(Access("127.0.0.1", int(api.url.rpartition(":")[2]), None, lambda: f"token-{next(self.tokens)}"))
        self.complaints = Complaints(server, NODE, self._pause)
        self.store = Store(self._changed, self.complaints.complain)
        self.pauses: list[float] = []
        self._watch = PodWatch(server, NODE, self.store, self._pause, self._ended.is_set)
        self._threads = [threading.Thread(target=work) for work in (self._watch.run, self.complaints.run)]
        for thread in self._threads:
            thread.start()

    def _pause(self, seconds: float) -> None:
        """A tenth of what was asked for: the tests need not wait."""
        self.pauses.append(seconds)
        self._ended.wait(seconds / 10)

    def _changed(self) -> None:
        with self._news:
            self._news.notify_all()

    def pods(self) -> dict[str, Wanted]:
        return {one.name: one for one in (self.store.snapshot() or {}).values()}

    def until(self, satisfied: Callable[[dict[str, Wanted]], object]) -> dict[str, Wanted]:
        with self._news:
            assert self._news.wait_for(lambda: satisfied(self.pods()), PATIENCE), self.pods()
        return self.pods()

    def close(self) -> None:
        self._ended.set()
        self.api.stop()
        self.complaints.end()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    double = ApiDouble(bookmarks=0.2)
    yield double
    double.close()


@pytest.fixture
def watched(api: ApiDouble) -> Iterator[Watched]:
    made = Watched(api)
    yield made
    made.close()


def listed(watched: Watched) -> None:
    watched.until(lambda _: watched.store.snapshot() is not None)


def test_pods_of_this_node_are_found_with_their_quotas(api: ApiDouble, watched: Watched) -> None:
    api.create("old", annotations={MEMORY_LIMIT: "1Gi"}, limits={GPUMEM: "2048"})
    api.create("elsewhere", node="node-2", annotations={MEMORY_LIMIT: "1Gi"})
    pods = watched.until(lambda pods: "old" in pods)
    assert (pods["old"].mem, pods["old"].gpumem) == (GIB, 2 * GIB)
    # WHEN it changes, one comes and one goes
    api.annotate("old", MEMORY_LIMIT, "4Gi")
    watched.until(lambda pods: pods["old"].mem == 4 * GIB)
    api.annotate("old", MEMORY_LIMIT, None)
    watched.until(lambda pods: pods["old"].mem is None)
    api.create("new", annotations={CORE_LIMIT: "30"})
    watched.until(lambda pods: "new" in pods and pods["new"].cores == 30)
    api.delete("old")
    assert set(watched.until(lambda pods: "old" not in pods)) == {"new"}


def test_pod_that_finished_is_as_good_as_gone(api: ApiDouble, watched: Watched) -> None:
    api.create("job")
    watched.until(lambda pods: "job" in pods)
    api.change("job", lambda pod: pod["status"].update(phase="Succeeded"))
    watched.until(lambda pods: "job" not in pods)


def test_pod_made_anew_under_its_name_is_another(api: ApiDouble, watched: Watched) -> None:
    first = api.create("trainer", annotations={CORE_LIMIT: "30"})["metadata"]["uid"]
    watched.until(lambda pods: "trainer" in pods)
    api.delete("trainer")
    second = api.create("trainer")["metadata"]["uid"]
    pods = watched.until(lambda pods: "trainer" in pods and pods["trainer"].uid == second)
    assert first not in (watched.store.snapshot() or {})
    assert pods["trainer"].cores is None


def test_five_hundred_pods_are_listed_in_pages_and_all_their_changes_arrive(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    for number in range(500):
        api.create(f"pod-{number}")
    api.forget_versions()
    watched.until(lambda pods: len(pods) == 500)
    wait_for("what the double counts", lambda: any("continue" in query for _, _, query in api.asked))
    for number in range(500):
        api.annotate(f"pod-{number}", CORE_LIMIT, str(1 + number % 100))
    watched.until(lambda pods: all(pods[f"pod-{number}"].cores == 1 + number % 100 for number in range(500)))


def test_pod_that_vanishes_between_list_and_watch_is_gone(api: ApiDouble) -> None:
    api.create("stays")
    api.create("vanishes")
    began = threading.Event()

    def delete_once(method: str, path: str, query: dict[str, str]) -> int:
        if "watch" in query and not began.is_set():
            began.set()
            api.delete("vanishes")
        return 0

    api.refuse = delete_once
    with contextlib.closing(Watched(api)) as watched:
        watched.until(lambda pods: began.is_set() and set(pods) == {"stays"})


def test_list_that_is_out_of_date_between_two_pages_is_begun_anew(
    api: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAGE", 2)
    for number in range(5):
        api.create(f"pod-{number}")
    once = iter([410])
    api.refuse = lambda method, path, query: next(once, 0) if "continue" in query else 0
    with contextlib.closing(Watched(api)) as watched:
        watched.until(lambda pods: len(pods) == 5)
    firsts = [query for _, _, query in api.asked if "watch" not in query and "continue" not in query]
    assert len(firsts) == 2


def test_expired_version_is_followed_by_a_new_list_that_knows_who_is_gone(api: ApiDouble, watched: Watched) -> None:
    api.create("gone")
    api.create("stays")
    watched.until(lambda pods: len(pods) == 2)
    # WHEN all that happened while nobody watched is forgotten
    api.stop()
    api.delete("gone")
    api.annotate("stays", CORE_LIMIT, "30")
    api.forget_versions()
    api.start()
    # THEN the list tells
    pods = watched.until(lambda pods: set(pods) == {"stays"} and pods["stays"].cores == 30)
    assert pods["stays"].cores == 30


def test_refused_watch_of_an_old_version_is_the_same(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    wait_for("what the double counts", lambda: api.watches() == 1)
    lists = sum("watch" not in query for _, _, query in api.asked)
    once = iter([410])
    api.refuse = lambda method, path, query: next(once, 0) if "watch" in query else 0
    api.drop_connections()
    wait_for("what the double counts", lambda: sum("watch" not in query for _, _, query in api.asked) == lists + 1)
    api.create("new")
    watched.until(lambda pods: "new" in pods)


def test_dropped_streams_lose_nothing_and_nothing_is_listed_again(api: ApiDouble, watched: Watched) -> None:
    api.create("trainer")
    watched.until(lambda pods: "trainer" in pods)
    for number in range(1, 11):
        api.drop_connections()
        api.annotate("trainer", CORE_LIMIT, str(number))
        watched.until(lambda pods, number=number: pods["trainer"].cores == number)
    assert sum("watch" not in query and method == "GET" for method, _, query in api.asked) == 1


def test_api_that_is_away_for_a_while_changes_nothing_and_changes_arrive_after(
    api: ApiDouble, watched: Watched
) -> None:
    api.create("trainer", annotations={CORE_LIMIT: "30"})
    watched.until(lambda pods: "trainer" in pods)
    api.stop()
    wait_for("what the double counts", lambda: len(watched.pauses) >= 5)
    assert watched.pods()["trainer"].cores == 30
    api.annotate("trainer", CORE_LIMIT, "50")
    assert max(watched.pauses) <= watch.Backoff.LONGEST
    api.start()
    watched.until(lambda pods: pods["trainer"].cores == 50)


def test_server_errors_are_waited_out(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    answers = iter([500, 503, 429, 403, 401, 500])
    api.refuse = lambda method, path, query: next(answers, 0)
    api.drop_connections()
    api.create("trainer")
    watched.until(lambda pods: "trainer" in pods)
    assert watched.pauses


def test_every_request_brings_the_token_of_its_moment(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    wait_for("what the double counts", lambda: api.watches() == 1)
    assert api.tokens == ["Bearer token-0", "Bearer token-1"]


def test_stream_that_went_silent_is_given_up_and_begun_anew(api: ApiDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENCE", 0.1)
    api.bookmarks = 1000.0
    with contextlib.closing(Watched(api)):
        wait_for("what the double counts", lambda: api.watches() >= 3)


def test_event_too_large_is_passed_over_and_the_next_is_seen(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    wait_for("what the double counts", lambda: api.watches() == 1)
    api.create("huge", annotations={MEMORY_LIMIT: "1Gi", "other": "x" * (5 << 20)})
    api.create("small")
    assert "huge" not in watched.until(lambda pods: "small" in pods)


@pytest.mark.parametrize(("key", "value"), [(CORE_LIMIT, "lots"), (MEMORY_LIMIT, "9" * 1_000_000)])
def test_invalid_value_is_an_event_once_and_what_was_in_force_stays(
    api: ApiDouble, watched: Watched, key: str, value: str
) -> None:
    pod = api.create("trainer", annotations={CORE_LIMIT: "30", MEMORY_LIMIT: "1Gi"})
    watched.until(lambda pods: "trainer" in pods)
    api.annotate("trainer", key, value)
    api.annotate("trainer", "other", "1")
    api.annotate("trainer", "other", "2")
    api.create("after")
    pods = watched.until(lambda pods: "after" in pods)
    assert (pods["trainer"].cores, pods["trainer"].mem) == (30, GIB)
    wait_for("what the double counts", lambda: api.events_of("trainer"))
    (event,) = api.events_of("trainer")
    assert event["reason"] == "InvalidQuota"
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert event["source"] == {"component": "nvshare-pod-watch", "host": NODE}
    assert key in event["message"]
    assert len(event["message"]) < 400
    # AND another value is another event
    api.annotate("trainer", key, "none of these")
    wait_for("what the double counts", lambda: len(api.events_of("trainer")) == 2)


def test_event_waits_for_an_api_that_does_not_answer(api: ApiDouble, watched: Watched) -> None:
    listed(watched)
    answers = iter([500, 503])
    api.refuse = lambda method, path, query: next(answers, 0) if method == "POST" else 0
    api.create("trainer", annotations={CORE_LIMIT: "lots"})
    wait_for("what the double counts", lambda: api.events_of("trainer"))


def test_event_that_was_said_before_a_restart_is_not_said_again(api: ApiDouble, watched: Watched) -> None:
    api.create("trainer", annotations={CORE_LIMIT: "lots"})
    wait_for("what the double counts", lambda: api.events_of("trainer"))
    again = Watched(api)
    with contextlib.closing(again):
        wait_for("what the double counts", lambda: sum(method == "POST" for method, _, _ in api.asked) == 2)
        assert len(api.events_of("trainer")) == 1
