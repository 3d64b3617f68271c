"""``nvsharectl`` and ``nvshare run`` as a user types them, against a real scheduler."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from nvshare.client.connection import Connection, NoScheduler, OtherVersion, RequestRefused, SchedulerError
from nvshare.client.spawn import LOG_NAME, SchedulerNotStarted, ensure_scheduler, is_running
from nvshare.wire import messages as wire
from tests.support.processes import environment

GIB = 1 << 30


FOREVER = "print('up', flush=True)\nwhile True: signal.pause()\n"
WAITING_TASK = """
import os, pathlib, signal, sys
from nvshare.wire import messages as wire
from tests.support.wire_client import WireClient
for name in sys.argv[2:]:
    signal.signal(signal.Signals["SIG" + name], lambda *_, name=name: os.write(1, f"{name}\\n".encode()))
client = WireClient(pathlib.Path(os.environ["NVSHARE_SOCK"]))
client.register(sys.argv[1])
client.send(wire.ReqLock(0))
while True:
    signal.pause()
"""


def command(module: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line of its output."""
    assert process.stdout
    return process.stdout.readline()


def ctl(scheduler, *arguments: str) -> tuple[int, str, str]:
    return finish(command("nvshare.cli.ctl", *arguments, NVSHARE_SOCK=str(scheduler.socket)))


def run(scheduler, *arguments: str) -> subprocess.Popen[str]:
    return command("nvshare", "run", *arguments, NVSHARE_SOCK=str(scheduler.socket))


