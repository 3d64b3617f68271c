"""What operators set, over restarts of the scheduler: the lines it is kept in, and who they are believed of."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshare import procfs
from nvshare.core.events import LimitsChanged
from nvshare.core.limits import FIELDS
from nvshare.core.settings import Cores, Mode, Priority, Settings, SwitchTime
from nvshare.daemon import identity, kept, keptfile, operators
from nvshare.daemon.control import ControlError
from nvshare.daemon.kept import KeptGroup, KeptSetting, Owner, Quotas
from nvshare.wire import messages as wire
from tests.unit.daemon.daemon_node import GIB, GPUS, OTHER, UID, Node, pod, told

ME = os.getpid()

pids = st.integers(1, 4_194_304)
cores = st.integers(1, 100).flatmap(lambda cap: st.builds(Cores, st.integers(0, cap), st.just(cap)))
quotas = st.builds(
    Quotas, st.none() | st.integers(1, 1 << 56), st.none() | cores, st.none() | st.sampled_from(Priority)
)
hexadecimal = "0123456789abcdef-"
owners = st.builds(Owner, pids, st.integers(1, 1 << 60), st.text(hexadecimal, max_size=40))
uids = st.text(hexadecimal, min_size=1, max_size=64)
leases = st.integers(0, (1 << 64) - 1).map("{:016x}".format)
groups = st.one_of(
    st.builds(lambda uid, said: KeptGroup(f"pod:{uid}", None, said), uids, quotas),
    st.builds(lambda owner, said: KeptGroup(f"run:{owner.pid}", owner, said), owners, quotas),
    st.builds(lambda owner, said: KeptGroup(f"process:{owner.pid}", owner, said), owners, quotas),
    st.builds(lambda lease, owner, said: KeptGroup(f"lease:{lease}", owner, said), leases, owners, quotas),
)
modes = st.sampled_from(("auto", "serial", "concurrent"))
quanta = st.none() | st.floats(1, 86400)
settings = st.one_of(
    st.builds(KeptSetting, st.just("mode"), modes, modes),
    st.builds(KeptSetting, st.just("anti_thrash"), st.booleans(), st.booleans()),
    st.builds(KeptSetting, st.just("quantum"), quanta, quanta),
)
nonsense = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none())
names = st.sampled_from(["setting", "value", "instead_of", "group", "process", "mem", "cores", "priority"])
changes_ = st.builds(
    LimitsChanged,
    st.just(0.0),
    st.just("g"),
    st.none() | st.integers(1, 9),
    st.none() | cores,
    st.none() | st.sampled_from(Priority),
    st.frozensets(st.sampled_from(sorted(FIELDS))),
)
entries = st.lists(groups | settings, max_size=8)


def packed(kept_entries) -> bytes:
    return "".join(keptfile.pack("kept", list(map(kept.line, kept_entries)))).encode()


def unpacked(data: bytes):
    return [kept.read(said) for said in keptfile.unpack(data, "kept")]


class TestLines:
    @given(entries)
    def test_say_what_they_were_made_of(self, some):
        assert unpacked(packed(some)) == some

    @given(entries, st.data())
    def test_that_were_cut_anywhere_are_not_believed(self, some, data):
        whole = packed(some)
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        with pytest.raises((keptfile.Unusable, ValueError)):
            unpacked(cut)

    @given(st.binary(max_size=200) | st.lists(st.lists(st.text())).map(lambda said: json.dumps(said).encode()))
    def test_of_anything_else_are_refused_and_nothing_worse(self, data):
        with pytest.raises((keptfile.Unusable, ValueError)):
            unpacked(data)

    @given(st.dictionaries(names, nonsense))
    def test_with_fields_of_any_kind_are_an_entry_or_refused(self, said):
        with contextlib.suppress(ValueError, ControlError):
            kept.line(kept.read(said))

    @pytest.mark.parametrize(
        "said",
        [
            {"group": "process:7", "process": {"pid": 8, "started": 1, "boot": ""}},
            {"group": "process:7", "process": None},
            {"group": f"pod:{UID}", "process": {"pid": 7, "started": 1, "boot": ""}},
            {"group": "process:unknown-0000000000000001", "process": {"pid": 7, "started": 1, "boot": ""}},
            {"group": "run:07", "process": {"pid": 7, "started": 1, "boot": ""}},
            {"group": "run:7", "process": {"pid": 7, "started": True, "boot": ""}},
            {"group": "run:7", "process": {"pid": 7, "started": 1, "boot": ""}, "mem": -1},
            {"group": "run:7", "process": {"pid": 7, "started": 1, "boot": ""}, "more": 1},
        ],
    )
    def test_that_nobody_would_have_written_are_refused(self, said):
        with pytest.raises((ValueError, ControlError)):
            kept.read({"mem": None, "cores": None, "priority": None, **said})

    def test_of_a_later_version_are_refused_by_its_number(self):
        data = packed([]).replace(b'"version": 1', b'"version": 2')
        with pytest.raises(keptfile.Unusable, match="version 2, this scheduler knows 1"):
            unpacked(data)


@given(quotas, st.lists(changes_))
def test_quotas_after_changes_are_what_one_change_to_them_brings(start, changes):
    for change in changes:
        start = start.after(change)
    again = start.change(0.0, "g")
    assert Quotas(1, Cores(1, 2), Priority.HIGH).after(again) == start == Quotas().after(again)


class Machine(Node):
    """A node whose operator and whose tasks are this process, unless another is named; it may be started anew."""

    def __init__(self, in_memory, monkeypatch, file, **options) -> None:
        super().__init__(in_memory, monkeypatch, kept_file=file, **options)
        self.core = self._node.core

    def ask(self, **request):
        """An operator's request, and its answer when that has been written down."""
        operator = self.connect()
        operator.tell(**request)
        return self.answer(operator)

    def answer(self, operator):
        self.loop.advance(0.0)
        while not operator.said():
            self.loop.run_next_from_thread()
            self.loop.advance(0.0)
        return operator.answer()

    def group(self, name):
        return self.groups()[name]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "scheduler.kept"


