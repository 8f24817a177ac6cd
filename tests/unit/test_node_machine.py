"""The agent's own judgement: what it runs, what it refuses, and what it stops by itself."""

from msgspec.structs import replace

from holdfast.core.agent.machine import (
    DesiredSet,
    Do,
    Instruction,
    NodeMachine,
    Peer,
    Report,
    Stopping,
    Wanted,
)
from holdfast.model.event import Ended
from holdfast.model.replica import Role
from holdfast.model.units import SECOND

LEASE = 30 * SECOND
NOW = 1_000_000

WEB = Wanted("web/0.1", "web/0", 1, exclusive=False)
JOB = Wanted("job/0.1", "job/0", 1, exclusive=True)
HEIR = Wanted("job/0.2", "job/0", 2, exclusive=True)


class Numbers:
    """Sets as one leader sends them, each with the next number."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, *wanted: Wanted, stopping: tuple[Stopping, ...] = (), leader: int = 1) -> DesiredSet:
        self.last += 1
        return DesiredSet(leader, self.last, wanted, stopping)


def leased(now: int = NOW) -> NodeMachine:
    machine = NodeMachine(LEASE)
    machine.renewed(now)
    return machine


def did(instructions: list[Instruction]) -> list[tuple[Do, str]]:
    return [(instruction.do, instruction.wanted.replica) for instruction in instructions]


def running(*wanted: Wanted) -> tuple[NodeMachine, Numbers]:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(*wanted), NOW)
    for each in wanted:
        machine.became_ready(each.replica)
    return machine, numbers


# the set


def test_what_is_wanted_and_does_not_run_is_started() -> None:
    machine = leased()
    assert did(machine.wants(Numbers()(WEB, JOB), NOW)) == [(Do.START, "web/0.1"), (Do.START, "job/0.1")]
    assert machine.running() == ("web/0.1", "job/0.1")


def test_what_runs_and_is_not_wanted_is_stopped_within_its_grace() -> None:
    machine, numbers = running(WEB, JOB)
    stops = machine.wants(numbers(JOB, stopping=(Stopping("web/0.1", 5 * SECOND),)), NOW)
    assert stops == [Instruction(Do.STOP, WEB, NOW + 5 * SECOND)]


def test_what_nobody_knows_any_more_is_stopped_at_once() -> None:
    machine, numbers = running(WEB)
    assert machine.wants(numbers(), NOW) == [Instruction(Do.STOP, WEB, NOW)]


def test_the_same_set_again_changes_nothing() -> None:
    machine, numbers = running(WEB, JOB)
    machine.wants(numbers(JOB), NOW)
    again = DesiredSet(1, numbers.last, (JOB,))
    assert machine.wants(again, NOW + 1) == []


def test_an_older_set_is_refused() -> None:
    machine, numbers = running(WEB)
    old = DesiredSet(1, numbers.last - 1)
    assert machine.wants(old, NOW) == []
    assert machine.running() == ("web/0.1",)


def test_a_set_of_an_older_leader_is_refused_however_high_its_number() -> None:
    machine = leased()
    machine.wants(DesiredSet(2, 1, (WEB,)), NOW)
    assert machine.wants(DesiredSet(1, 999), NOW) == []


def test_a_new_leader_may_count_from_the_beginning() -> None:
    machine = leased()
    machine.wants(DesiredSet(1, 999, (WEB,)), NOW)
    assert did(machine.wants(DesiredSet(2, 1), NOW)) == [(Do.STOP, "web/0.1")]


def test_a_promoted_standby_is_told_and_not_restarted() -> None:
    warm = Wanted("web/s0.1", "web/s0", 1, exclusive=False, role=Role.STANDBY)
    machine, numbers = running(warm)
    promoted = replace(warm, slot="web/0", epoch=2, role=Role.ACTIVE)
    assert machine.wants(numbers(promoted), NOW) == [Instruction(Do.TELL, promoted)]
    assert machine.processes["web/s0.1"].wanted == promoted


def test_a_new_epoch_starts_only_after_the_old_one_is_dead() -> None:
    machine, numbers = running(JOB)
    assert did(machine.wants(numbers(HEIR), NOW)) == [(Do.STOP, "job/0.1")]
    started = machine.ended("job/0.1", Ended.STOPPED, 0, "", NOW + SECOND)
    assert did(started) == [(Do.START, "job/0.2")]


def test_what_is_not_exclusive_serves_on_beside_its_successor() -> None:
    machine, numbers = running(WEB)
    heir = replace(WEB, replica="web/0.2", epoch=2)
    assert did(machine.wants(numbers(WEB, heir), NOW)) == [(Do.START, "web/0.2")]
    machine.became_ready("web/0.2")
    assert did(machine.wants(numbers(heir), NOW)) == [(Do.STOP, "web/0.1")]


def test_of_two_epochs_of_a_job_in_one_set_only_one_runs() -> None:
    machine = leased()
    assert did(machine.wants(Numbers()(JOB, HEIR), NOW)) == [(Do.START, "job/0.1")]


def test_what_waited_for_a_lease_over_a_new_link_waits_for_the_next_set() -> None:
    """It may have been started elsewhere meanwhile."""
    machine, numbers = NodeMachine(30 * SECOND), Numbers()
    assert did(machine.wants(numbers(JOB, WEB), NOW)) == [(Do.START, "web/0.1")], "no lease, no job"
    machine.linked(NOW)
    machine.renewed(NOW)
    assert machine.start_what_can(NOW) == []
    assert did(machine.wants(numbers(JOB, WEB), NOW)) == [(Do.START, "job/0.1")]


# ends


def test_what_ended_is_not_started_again_though_the_set_still_names_it() -> None:
    machine, numbers = running(WEB)
    assert machine.ended("web/0.1", Ended.FAILED, 0, "exit code 1", NOW) == []
    assert machine.wants(numbers(WEB), NOW) == []
    assert not machine.processes


def test_what_ended_is_forgotten_when_the_set_no_longer_names_it() -> None:
    machine, numbers = running(WEB)
    machine.ended("web/0.1", Ended.FAILED, 0, "", NOW)
    machine.wants(numbers(), NOW)
    assert machine.finished == {}


def test_an_end_is_reported_with_how_why_and_progress() -> None:
    machine, _ = running(JOB)
    machine.ended("job/0.1", Ended.FAILED, 7_000, "exit code 3", NOW)
    assert machine.reports[-1] == Report("job/0.1", "ended", Ended.FAILED, 7_000, "exit code 3")


def test_a_program_that_fails_while_it_is_stopped_was_stopped() -> None:
    machine, numbers = running(WEB)
    machine.wants(numbers(), NOW)
    machine.ended("web/0.1", Ended.FAILED, 0, "exit code 143", NOW)
    assert machine.reports[-1].how is Ended.STOPPED


def test_a_job_that_finishes_while_it_is_stopped_is_done() -> None:
    machine, numbers = running(JOB)
    machine.wants(numbers(), NOW)
    machine.ended("job/0.1", Ended.DONE, 0, "", NOW)
    assert machine.reports[-1].how is Ended.DONE


def test_the_end_of_a_stranger_is_nothing() -> None:
    machine, _ = running(WEB)
    before = list(machine.reports)
    assert machine.ended("who/0.1", Ended.DONE, 0, "", NOW) == []
    assert machine.reports == before


def test_a_stop_of_what_does_not_run_is_answered_once() -> None:
    machine, numbers = leased(), Numbers()
    for _ in range(3):
        machine.wants(numbers(stopping=(Stopping("web/0.1", 0),)), NOW)
    assert [(report.replica, report.how) for report in machine.reports] == [("web/0.1", Ended.STOPPED)]


# gangs

MEMBER = Wanted("gang/0.1", "gang/0", 1, exclusive=True, gang=1, grace_ms=5 * SECOND)


def met(*ports: int) -> tuple[Peer, ...]:
    return tuple(Peer(f"gang/{rank}.1", "10.0.0.1", port) for rank, port in enumerate(ports))


def member() -> tuple[NodeMachine, Numbers]:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(MEMBER), NOW)
    machine.given_port("gang/0.1", 20_001)
    machine.wants(numbers(replace(MEMBER, peers=met(20_001, 20_002))), NOW)
    machine.became_ready("gang/0.1")
    machine.acknowledged(len(machine.reports))
    return machine, numbers


def test_a_member_reports_its_port_and_starts_when_all_ports_are_known() -> None:
    machine, numbers = leased(), Numbers()
    assert did(machine.wants(numbers(MEMBER), NOW)) == [(Do.ALLOT, "gang/0.1")]
    machine.given_port("gang/0.1", 20_001)
    assert machine.reports == [Report("gang/0.1", "started", port=20_001)]
    assert machine.wants(numbers(MEMBER), NOW) == []
    whole = replace(MEMBER, peers=met(20_001, 20_002))
    assert machine.wants(numbers(whole), NOW) == [Instruction(Do.START, whole)]
    assert machine.wants(numbers(whole), NOW) == []


def test_a_member_does_not_start_without_a_lease_though_all_ports_are_known() -> None:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(MEMBER), NOW)
    machine.given_port("gang/0.1", 20_001)
    late = NOW + LEASE
    assert machine.wants(numbers(replace(MEMBER, peers=met(20_001))), late) == []
    machine.renewed(late)
    assert did(machine.start_what_can(late)) == [(Do.START, "gang/0.1")]


def test_a_member_that_waits_is_not_wanted_any_more() -> None:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(MEMBER), NOW)
    assert machine.wants(numbers(stopping=(Stopping("gang/0.1", SECOND),)), NOW) == []
    assert machine.processes == {}
    assert [(report.what, report.how) for report in machine.reports][1:] == [("ended", Ended.STOPPED)]


def test_the_loss_of_a_peer_is_no_news_for_those_that_run() -> None:
    machine, numbers = member()
    assert machine.wants(numbers(MEMBER), NOW) == []
    assert machine.processes["gang/0.1"].wanted.peers == met(20_001, 20_002)


def test_a_member_that_asked_for_a_signal_is_notified_when_all_ports_are_known() -> None:
    machine, numbers = member()
    assert machine.wants(numbers(replace(MEMBER, gang=2)), NOW) == []
    told = replace(MEMBER, gang=2, peers=met(20_001, 20_003))
    assert machine.wants(numbers(told), NOW) == [Instruction(Do.TELL, told)]


def test_a_new_incarnation_starts_after_the_old_one_has_ended_with_another_port() -> None:
    machine, numbers = member()
    again = replace(MEMBER, gang=2, epoch=2, incarnation=1)
    (stop,) = machine.wants(numbers(again), NOW)
    assert (stop.do, stop.deadline) == (Do.STOP, NOW + 5 * SECOND)
    assert machine.wants(numbers(again), NOW) == [], "it is stopping already"
    assert did(machine.ended("gang/0.1", Ended.STOPPED, 7_000, "", NOW + SECOND)) == [(Do.ALLOT, "gang/0.1")]
    machine.given_port("gang/0.1", 20_005)
    saved, started = machine.reports
    assert (saved.what, saved.progress_ms) == ("saved", 7_000)
    assert started == Report("gang/0.1", "started", port=20_005, incarnation=1)
    assert "gang/0.1" in machine.running()
    whole = replace(again, peers=met(20_005, 20_006))
    assert machine.wants(numbers(whole), NOW) == [Instruction(Do.START, whole)]
    machine.became_ready("gang/0.1")
    assert machine.reports[-1].incarnation == 1


def test_a_member_that_waits_for_an_older_generation_waits_for_the_newer_one() -> None:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(MEMBER), NOW)
    machine.given_port("gang/0.1", 20_001)
    again = replace(MEMBER, gang=2, epoch=2, incarnation=1)
    assert did(machine.wants(numbers(again), NOW)) == [(Do.ALLOT, "gang/0.1")]
    machine.given_port("gang/0.1", 20_001)
    assert [report.incarnation for report in machine.reports] == [0, 1]


def test_what_ends_well_while_it_is_to_start_anew_is_done() -> None:
    machine, numbers = member()
    machine.wants(numbers(replace(MEMBER, gang=2, incarnation=1)), NOW)
    assert machine.ended("gang/0.1", Ended.DONE, 0, "", NOW) == []
    assert machine.reports[-1].how is Ended.DONE


def test_what_is_not_wanted_any_more_while_it_is_to_start_anew_is_stopped() -> None:
    machine, numbers = member()
    machine.wants(numbers(replace(MEMBER, gang=2, incarnation=1)), NOW)
    assert machine.wants(numbers(stopping=(Stopping("gang/0.1", SECOND),)), NOW) == []
    assert machine.ended("gang/0.1", Ended.STOPPED, 0, "", NOW) == []
    assert machine.reports[-1].how is Ended.STOPPED


def test_an_agent_that_restarts_forgets_those_that_only_had_a_port() -> None:
    machine, numbers = leased(), Numbers()
    machine.wants(numbers(MEMBER, WEB), NOW)
    assert machine.restarted().running() == ("web/0.1",)


# the lease


def test_an_exclusive_replica_does_not_start_without_a_lease() -> None:
    machine = NodeMachine(LEASE)
    assert did(machine.wants(Numbers()(WEB, JOB), NOW)) == [(Do.START, "web/0.1")]
    machine.renewed(NOW)
    assert did(machine.start_what_can(NOW)) == [(Do.START, "job/0.1")]


def test_the_lease_counts_from_the_sending_of_the_beat() -> None:
    machine = leased()
    machine.renewed(NOW + 5 * SECOND)
    assert machine.lease_until == NOW + 5 * SECOND + LEASE


def test_a_late_acknowledgement_never_shortens_the_lease() -> None:
    machine = leased()
    machine.renewed(NOW - 10 * SECOND)
    assert machine.lease_until == NOW + LEASE


def test_exclusive_replicas_are_killed_exactly_when_the_lease_is_over() -> None:
    machine, _ = running(WEB, JOB)
    assert machine.lease_ran_out(NOW + LEASE - 1) == []
    assert machine.lease_ran_out(NOW + LEASE) == [Instruction(Do.KILL, JOB, NOW + LEASE)]
    assert machine.lease_ran_out(NOW + LEASE + 1) == [], "once"


def test_a_standby_of_an_exclusive_workload_is_fenced_too() -> None:
    machine, _ = running(Wanted("job/s0.1", "job/s0", 1, exclusive=True, role=Role.STANDBY))
    assert did(machine.lease_ran_out(NOW + LEASE)) == [(Do.KILL, "job/s0.1")]


def test_what_the_lease_killed_was_fenced_whatever_its_exit_looks_like() -> None:
    machine, _ = running(JOB)
    machine.lease_ran_out(NOW + LEASE)
    machine.ended("job/0.1", Ended.FAILED, 0, "signal 9", NOW + LEASE)
    assert machine.reports[-1].how is Ended.FENCED


def test_a_fenced_replica_does_not_come_back_with_the_lease() -> None:
    """Its seat may have been given away: only a new epoch may run."""
    machine, numbers = running(JOB)
    machine.lease_ran_out(NOW + LEASE)
    machine.ended("job/0.1", Ended.FAILED, 0, "", NOW + LEASE)
    machine.renewed(NOW + LEASE)
    assert machine.wants(numbers(JOB), NOW + LEASE) == []
    assert did(machine.wants(numbers(HEIR), NOW + LEASE)) == [(Do.START, "job/0.2")]


def test_a_stopping_replica_is_killed_when_the_lease_ends_before_its_grace() -> None:
    machine, numbers = running(JOB)
    machine.wants(numbers(stopping=(Stopping("job/0.1", 2 * LEASE),)), NOW)
    assert did(machine.lease_ran_out(NOW + LEASE)) == [(Do.KILL, "job/0.1")]


def test_services_run_on_when_nobody_answers() -> None:
    machine, _ = running(WEB)
    assert machine.lease_ran_out(NOW + 1_000 * LEASE) == []
    assert machine.running() == ("web/0.1",)


# restarts


def test_an_agent_that_restarts_adopts_what_runs() -> None:
    machine, numbers = running(WEB, JOB)
    heir = machine.restarted()
    assert heir.running() == ("web/0.1", "job/0.1")
    assert heir.wants(numbers(WEB, JOB), NOW + SECOND) == []


def test_an_agent_that_restarts_stops_nothing_before_it_has_a_set() -> None:
    machine, _ = running(WEB, JOB)
    heir = machine.restarted()
    assert heir.start_what_can(NOW) == []
    assert heir.lease_ran_out(NOW + LEASE - 1) == []


def test_the_lease_goes_on_over_a_restart_and_is_no_longer_for_it() -> None:
    machine, _ = running(JOB)
    heir = machine.restarted()
    assert did(heir.lease_ran_out(NOW + LEASE)) == [(Do.KILL, "job/0.1")]


def test_an_agent_that_restarts_takes_no_set_older_than_the_last_one_it_obeyed() -> None:
    machine, _ = running(WEB)
    heir = machine.restarted()
    assert heir.wants(DesiredSet(heir.leader, heir.generation - 1), NOW) == []
    assert heir.running() == ("web/0.1",)
    assert did(heir.wants(DesiredSet(heir.leader + 1, 0), NOW)) == [(Do.STOP, "web/0.1")]


def test_what_ended_before_the_restart_is_not_started_again() -> None:
    machine, numbers = running(JOB)
    machine.ended("job/0.1", Ended.DONE, 0, "", NOW)
    heir = machine.restarted()
    assert heir.wants(numbers(JOB), NOW) == []
    assert heir.reports == machine.reports


def test_what_was_being_stopped_is_stopped_by_the_new_agent_too() -> None:
    machine, numbers = running(WEB)
    machine.wants(numbers(), NOW)
    heir = machine.restarted()
    heir.ended("web/0.1", Ended.FAILED, 0, "", NOW)
    assert heir.reports[-1].how is Ended.STOPPED


def test_the_old_agent_and_the_new_share_nothing() -> None:
    machine, _ = running(WEB)
    heir = machine.restarted()
    heir.ended("web/0.1", Ended.DONE, 0, "", NOW)
    assert machine.running() == ("web/0.1",)


# reports


def test_a_replica_reports_its_start_its_readiness_and_its_end() -> None:
    machine, _ = running(WEB)
    machine.became_ready("web/0.1")
    machine.ended("web/0.1", Ended.DONE, 0, "", NOW)
    assert [report.what for report in machine.reports] == ["started", "ready", "ended"]


def test_reports_are_kept_until_they_are_acknowledged() -> None:
    machine, _ = running(WEB, JOB)
    assert len(machine.reports) == 4
    machine.acknowledged(3)
    assert [report.what for report in machine.reports] == ["ready"]
    assert machine.first_report == 3


def test_an_acknowledgement_that_comes_late_or_twice_drops_nothing_new() -> None:
    machine, _ = running(WEB, JOB)
    machine.acknowledged(3)
    for before in (3, 1, 0):
        machine.acknowledged(before)
    assert (machine.first_report, len(machine.reports)) == (3, 1)


def test_the_numbers_of_reports_go_on_over_a_restart() -> None:
    machine, _ = running(WEB, JOB)
    machine.acknowledged(3)
    heir = machine.restarted()
    assert (heir.first_report, heir.reports) == (3, machine.reports)
    heir.acknowledged(4)
    assert (heir.first_report, heir.reports) == (4, [])


def test_a_hello_names_what_has_ended_until_its_end_is_known() -> None:
    """Left out, it would count as vanished, and a job that was done would be run again."""
    machine, _ = running(WEB, JOB)
    machine.ended("job/0.1", Ended.DONE, 0, "", NOW)
    assert machine.running() == ("web/0.1", "job/0.1")
    machine.acknowledged(machine.first_report + len(machine.reports))
    assert machine.running() == ("web/0.1",)