class TestNvsharectl:
    def test_status_as_json_is_the_snapshot(self, scheduler):
        code, out, _ = ctl(scheduler, "status", "--json")
        assert code == 0
        assert [gpu["uuid"] for gpu in json.loads(out)["gpus"]] == scheduler.gpus

    def test_status_as_a_table_shows_clients(self, scheduler, connect):
        client = connect(scheduler)
        client.register(scheduler.gpus[0], name="trainer")
        _, out, _ = ctl(scheduler, "status")
        assert f"{client.id:016x}" in out
        assert "trainer" in out

    def test_watch_ends_cleanly_with_ctrl_c(self, scheduler):
        process = command("nvshare.cli.ctl", "status", "--watch", "--json", NVSHARE_SOCK=str(scheduler.socket))
        assert json.loads(next_line(process))["gpus"]
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        assert (code, err) == (130, "")

    def test_watch_into_a_pipe_is_one_picture_below_the_other(self, scheduler):
        process = command("nvshare.cli.ctl", "status", "--watch", NVSHARE_SOCK=str(scheduler.socket))
        pictures = 0
        while pictures < 2:
            pictures += "GPU-" in next_line(process)
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 130

    @pytest.mark.parametrize(
        ("arguments", "key", "value"),
        [
            (("set", "--mode", "serial"), "mode", "serial"),
            (("-T", "20"), "quantum_s", 20),
            (("--set-tq", "25"), "switch_time", "fixed"),
            (("-S", "off"), "anti_thrash", False),
        ],
    )
    def test_settings_are_changed(self, scheduler, arguments, key, value):
        code, out, _ = ctl(scheduler, *arguments)
        assert code == 0
        assert out.startswith("mode ")
        assert scheduler.status()["settings"][key] == value

    def test_quota_is_changed_and_told(self, scheduler, connect):
        client = connect(scheduler)
        client.register(scheduler.gpus[0])
        code, out, _ = ctl(scheduler, "set", "--client", f"{client.id:x}", "--mem", "4GiB", "--cores", "30")
        assert (code, out.strip()) == (0, f"process:{os.getpid()}: memory 4.0 GiB, cores 30 %, priority normal")

    def test_quota_that_is_taken_back_shows_which_one_is_in_force_then(self, scheduler, connect):
        client = connect(scheduler)
        client.register(scheduler.gpus[0], mem_limit=GIB)
        target = ("set", "--client", f"{client.id:x}", "--mem")
        assert "memory 4.0 GiB, cores" in ctl(scheduler, *target, "4GiB")[1]
        assert "memory 1.0 GiB (from its NVSHARE_GPU_MEMORY_LIMIT), cores" in ctl(scheduler, *target, "none")[1]

    def test_quota_of_an_annotated_pod_is_accepted_and_the_annotation_said_to_be_in_force(self, scheduler):
        pod = {"uid": "0123-ab", "namespace": "default", "name": "trainer", "mem": GIB, "cores": None}
        scheduler.ask("pods", pods=[pod], whole=True)
        code, out, _ = ctl(scheduler, "set", "--pod", "default/trainer", "--mem", "4GiB", "--cores", "30")
        assert code == 0
        assert "memory 1.0 GiB (from its annotation nvshare.com/gpu-memory-limit, which counts before" in out
        assert "cores 30 %, priority" in out
        # AND it counts when the annotation is gone
        scheduler.ask("pods", pods=[{**pod, "mem": None}])
        (group,) = scheduler.status()["groups"]
        assert (group["mem_limit"], group["mem_limit_from"]) == (4 * GIB, "operator")

    def test_a_floor_beyond_the_card_is_refused_with_the_names_of_those_who_hold_them(self, scheduler):
        # GIVEN three tasks on one card, of which two are guaranteed half of it each
        program = [sys.executable, "-c", WAITING_TASK, scheduler.gpus[0]]
        here = environment(NVSHARE_SOCK=str(scheduler.socket))
        tasks: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(1, 4):  # in this order, for those who hold a floor are named in the order of arrival
                tasks.append(subprocess.Popen(program, env=here))
                scheduler.wait_until(lambda status, number=number: len(status["clients"]) == number)
            first, second, third = (str(task.pid) for task in tasks)
            assert ctl(scheduler, "set", "--pid", first, "--cores", "50..")[0] == 0
            code, out, _ = ctl(scheduler, "set", "--pid", second, "--cores", "50..60%")
            assert (code, out.strip()) == (
                0,
                f"process:{second}: memory without limit, cores 50..60 %, priority normal",
            )
            # WHEN the third asks for as much THEN it is told who has it, and nothing changes
            code, _, err = ctl(scheduler, "set", "--pid", third, "--mem", "1GiB", "--cores", "50..")
            assert (code, err) == (
                2,
                f"[NVSHARE][FATAL]: 50% of GPU {scheduler.gpus[0]} cannot be guaranteed to process {third}: "
                f"process {first} has 50%, process {second} has 50%, which leaves 0% of 100%; "
                "guarantee less, or lower or end one of these first\n",
            )
            groups = {group["id"]: group for group in scheduler.status()["groups"]}
            assert (groups[f"process:{third}"]["core_floor"], groups[f"process:{third}"]["mem_limit"]) == (0, None)
            # AND when one of them has lowered its own there is room
            assert ctl(scheduler, "set", "--pid", first, "--cores", "100")[0] == 0
            assert ctl(scheduler, "set", "--pid", third, "--cores", "50..")[0] == 0
            groups = {group["id"]: group for group in scheduler.status()["groups"]}
            assert groups[f"process:{third}"]["core_floor_in_force"] == {scheduler.gpus[0]: 50}
        finally:
            for task in tasks:
                task.kill()
                task.wait()

    def test_what_the_scheduler_refuses_is_exit_code_2(self, scheduler):
        code, _, err = ctl(scheduler, "set", "--pod", "default/nobody", "--mem", "none")
        assert code == 2
        assert "there is no pod default/nobody" in err

    def test_what_is_refused_in_part_changes_nothing(self, scheduler):
        code, _, _ = ctl(scheduler, "set", "--mode", "serial", "--pid", "1", "--mem", "1GiB")
        assert code == 2
        assert scheduler.status()["settings"]["mode"] == "auto"

    def test_settings_that_memory_stands_against_are_refused_as_a_whole(self, scheduler, connect):
        # GIVEN two tasks that do not fit together
        for _ in range(2):
            client = connect(scheduler)
            client.register(wire.GpuEntry(scheduler.gpus[0]), flags=wire.FLAG_CAN_SWAP)
            client.request_memory(12 * GIB)
        before = scheduler.status()["settings"]
        # WHEN turns are switched off THEN the reason is told, and nothing changed
        code, out, err = ctl(scheduler, "-T", "1", "-S", "off")
        assert (code, out) == (2, "")
        assert "anti-thrash stays on while memory of tasks waits" in err
        assert scheduler.status()["settings"] == before

    def test_other_version_is_named(self, tmp_path):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            connection = Connection(tmp_path / "s")
            server, _ = listener.accept()
            payload = wire.Refused(1, "no", version=9).pack()
            server.sendall(wire.HEADER.pack(wire.MAGIC, 9, wire.MessageType.REFUSED, len(payload), 1) + payload)
            with connection, server, pytest.raises(OtherVersion, match=r"version 9, this command version 1"):
                connection.request("status")