@pytest.fixture
def start(in_memory, monkeypatch, file):
    """The next scheduler; the one before ends as if killed: nothing is written at its end."""
    return lambda **options: Machine(in_memory, monkeypatch, file, **options)


def test_settings_are_in_force_after_a_restart_and_named_in_the_log(start, caplog):
    answer = start().ask(op="set", mode="serial", quantum=20)
    assert answer["unkept"] is None
    with caplog.at_level("INFO", "nvshare"):
        again = start()
    shown = again.core.snapshot(0).settings
    assert (shown.mode, shown.quantum_s, shown.operator) == ("serial", 20, ("mode", "quantum"))
    said = [line for line in caplog.messages if line.startswith("Kept from before the restart")]
    assert [line.partition(" (")[0].partition(": ")[2] for line in said] == ["mode serial", "quantum 20 s"]


def test_settings_that_are_as_started_again_are_kept_no_longer(start, file):
    machine = start()
    machine.ask(op="set", mode="serial")
    machine.ask(op="set", mode="auto")
    assert len(file.read_text().splitlines()) == 1


def test_file_is_for_its_owner_only_and_nothing_else_is_left(start, file):
    start().ask(op="set", mode="serial")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_scheduler_that_is_started_with_something_else_now_uses_that(start, caplog):
    # GIVEN one that was started with auto and set to serial
    start().ask(op="set", mode="serial", quantum=20)
    # WHEN the next is started with concurrent THEN that is newer; the quantum is as it was set
    with caplog.at_level("INFO", "nvshare"):
        again = start(settings=Settings(mode=Mode.CONCURRENT))
    shown = again.core.snapshot(0).settings
    assert (shown.mode, shown.quantum_s, shown.operator) == ("concurrent", 20, ("quantum",))
    forgot = "Forgot mode serial, which was set with nvsharectl: the scheduler is started with mode concurrent now"
    assert forgot in caplog.messages


def test_quantum_that_is_too_long_now_is_forgotten(start, caplog):
    start().ask(op="set", quantum=200)
    again = start(settings=Settings(max_runtime=100.0))
    assert again.core.settings.switch_time is SwitchTime.AUTO
    assert any(line.startswith("Forgot quantum 200 s") and "1 to 100 s" in line for line in caplog.messages)


