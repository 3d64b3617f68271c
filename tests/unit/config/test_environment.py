from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nvshare import config
from nvshare.config import Environment


def test_nothing_set_means_defaults_and_no_warning():
    environment = Environment({})
    settings = config.scheduler_config(environment)
    assert settings == config.SchedulerConfig()
    assert environment.warnings == []


def test_environment_sets_the_scheduler():
    settings = config.scheduler_config(
        Environment(
            {
                "NVSHARE_SCHEDULING_MODE": "Serial",
                "NVSHARE_MAX_RUNTIME_SEC": "60",
                "NVSHARE_SWITCH_TIME_MODE": "fixed",
                "NVSHARE_SWITCH_TIME_FIXED": "12",
                "NVSHARE_SWITCH_TIME_MULTIPLIER": "2.5",
                "NVSHARE_COMPUTE_WINDOW_MS": "500",
                "NVSHARE_MEMORY_RESERVE_PERCENT": "10",
                "NVSHARE_CARD_MEMORY": "16GiB",
                "NVSHARE_DEBUG": "1",
            }
        )
    )
    assert settings == config.SchedulerConfig(
        mode="serial",
        max_runtime=60,
        switch_time="fixed",
        quantum=12,
        multiplier=2.5,
        compute_window=0.5,
        reserve_percent=10,
        card_memory=16 << 30,
        debug=True,
        defaulted=frozenset(),
    )


def test_command_line_goes_before_the_environment():
    environment = Environment({"NVSHARE_SCHEDULING_MODE": "serial", "NVSHARE_CARD_MEMORY": "1Gi"})
    settings = config.scheduler_config(environment, mode="concurrent", quantum=7, card_memory=5)
    assert (settings.mode, settings.switch_time, settings.quantum, settings.card_memory) == (
        "concurrent",
        "fixed",
        7,
        5,
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed", "default"),
    [
        (config.SCHEDULING_MODE, "fast", "auto or serial or concurrent", "auto"),
        (config.MAX_RUNTIME, "9", "from 10 to 86400", "300"),
        (config.SWITCH_TIME_FIXED, "0", "from 1 to 86400", "30"),
        (config.SWITCH_TIME_MULTIPLIER, "nan", "from 1 to 1000", "5"),
        (config.COMPUTE_WINDOW, "many", "from 100 to 60000", "2000"),
        (config.GPU_CORE_LIMIT, "101", "from 1 to 100", "100"),
        (config.GPU_MEMORY_LIMIT, "4X", "4Gi or 4GiB", "none"),
        (config.PRIORITY, "urgent", "normal or high", "normal"),
        (config.REQUIRE, "maybe", "on or off", "off"),
        (config.GPU_MEMORY_LIMIT, "much", "a size", "none"),
        (config.HOST_MEMORY, "abc", "a size", "80 % of the machine's memory"),
        (config.MEMORY_RESERVE, "-1", "from 0 to 90", "0"),
        (config.VIRTUAL_DEVICES, "0", "from 1 to 1000", "10"),
        (config.PLACEMENT, "best", "spread or pack", "spread"),
        (config.MEMORY_OVERSUB_RATIO, "0.5", "from 1 to 100", "1.0"),
    ],
)
def test_bad_value_names_itself_what_is_allowed_and_the_default(variable, value, allowed, default):
    environment = Environment({variable.name: value})
    assert environment.get(variable) == variable.default
    (warning,) = environment.warnings
    assert f"{variable.name}={value!r}" in warning
    assert allowed in warning
    assert warning.endswith(f"using the default, {default}")


def test_empty_value_counts_as_not_set():
    environment = Environment({"NVSHARE_MAX_RUNTIME_SEC": "  "})
    assert environment.get(config.MAX_RUNTIME) == 300
    assert environment.warnings == []


def test_socket_is_the_chosen_one_then_the_system_one_then_the_users(tmp_path):
    system = tmp_path / "system.sock"
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert config.find_socket(environ, system) == Path("/run/user/7/nvshare/scheduler.sock")
    system.touch()
    assert config.find_socket(environ, system) == system
    assert config.find_socket({**environ, "NVSHARE_SOCK": "/x.sock"}, system) == Path("/x.sock")


def test_without_a_runtime_directory_each_user_has_one_under_tmp():
    assert config.runtime_directory({}, uid=1234) == Path("/tmp/nvshare-1234")


def test_scheduler_listens_for_the_system_unless_told():
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert config.scheduler_socket(False, environ) == config.SYSTEM_SOCKET
    assert config.scheduler_socket(True, environ) == Path("/run/user/7/nvshare/scheduler.sock")
    assert config.scheduler_socket(True, {"NVSHARE_SOCK": "/x"}) == Path("/x")


def test_a_system_socket_that_may_not_be_looked_at_is_not_there(tmp_path):
    # GIVEN a path that the system refuses to look at: here for its length, else for lack of permission
    system = tmp_path / ("x" * 300) / "scheduler.sock"
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert config.find_socket(environ, system) == Path("/run/user/7/nvshare/scheduler.sock")


def test_settings_that_cannot_be_used_and_those_that_are_none_are_told_apart():
    environ = {
        "NVSHARE_GPU_CORE_LIMIT": "0",
        "NVSHARE_PRIORITY": "high",
        "NVSHARE_SOCK": "/x",
        "NVSHARE_MEM": "4Gi",
        "NVSHARE_SCHEDULER_SERVICE_HOST": "10.0.0.1",  # as Kubernetes makes them
        "NVSHARE_SCHEDULER_PORT": "tcp://10.0.0.1:80",
        "OTHER": "x",
    }
    (line,) = config.unusable_settings(environ)
    assert line.startswith("NVSHARE_GPU_CORE_LIMIT='0' cannot be used: allowed is a whole number from 1 to 100")
    assert config.unknown_settings(environ) == ["NVSHARE_MEM"]


@pytest.mark.parametrize(
    ("present", "expected"),
    [("", "/n.so"), ("/a.so", "/a.so:/n.so"), ("/a.so /b.so", "/a.so:/b.so:/n.so"), ("/n.so:/a.so", "/n.so:/a.so")],
)
def test_our_library_is_preloaded_after_what_is_there_and_once(present, expected):
    assert config.preload_with(Path("/n.so"), {"LD_PRELOAD": present}) == expected


@pytest.mark.parametrize(
    ("level", "name"),
    [(logging.DEBUG, "DEBUG"), (logging.INFO, "INFO"), (logging.WARNING, "WARN"), (logging.CRITICAL, "FATAL")],
)
def test_log_lines_have_the_known_form(level, name):
    record = logging.LogRecord("nvshare", level, "", 0, "Sent %s", ("LOCK_OK",), None)
    assert config.LogFormatter().format(record) == f"[NVSHARE][{name}]: Sent LOCK_OK"


def test_host_memory_is_a_share_of_the_machine_unless_set(tmp_path):
    # GIVEN a machine of 1000 kB
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:           1000 kB\nMemFree: 1 kB\n")
    # THEN swapped-out memory may take 80 % of it, or what the environment says, or anything where nothing is known
    assert config.host_memory_budget(meminfo) == 1000 * 1024 * 8 // 10
    assert config.host_memory_budget(tmp_path / "missing") is None
    environment = config.Environment({"NVSHARE_HOST_MEMORY": "64GiB"})
    assert config.scheduler_config(environment).host_memory == 64 << 30