class TestRun:
    def test_exit_code_is_the_commands(self, scheduler):
        assert finish(run(scheduler, "--", "sh", "-c", "exit 7"))[0] == 7

    def test_death_by_signal_is_128_and_its_number(self, scheduler):
        assert finish(run(scheduler, "--", "sh", "-c", "kill -KILL $$"))[0] == 128 + 9

    def test_missing_command_is_127_in_one_line(self, scheduler):
        code, _, err = finish(run(scheduler, "--", "no-such-command"))
        assert (code, err) == (127, "[NVSHARE][FATAL]: no-such-command: command not found\n")

    def test_empty_command_is_127_in_one_line(self, scheduler):
        code, _, err = finish(run(scheduler, "--", ""))
        assert (code, err) == (127, "[NVSHARE][FATAL]: '': command not found\n")

    def test_run_inside_a_run_has_the_quota_of_the_outer_one(self, scheduler):
        # GIVEN a run that starts another one with a larger quota
        nested = [sys.executable, "-m", "nvshare", "run", "--mem", "3GiB", "--", "sh", "-c"]
        process = run(scheduler, "--mem", "1GiB", "--", *nested, "echo $NVSHARE_GPU_MEMORY_LIMIT; read x < /dev/zero")
        # THEN the inner one says that it does not count
        assert next_line(process) == f"{GIB}\n"
        inner = next(g["id"] for g in scheduler.status()["groups"] if g["id"] != f"run:{process.pid}")
        # AND a quota that is set for the inner one is set for both
        code, out, _ = ctl(scheduler, "set", "--run", inner.removeprefix("run:"), "--mem", "2GiB")
        assert code == 0
        assert out.startswith(f"run:{process.pid}: memory 2.0 GiB")
        process.terminate()
        assert f"[NVSHARE][WARN]: inside run {process.pid}: its quotas count\n" in finish(process)[2]

    def test_command_has_the_library_the_socket_and_the_quota(self, scheduler):
        variables = "$LD_PRELOAD $NVSHARE_SOCK $NVSHARE_GPU_MEMORY_LIMIT"
        _, out, _ = finish(run(scheduler, "--mem", "4Gi", "--", "sh", "-c", f"echo {variables}"))
        library, socket, limit = out.split()
        assert library.endswith("libnvshare.so")
        assert (socket, limit) == (str(scheduler.socket), str(4 * GIB))

    def test_group_lives_as_long_as_the_run(self, scheduler):
        process = run(scheduler, "--mem", "1GiB", "--name", "trial", "--", "sh", "-c", "echo up; read x < /dev/zero")
        next_line(process)
        (group,) = scheduler.status()["groups"]
        assert (group["id"], group["label"], group["mem_limit"]) == (f"run:{process.pid}", "trial", GIB)
        process.terminate()
        assert finish(process)[0] == 128 + signal.SIGTERM
        scheduler.wait_until(lambda status: not status["groups"])

    def test_group_is_opened_again_when_the_scheduler_comes_back(self, scheduler):
        process = run(scheduler, "--mem", "1GiB", "--", "sh", "-c", "echo up; read x < /dev/zero")
        next_line(process)
        scheduler.kill()
        scheduler.start()
        status = scheduler.wait_until(lambda status: status["groups"])
        assert (status["groups"][0]["id"], status["groups"][0]["mem_limit"]) == (f"run:{process.pid}", GIB)
        process.terminate()
        finish(process)

    def test_second_ctrl_c_ends_a_task_that_waits_and_hears_nothing(self, scheduler, connect):
        # GIVEN a task that waits for its turn and hears of no signal but the last one
        self.occupy(scheduler, connect)
        process = run(scheduler, "--", sys.executable, "-c", WAITING_TASK, scheduler.gpus[0], "INT", "TERM")
        scheduler.wait_until(lambda status: any(client["state"] == "waiting" for client in status["clients"]))
        # WHEN it is interrupted THEN the second time it is told to end, and the third time it is made to
        process.send_signal(signal.SIGINT)
        assert next_line(process) == "INT\n"
        process.send_signal(signal.SIGINT)
        assert next_line(process) == "TERM\n"
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
        assert (code, out) == (128 + signal.SIGKILL, "")
        assert err.count("the task waits inside the GPU driver and does not react; ending it\n") == 1

    def test_command_that_does_not_wait_may_be_interrupted_often(self, scheduler):
        # Without a buffer, which could be in use when the next one comes.
        script = "import os, signal\nsignal.signal(2, lambda *_: os.write(1, b'INT\\n'))\n" + FOREVER
        process = run(scheduler, "--", sys.executable, "-c", script)
        assert next_line(process) == "up\n"
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            assert next_line(process) == "INT\n"
        process.terminate()
        assert finish(process)[0] == 128 + signal.SIGTERM

    def occupy(self, scheduler, connect) -> None:
        """Somebody else has the turn on the first card."""
        scheduler.ask("set", mode="serial")
        other = connect(scheduler)
        other.register(scheduler.gpus[0])
        other.take_turn()

    def test_what_the_command_leaves_running_is_ended(self, scheduler, tmp_path):
        # GIVEN a command that leaves a grandchild behind, which holds a pipe open
        script = "sh -c 'trap \"\" TERM; echo left; while :; do sleep 1000; done' & read x < /dev/null; sleep 0"
        process = run(scheduler, "--", "sh", "-c", f"{script}; exit 0")
        # WHEN the command ends THEN all end, and the pipe with them
        code, out, _ = finish(process)
        assert code == 0
        assert out in ("left\n", "")