def test_what_the_core_itself_takes_back_is_kept_no_longer(start, file):
    machine = start()
    machine.ask(op="set", anti_thrash=False)
    assert "anti_thrash" in file.read_text()
    # WHEN a task comes whose memory is not on its card, which needs turns
    entry = wire.GpuEntry(GPUS[0], allocated=2 * GIB, resident=GIB)
    machine.connect(ME).send(wire.Register((entry,), flags=wire.FLAG_CAN_SWAP))
    machine.loop.advance(operators.WRITTEN_WITHIN)
    machine.loop.advance(0.0)
    for _ in range(2):  # the file, and a look at the cards
        machine.loop.run_next_from_thread()
    assert "anti_thrash" not in file.read_text()


def test_quotas_of_a_process_come_back_with_it(start, caplog):
    machine = start()
    machine.task(ME, None)
    machine.ask(op="limit", target={"pid": ME}, mem=GIB, cores=30, priority="high")
    again = start()
    with caplog.at_level("INFO", "nvshare"):
        task = again.task(ME, None)
    assert task.said(wire.UpdateLimit)[-1].mem_limit == GIB
    assert task.said(wire.UpdateCoreLimit)[-1].percent == 30
    group = again.group(f"process:{ME}")
    assert (group.mem_limit_from, group.core_limit_from, group.priority_from) == ("operator",) * 3
    kept_line = f"Kept from before the restart for process:{ME}: memory 1024 MB, cores 30%, priority high"
    assert sum(line.startswith(kept_line) for line in caplog.messages) == 1


def test_floors_come_back_and_wait_for_room(start, caplog):
    machine = start()
    machine.task(ME, None)
    machine.ask(op="limit", target={"pid": ME}, cores="30..60")
    # WHEN somebody else has the card after the restart
    again = start()
    again.task(8, None, core_limit=100, flags=80 << wire.FLOOR_SHIFT)
    with caplog.at_level("INFO", "nvshare"):
        again.task(ME, None)
    group = again.group(f"process:{ME}")
    assert (group.core_floor, group.core_limit, list(group.core_floor_in_force.values())) == (30, 60, [0])
    assert any("cores 30..60%" in line for line in caplog.messages)
    assert any(f"is not guaranteed to process {ME} yet" in line for line in caplog.messages)


def test_a_line_of_a_release_without_floors_is_taken_and_one_with_them_is_read_again():
    said = {"group": f"pod:{UID}", "process": None, "mem": None, "cores": 30, "priority": None}
    assert kept.read(said) == KeptGroup(f"pod:{UID}", None, Quotas(cores=Cores(0, 30)))
    assert json.loads(kept.line(kept.read(said)))["cores"] == 30
    floor = KeptGroup(f"pod:{UID}", None, Quotas(cores=Cores(20, 30)))
    assert kept.read({**said, "cores": "20..30"}) == kept.read(json.loads(kept.line(floor))) == floor


def test_process_that_registers_anew_under_the_same_scheduler_has_its_quota_too(start):
    machine = start()
    task = machine.task(ME, None)
    machine.ask(op="limit", target={"pid": ME}, cores=30)
    task.connection.connection_lost(None)
    assert machine.task(ME, None).said(wire.UpdateCoreLimit)[-1].percent == 30


def test_another_process_with_the_same_number_inherits_nothing(start, monkeypatch, file):
    machine = start()
    machine.task(ME, None)
    machine.ask(op="limit", target={"pid": ME}, mem=GIB)
    # GIVEN the machine gave the number to another process meanwhile
    started = procfs.start_time(ME)
    monkeypatch.setattr(procfs, "start_time", lambda pid: started + 1)
    again = start()
    assert again.task(ME, None).said(wire.UpdateLimit)[-1].mem_limit == 0


def test_number_that_is_given_away_while_the_scheduler_runs_is_noticed_when_it_is_used(start, monkeypatch, file):
    start_it = start()
    start_it.task(ME, None)
    start_it.ask(op="limit", target={"pid": ME}, mem=GIB)
    again = start()
    started = procfs.start_time(ME)
    monkeypatch.setattr(procfs, "start_time", lambda pid: started + 1)
    assert again.task(ME, None).said(wire.UpdateLimit)[-1].mem_limit == 0
    assert again.ask(op="reset", scope="everything")["groups"] == []


