"""Which series a status becomes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from nvshare.gpu.reading import Reading
from nvshare.observe import families as f
from nvshare.observe import figures
from nvshare.observe.figures import Sample
from nvshare.observe.page import render
from tests.unit.core.core_scene import GIB, A
from tests.unit.observe.observe_status import scene, status_of

POD = (A, "0", "default", "trainer", "")
LONE = (A, "0", "", "", "task-2")


def key(name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    return (name, *labels)


def values(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    return {key(one.family.name, one.labels): one.value for one in samples}


@pytest.mark.parametrize("family", f.FAMILIES, ids=lambda family: family.name)
def test_names_and_labels_follow_the_conventions(family: f.Family) -> None:
    assert family.name.startswith("nvshare_")
    assert family.name.endswith("_total") is (family.kind == "counter")
    assert family.help.endswith(".")
    assert not {"pid", "client", "le"} & set(family.labels)


def test_a_task_has_what_its_processes_have_together() -> None:
    made = scene()
    made.register(3, A, group="pod:u", pod="trainer")
    made.allocate(3, GIB // 2)
    found = values(figures.of_tasks(status_of(made)))
    assert found[key("nvshare_task_processes", POD)] == 2
    assert found[key("nvshare_task_memory_allocated_bytes", POD)] == 1.5 * GIB
    assert found[key("nvshare_task_memory_quota_bytes", POD)] == 2 * GIB
    assert found[key("nvshare_task_floor_ratio", POD)] == 0.3
    assert found[key("nvshare_task_cap_ratio", POD)] == 0.4
    assert found[key("nvshare_task_processes", LONE)] == 1
    assert key("nvshare_task_memory_quota_bytes", LONE) not in found


def test_groups_of_one_name_have_their_quotas_together() -> None:
    made = scene()
    for client in (4, 5):
        made.register(client, A, group=f"run:{client}", mem_limit=GIB, core_limit="10..70")
    status = status_of(made)
    for group in status["groups"]:
        group["label"] = "sweep" if group["id"].startswith("run:") else group["label"]
    sweep = (A, "0", "", "", "sweep")
    found = values(figures.of_tasks(status))
    assert found[key("nvshare_task_memory_quota_bytes", sweep)] == 2 * GIB
    assert found[key("nvshare_task_cap_ratio", sweep)] == 1.0
    assert found[key("nvshare_task_floor_ratio", sweep)] == 0.2
    status["clients"][-1]["mem_limit"] = None
    assert key("nvshare_task_memory_quota_bytes", sweep) not in values(figures.of_tasks(status))


def test_a_process_that_sleeps_is_counted_where_the_status_tells() -> None:
    status = status_of(scene())
    for client in status["clients"]:
        del client["sleep"]
    assert "nvshare_task_asleep_processes" not in {key[0] for key in values(figures.of_tasks(status))}
    status["clients"][0]["sleep"], status["clients"][1]["sleep"] = "asleep", "awake"
    found = values(figures.of_tasks(status))
    assert (found[key("nvshare_task_asleep_processes", POD)], found[key("nvshare_task_asleep_processes", LONE)]) == (
        1,
        0,
    )


def test_a_card_has_its_memory_and_what_nvml_tells_of_it() -> None:
    status = status_of(scene())
    found = values(figures.of_cards(status, {A: Reading(0.25, None, 71.5)}))
    assert found["nvshare_card_memory_declared_bytes", A, "0"] == 8 * GIB
    assert found["nvshare_card_memory_unmanaged_bytes", A, "0"] == GIB
    assert found["nvshare_card_unmanaged_processes", A, "0"] == 2
    assert found["nvshare_card_utilization_ratio", A, "0"] == 0.25
    assert found["nvshare_card_power_watts", A, "0"] == 71.5
    assert ("nvshare_card_temperature_celsius", A, "0") not in found
    assert not {key for key in values(figures.of_cards(status, {})) if "utilization" in key[0]}


def test_lateness_is_a_cumulative_histogram() -> None:
    loop = {"events": 9, "late_bounds_s": [0.1, 1.0], "late_counts": [3, 0, 2], "late_s": 7.5}
    found = [one for one in figures.of_scheduler(status_of(scene(), loop=loop)) if one.family is f.LATENESS]
    assert [(one.suffix, one.bound, one.value) for one in found] == [
        ("_bucket", "0.1", 3),
        ("_bucket", "1.0", 3),
        ("_bucket", "+Inf", 5),
        ("_count", None, 5),
        ("_sum", None, 7.5),
    ]


def test_the_status_of_an_older_scheduler_has_fewer_series() -> None:
    status = status_of(scene())
    status["scheduler"] = {"release": "0.1.0", "cards": [A]}
    for client in status["clients"]:
        for view in client["gpus"]:
            for name in ("waited_s", "switches", "denied", "drain_timeouts", "floor_in_force"):
                del view[name]
    shown = {one.family.name for one in (*figures.of_scheduler(status), *figures.of_tasks(status))}
    assert {"nvshare_scheduler_clients", "nvshare_task_cap_ratio"} <= shown
    assert not {"nvshare_scheduler_events_total", "nvshare_task_floor_ratio"} & shown
    assert {family.name for _, _, view in figures.attachments(status) for family, _, _ in figures.counted(view)} == {
        "nvshare_task_gpu_seconds_total",
        "nvshare_task_moved_bytes_total",
    }


@given(st.text(max_size=200) | st.sampled_from(['"}\n# TYPE x', "\x1b[2J", "<script>", "\\", "\ud800"]))
def test_a_page_with_any_name_reads_back(name: str) -> None:
    status = status_of(scene())
    status["clients"][1]["name"] = name
    page = render(figures.of_tasks(status)).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    runs = {sample.labels["run"] for sample in families["nvshare_task_processes"].samples}
    assert runs == {"", figures.plain(name)}
    assert figures.plain(name).isprintable()


def test_families_stand_in_the_order_of_their_list_and_have_help_and_type() -> None:
    page = render([Sample(f.TASK_GPU_SECONDS, POD, 1.5), Sample(f.UP, (), True)]).decode()
    assert page.splitlines() == [
        f"# HELP nvshare_up {f.UP.help}",
        "# TYPE nvshare_up gauge",
        "nvshare_up 1.0",
        f"# HELP nvshare_task_gpu_seconds_total {f.TASK_GPU_SECONDS.help}",
        "# TYPE nvshare_task_gpu_seconds_total counter",
        f'nvshare_task_gpu_seconds_total{{gpu="{A}",gpu_index="0",namespace="default",pod="trainer",run=""}} 1.5',
    ]