class TestSpawn:
    """A scheduler that is started for the user, on a simulated node."""

    @pytest.fixture
    def node(self):
        from nvshare.gpu import sim

        node = sim.up("2xT4", name=f"spawn-{os.getpid()}")
        yield node
        sim.down(node.name)

    def environment(self, node) -> dict[str, str]:
        return {**os.environ, **node.env()}

    def test_is_started_once_and_then_found(self, node):
        assert ensure_scheduler(node.socket, self.environment(node), card_memory=GIB, mode="serial") is True
        assert ensure_scheduler(node.socket, self.environment(node)) is False
        _, out, _ = finish(command("nvshare.cli.ctl", "--sim", node.name, "status", "--json"))
        status = json.loads(out)
        assert (len(status["gpus"]), status["gpus"][0]["capacity"], status["settings"]["mode"]) == (2, GIB, "serial")

    def test_settings_it_cannot_use_are_told_to_whoever_starts_it(self, tmp_path):
        # GIVEN a user without a node, and a size that is none
        variables = {"XDG_RUNTIME_DIR": str(tmp_path), "NVSHARE_HOST_MEMORY": "abc"}
        # WHEN a run starts a scheduler, and another run finds it
        told = [finish(command("nvshare", "run", "--sim", "T4", "--", "true", **variables))[2] for _ in range(2)]
        finish(command("nvshare", "sim", "down", "T4", **variables))
        # THEN the first one is told
        assert [text.count("NVSHARE_HOST_MEMORY='abc' cannot be used") for text in told] == [1, 0]

    def test_of_many_who_start_at_once_one_does(self, node):
        script = (
            "import os, sys, pathlib\n"
            "from nvshare.client.spawn import ensure_scheduler\n"
            "print(ensure_scheduler(pathlib.Path(sys.argv[1]), os.environ))\n"
        )
        starters = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(node.socket)],
                env=environment(**self.environment(node)),
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        answers = sorted(starter.communicate(timeout=60)[0].strip() for starter in starters)
        assert answers == ["False", "False", "False", "True"]

    def test_ends_itself_and_leaves_no_socket(self, node):
        ensure_scheduler(node.socket, self.environment(node), idle_exit=0.1)
        while node.socket.exists():
            pass
        assert not is_running(node.socket)
        assert "ending" in (node.socket.parent / LOG_NAME).read_text()

    def test_without_a_gpu_the_reason_is_told(self, tmp_path):
        variables = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ""}
        with pytest.raises(SchedulerNotStarted, match=r"--sim 2xT4"):
            ensure_scheduler(tmp_path / "s.sock", variables)

    def test_errors_have_one_base(self):
        for kind in (NoScheduler, RequestRefused, OtherVersion, SchedulerNotStarted):
            assert issubclass(kind, SchedulerError)