def test_start_times_of_before_a_reboot_say_nothing(start, monkeypatch):
    machine = start()
    machine.task(ME, None)
    machine.ask(op="limit", target={"pid": ME}, mem=GIB)
    monkeypatch.setattr(procfs, "boot", lambda: "00000000-0000-0000-0000-000000000000")
    assert start().task(ME, None).said(wire.UpdateLimit)[-1].mem_limit == 0


def test_entry_of_a_process_that_has_ended_is_dropped_at_the_start(start, file, caplog):
    # GIVEN a quota of a process that lives no longer
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine = start()
    machine.task(child.pid, None)
    machine._patch.setattr(identity, "while_alive", lambda _, peer, look: look(peer.pid))
    machine.ask(op="limit", target={"pid": child.pid}, mem=GIB)
    assert f"process:{child.pid}" in file.read_text()
    child.communicate(b"")
    # WHEN a scheduler starts THEN it says so
    with caplog.at_level("INFO", "nvshare"):
        again = start()
    assert f"Forgot what was set for process:{child.pid} (memory 1024 MB): its process is gone" in caplog.messages
    again.loop.advance(0.0)
    again.loop.run_next_from_thread()
    assert "process" not in file.read_text()


def test_quotas_of_a_pod_are_there_before_its_processes(start, tmp_path):
    known = tmp_path / "scheduler.pods"
    machine = start(pods_file=known)
    told(machine, machine.connect(), pods=[pod(cores=50), pod(OTHER, "other")], whole=True)
    machine.ask(op="limit", target={"pod": "default/trainer"}, mem=GIB, cores=30)
    machine.close()
    again = start(pods_file=known)
    group = again.group(f"pod:{UID}")
    # the annotation goes before what an operator set
    assert (group.mem_limit, group.mem_limit_from) == (GIB, "operator")
    assert (group.core_limit, group.core_limit_from) == (50, "annotation")
    assert again.group(f"pod:{OTHER}").mem_limit is None
    told(again, again.connect(), pods=[pod(cores=None)])
    assert again.group(f"pod:{UID}").core_limit == 30


def test_quota_of_a_pod_that_no_watch_knows_comes_back_with_a_process_of_it(start):
    machine = start()
    machine.task(7, UID, pod_name="trainer", pod_namespace="default")
    machine.ask(op="limit", target={"pod": "default/trainer"}, mem=GIB)
    again = start()
    # WHEN somebody in another pod claims the name THEN that helps nothing: the kernel says which pod it is
    stranger = again.task(8, OTHER, pod_name="trainer", pod_namespace="default")
    assert stranger.said(wire.UpdateLimit)[-1].mem_limit == 0
    assert again.task(7, UID).said(wire.UpdateLimit)[-1].mem_limit == GIB


def test_pod_that_stays_away_is_forgotten_after_a_while(start, file):
    machine = start()
    machine.task(7, UID, pod_name="trainer", pod_namespace="default")
    machine.ask(op="limit", target={"pod": "default/trainer"}, mem=GIB)
    again = start()
    again.loop.advance(operators.AWAITED - 5)
    assert again.ask(op="set", mode="serial")["ok"]
    assert UID in file.read_text()
    again.loop.advance(10)
    again.ask(op="set", mode="auto")
    assert UID not in file.read_text()


def test_quota_of_a_run_holds_for_its_processes_before_the_run_itself_is_back(start, monkeypatch):
    # GIVEN a run of this process, with two tasks below it
    below = (4_000_001, 4_000_002)
    monkeypatch.setattr(identity, "ancestry", lambda pid: iter([pid, ME, 1] if pid in below else [pid, 1]))
    machine = start()
    machine.connect(ME).tell(op="run", label="trial")
    machine.task(below[0], None)
    machine.ask(op="limit", target={"run": "trial"}, mem=GIB)
    # WHEN they are faster than the run THEN they are in it already, and stay connected when the run is back
    again = start()
    tasks = [again.task(pid, None) for pid in below]
    assert [task.said(wire.UpdateLimit)[-1].mem_limit for task in tasks] == [GIB, GIB]
    again.connect(ME).tell(op="run", label="trial", mem=4 * GIB)
    assert not any(task.connection.closed for task in tasks)
    assert (again.group(f"run:{ME}").mem_limit, len(again.group(f"run:{ME}").clients)) == (GIB, 2)


