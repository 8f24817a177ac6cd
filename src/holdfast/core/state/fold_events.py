"""What the world is after something happened.

Each event has one small function, here or in the module of what it is about: `fold_nodes`, `fold_replicas`,
`fold_workloads`, `fold_pools` (pools and offers), `fold_gateway` (keys and limits), `fold_outcomes` (how
programs ended, findings). This module is the table of which is which.
"""

from typing import assert_never

from msgspec.structs import replace

from holdfast.core.state import (
    accounts,
    fold_gateway,
    fold_nodes,
    fold_outcomes,
    fold_pools,
    fold_replicas,
    fold_workloads,
    index,
)
from holdfast.model import event as ev
from holdfast.model.demand import Demand
from holdfast.model.node import NodeState
from holdfast.model.verdict import Link, Said, Word
from holdfast.model.world import Leader, World


def observe(world: World, event: ev.Event) -> None:
    match event:
        case ev.NodeJoined():
            fold_nodes.joined(world, event)
        case ev.NodeSaidGoodbye(node=name):
            fold_nodes.clue(world, name, said=Said.GOODBYE)
        case ev.SpotNoticed():
            fold_nodes.spot_noticed(world, event)
        case ev.LinkClosed(node=name):
            fold_nodes.clue(world, name, link=Link.CLOSED)
        case ev.PeerAnswered(node=name, peer=peer, answer=answer):
            if (node := world.nodes.get(name)) and peer in node.clues.asked:
                fold_nodes.clue(world, name, answers={**node.clues.answers, peer: answer})
        case ev.ProviderAnswered(node=name, word=word, at=at):
            if (node := world.nodes.get(name)) and node.clues.word is not Word.UNASKED:
                fold_nodes.clue(world, name, word=word, word_at=at)  # else it is about a life that is over
        case ev.NodeJudged():
            fold_nodes.judged(world, event)
        case ev.NodeLaunched():
            fold_pools.launched(world, event)
        case ev.NodeTerminated():
            fold_nodes.terminated(world, event)
        case ev.NodeReset(node=name, at=at):
            if (node := world.nodes.get(name)) and node.state is NodeState.RESETTING:
                index.put_node(world, replace(node, state=NodeState.BOOTING, since=at))
                fold_outcomes.clear_findings(world, name)  # what is still wrong will be found again
        case ev.PoolListed():
            fold_pools.pool_listed(world, event)
        case ev.OffersListed():
            fold_pools.listed(world, event)
        case ev.ActionFailed():
            fold_pools.action_failed(world, event)
        case ev.ReplicaStarted() | ev.ReplicaReady() | ev.ReplicaEnded() | ev.CheckpointSaved():
            fold_replicas.observe(world, event)
        case ev.DemandJudged():
            _demand_judged(world, event)
        case ev.FindingRaised(finding=finding):
            if finding.node in world.nodes:
                fold_outcomes.raise_finding(world, finding)
        case ev.FindingCleared(node=name, name=finding_name):
            if world.findings.pop((name, finding_name), None):
                world.agenda.note("node", name)
        case ev.KeyPut() | ev.KeyDeleted() | ev.LimitsSet() | ev.BudgetDrawn():
            fold_gateway.observe(world, event)
        case ev.ProjectApplied(project=project):
            fold_workloads.limited(world, project)
        case ev.TokenMade() | ev.TokenRevoked():
            pass  # the registry has them
        case _:
            _configured(world, event)


def _configured(
    world: World,
    event: ev.WorkloadApplied
    | ev.WorkloadDeleted
    | ev.WorkloadRetried
    | ev.WorkloadRestarted
    | ev.PoolApplied
    | ev.PoolDeleted
    | ev.PolicyApplied
    | ev.LeaderChanged
    | ev.JournalBehind
    | ev.OperatorOrdered,
) -> None:
    match event:
        case ev.JournalBehind():
            fold_workloads.behind(world, event)
        case ev.WorkloadApplied(workload=workload):
            fold_workloads.applied(world, workload, event.at)
        case ev.WorkloadRetried(workload=name, at=at):
            fold_workloads.retried(world, name, at)
        case ev.WorkloadRestarted(workload=name, at=at):
            fold_workloads.restarted(world, name, at)
        case ev.WorkloadDeleted(workload=name):
            if name in world.workloads:
                fold_workloads.deleted(world, name)
                fold_outcomes.dropped(world, name)
                fold_replicas.wake_dependants(world, name)
        case ev.PoolApplied():
            fold_pools.applied(world, event)
        case ev.PoolDeleted():
            fold_pools.deleted(world, event)
        case ev.PolicyApplied(policy=policy, at=at):
            before = (at, world.policy.leases.lease_ms)
            world.lease_before = max(world.lease_before, before, key=sum)  # the one that ends last
            world.policy = policy
            index.look_at_all(world)
            for name in world.pools:
                accounts.watch(world, name, at)
        case ev.LeaderChanged(generation=generation, anew=anew, at=at):
            fold_gateway.led(world, generation)
            if event.stepped_ms:
                fold_pools.stepped(world, event)
            if not world.leader.generation:
                world.agenda.at(at + world.policy.balance.every_ms, "fleet", "balance")  # and on from there
            world.leader = Leader(event.leader, event.generation, at, event.era, event.offset)
            if anew:
                world.agenda.forget()
                index.look_at_all(world)
            world.agenda.at(at + world.policy.detection.grace_ms, "fleet", "grace")
        case ev.OperatorOrdered():
            fold_nodes.ordered(world, event)
        case _:
            assert_never(event)


def _demand_judged(world: World, event: ev.DemandJudged) -> None:
    workload = world.workloads.get(event.workload)
    if workload is None or event.workload not in world.scaled:
        return
    old = world.demands.get(event.workload)
    same = old is not None and old.wanted == event.wanted
    kept = old.memory if old is not None else b""
    world.demands[event.workload] = Demand(
        workload=event.workload,
        wanted=event.wanted,
        since=old.since if old is not None and same else event.at,
        at=event.at,
        why=event.why,
        said=event.said,
        expected=event.expected,
        instead=event.instead,
        memory=kept if event.memory is None else event.memory,
    )
    if not same:
        world.agenda.note("workload", event.workload)