def test_quota_of_a_lease_is_its_holders_whoever_claims_its_id(start):
    machine = start()
    holder = machine.connect(ME)
    holder.tell(op="lease", mem=4 * GIB)
    lease, gpus = holder.answer()["lease"], holder.answer()["gpus"]
    machine.ask(op="limit", target={"lease": lease}, mem=GIB, cores=20)
    claim = {"op": "lease", "mem": 4 * GIB, "again": {"id": lease, "gpus": gpus}}
    # WHEN another process says that it is its own THEN it is not
    again = start()
    stranger = again.connect(os.getppid())
    stranger.tell(**claim)
    assert again.group(f"lease:{lease}").mem_limit == 4 * GIB
    stranger.connection.connection_lost(None)
    # AND its holder has it all the same
    again.connect(ME).tell(**claim)
    assert again.group(f"lease:{lease}").mem_limit == GIB


def test_quotas_of_many_groups_are_bounded_and_those_beyond_told(start, monkeypatch):
    monkeypatch.setattr(operators, "MAX_KEPT", 1)
    machine = start()
    for pid, uid in ((7, UID), (8, OTHER)):
        machine.task(pid, uid, pod_name=f"pod-{pid}", pod_namespace="default")
    assert machine.ask(op="limit", target={"pod": "default/pod-7"}, cores=30)["unkept"] is None
    assert "and no more" in machine.ask(op="limit", target={"pod": "default/pod-8"}, cores=30)["unkept"]
    assert machine.group(f"pod:{OTHER}").core_limit == 30
    # AND a reset knows of both
    assert len(machine.ask(op="reset", scope="everything")["groups"]) == 2
    assert machine.group(f"pod:{OTHER}").core_limit == 100


class TestReset:
    @pytest.fixture
    def machine(self, start):
        machine = start()
        machine.task(ME, None, mem_limit=2 * GIB)
        machine.task(7, UID, pod_name="trainer", pod_namespace="default")
        machine.ask(op="set", mode="serial")
        machine.ask(op="limit", target={"pid": ME}, mem=GIB, cores=30, priority="high")
        machine.ask(op="limit", target={"pod": "default/trainer"}, cores=40)
        return machine

    def test_of_a_group_takes_back_all_that_was_set_for_it(self, machine, start, file):
        (shown,) = machine.ask(op="reset", target={"pid": ME})["groups"]
        assert (shown["mem_limit"], shown["mem_limit_from"]) == (2 * GIB, "environment")
        assert (shown["core_limit"], shown["priority"]) == (100, "normal")
        assert str(ME) not in file.read_text()
        assert UID in file.read_text()
        again = start()
        assert again.task(ME, None).said(wire.UpdateCoreLimit)[-1].percent == 100
        assert again.core.settings.mode is Mode.SERIAL

    def test_of_the_settings_leaves_quotas(self, machine, file):
        answer = machine.ask(op="reset", scope="settings")
        assert (answer["settings"]["mode"], answer["settings"]["operator"], answer["groups"]) == ("auto", [], [])
        assert len(file.read_text().splitlines()) == 3

    def test_of_everything_leaves_nothing(self, machine, file):
        answer = machine.ask(op="reset", scope="everything")
        assert [group["id"] for group in answer["groups"]] == [f"process:{ME}", f"pod:{UID}"]
        assert machine.core.settings.mode is Mode.AUTO
        assert machine.group(f"pod:{UID}").core_limit == 100
        assert len(file.read_text().splitlines()) == 1

    def test_of_many_is_done_a_few_at_a_time(self, machine):
        for pid in range(100, 120):
            machine.task(pid, f"{pid:032x}", pod_name=f"pod-{pid}", pod_namespace="default")
            machine.ask(op="limit", target={"pod": f"default/pod-{pid}"}, cores=30)
        operator = machine.connect()
        operator.tell(op="reset", scope="everything")
        left = sum(group.core_limit_from == "operator" for group in machine.groups().values())
        assert left == 22 - operators.PER_STEP
        assert len(machine.answer(operator)["groups"]) == 22
        assert not any(group.core_limit_from == "operator" for group in machine.groups().values())

    def test_of_everything_forgets_who_is_not_there(self, machine, start, file):
        again = start()
        assert {group["id"] for group in again.ask(op="reset", scope="everything")["groups"]} == {
            f"process:{ME}",
            f"pod:{UID}",
        }
        assert len(file.read_text().splitlines()) == 1

    @pytest.mark.parametrize(
        ("request_", "says"),
        [
            ({}, "reset needs a target, or a scope"),
            ({"scope": "settings", "target": {"pid": ME}}, "reset needs a target, or a scope"),
            ({"scope": "all"}, "settings or everything"),
            ({"target": {"pid": 1}}, "there is no pid 1"),
        ],
    )
    def test_that_makes_no_sense_changes_nothing(self, machine, request_, says):
        assert says in machine.ask(op="reset", **request_)["error"]
        assert machine.core.settings.mode is Mode.SERIAL


class TestFile:
    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (lambda file: file.write_text("rubbish"), "does not begin"),
            (lambda file: file.write_bytes(b"\xff\xfe"), "can't decode"),
            (lambda file: file.write_bytes(file.read_bytes()[:-5]), "not complete"),
            (lambda file: file.write_text("\n".join(file.read_text().split("\n")[:-2]) + "\n"), "not complete"),
            (lambda file: file.write_text(file.read_text().replace('"version": 1', '"version": 7')), "version 7"),
            (lambda file: file.write_text(file.read_text().replace('"serial"', '"cereal"')), "is not a mode"),
            (lambda file: file.chmod(0o666), "others may write"),
            (lambda file: (file.rename(file.with_suffix(".x")), file.symlink_to(file.with_suffix(".x"))), "symbolic"),
            (lambda file: (file.unlink(), os.mkfifo(file)), "not a plain file"),
            (lambda file: (file.unlink(), file.mkdir()), "not a plain file"),
            (lambda file: file.write_text("[" * 200_000), "does not begin"),
            (lambda file: file.write_bytes(b"x" * (keptfile.MAX_BYTES + 1)), "larger than"),
        ],
    )
    def test_that_is_not_as_we_left_it_is_one_line_and_nothing_more(self, start, file, caplog, spoil, says):
        start().ask(op="set", mode="serial")
        spoil(file)
        caplog.clear()
        assert start().core.settings.mode is Mode.AUTO
        (line,) = caplog.messages
        assert line.startswith(f"{file} cannot be used, what was set with nvsharectl is lost: ")
        assert says in line

    def test_of_another_user_is_not_believed(self, start, file, monkeypatch, caplog):
        start().ask(op="set", mode="serial")
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert start().core.settings.mode is Mode.AUTO
        assert "belongs to another user" in caplog.text

    def test_that_cannot_be_written_is_one_line_and_the_operator_is_told(self, start, file, monkeypatch, caplog):
        machine = start()
        monkeypatch.setattr(keptfile, "_replace", lambda *_: "No space left on device")
        for mode in ("serial", "concurrent"):
            assert machine.ask(op="set", mode=mode)["unkept"] == "No space left on device"
        assert machine.core.settings.mode is Mode.CONCURRENT
        assert sum("No space left on device" in line for line in caplog.messages) == 1

    def test_on_a_full_disk_leaves_what_was_there(self, start, file, monkeypatch):
        machine = start()
        machine.ask(op="set", mode="serial")
        before = file.read_bytes()
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(os, "open", lambda *_: os.dup(full.fileno()))
            assert keptfile._replace(file, ["x" * 100_000]) == "No space left on device"
        assert file.read_bytes() == before

    def test_disk_that_hangs_keeps_the_operator_for_a_second_and_nobody_else(self, start, monkeypatch):
        machine = start()
        monkeypatch.setattr(machine._node.daemon.operators._file, "_start", lambda path: None)
        operator = machine.connect()
        operator.tell(op="set", mode="serial")
        assert machine.core.settings.mode is Mode.SERIAL
        assert not operator.said()
        machine.loop.advance(operators.WRITTEN_WITHIN)
        assert operator.answer()["unkept"] == "the disk takes its time"
