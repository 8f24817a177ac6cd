"""What gateways are told: which replicas answer for a service, and who may ask."""

from msgspec.structs import replace

from holdfast.api.fronts import CHANGES_KEPT, Fronts, view
from holdfast.core.agent.desired_set import desired_set
from holdfast.model import event as ev
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.program import Program
from holdfast.model.verdict import Level
from holdfast.model.workload import Serves, Service, Workload
from holdfast.wire.identity import gateway_secret
from tests.build import needs
from tests.play import Play


def fleet(service: Service, *nodes: str) -> Play:
    """With replicas that have their ports, but are not ready yet."""
    play = Play(max=4, can_launch=False)
    for name in nodes:
        play.join(name, zone=name, address=f"{name}.example")
    play.apply(Workload("llm", service, needs(cpu=5)))
    play.settle()
    for port, replica in enumerate(list(play.world.replicas.values()), 9_000):
        play.tell(ev.ReplicaStarted(at=play.now, replica=replica.id, node=replica.node, port=port))
    return play


def urls(play: Play) -> dict[str, str]:
    (service,) = view(play.world).services
    return {upstream.id: upstream.url for upstream in service.upstreams}


def leaving(play: Play) -> tuple[str, ...] | None:
    (service,) = view(play.world).services
    return service.leaving


def test_a_replica_is_told_when_it_is_ready_and_no_longer_than_that() -> None:
    play = fleet(Service(2, serves=Serves()), "a", "b")
    assert urls(play) == {}
    play.ready("llm/0.1", "llm/1.1")
    node = play.replica("llm/0.1").node
    assert urls(play)["llm/0.1"] == f"http://{node}.example:9000"
    assert len(urls(play)) == 2
    play.end("llm/0.1", ev.Ended.FAILED)
    assert list(urls(play)) == ["llm/1.1"]


def test_standbys_are_not_told() -> None:
    play = fleet(Service(1, standby=1, serves=Serves()), "a", "b")
    play.ready(*play.world.replicas)
    assert list(urls(play)) == ["llm/0.1"]


def test_what_is_on_a_node_that_is_drained_is_left_out_when_there_are_others() -> None:
    play = fleet(Service(2, serves=Serves()), "a", "b")
    play.ready("llm/0.1", "llm/1.1")
    leaving, staying = play.replica("llm/0.1").node, play.replica("llm/1.1").node
    for node, left in ((leaving, ["llm/1.1"]), (staying, ["llm/0.1", "llm/1.1"])):
        deadline = play.now + 60_000
        play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.DRAIN, node=node, deadline=deadline))
        play.turn()
        assert list(urls(play)) == left


def test_who_leaves_is_told_apart_from_who_is_lost() -> None:
    """What was asked of the one will be answered; what was asked of the other will not."""
    play = fleet(Service(3, standby=1, serves=Serves()), "a", "b", "c", "d")
    assert leaving(play) == ()
    play.ready(*play.world.replicas)
    assert leaving(play) == ()
    play.tell(
        ev.OperatorOrdered(
            at=play.now,
            order=ev.Order.DRAIN,
            node=play.replica("llm/0.1").node,
            deadline=play.now + 60_000,
        )
    )
    assert leaving(play) == ("llm/0.1",)
    play.judge(play.replica("llm/1.1").node, Level.DEAD)
    assert list(urls(play)) == ["llm/2.1"]
    assert leaving(play) == ("llm/0.1",)
    play.judge(play.replica("llm/0.1").node, Level.DEAD)
    assert leaving(play) == ()


def test_a_service_answers_for_its_name_or_for_what_it_says() -> None:
    (service,) = view(fleet(Service(1, serves=Serves()), "a").world).services
    assert (service.name, service.models, service.concurrent) == ("llm", ("llm",), 0)
    assert not service.names_models, "what is sent to it may be no question to a model"
    serves = Serves(("m-*",), ("h",), ("/p",), "/health", 8)
    (service,) = view(fleet(Service(1, serves=serves), "a").world).services
    assert (service.models, service.hosts, service.prefixes) == (("m-*",), ("h",), ("/p",))
    assert service.names_models
    assert (service.probe, service.concurrent) == ("/health", 8)


def test_a_service_that_says_nothing_is_not_told() -> None:
    assert view(fleet(Service(1), "a").world).services == ()


def test_keys_are_told_with_their_hashes_and_those_held_back_with_their_share() -> None:
    play = Play()
    play.tell(
        ev.KeyPut(at=1, key=Key("k1", b"hash")),
        ev.KeyPut(at=1, key=Key("k2", b"hush", grade=Grade.CLAMP)),
        ev.LimitsSet(at=1, scope="team:a", limits=Limits(concurrent=1)),
    )
    found = view(play.world)
    assert [(key.id, key.hash) for key in found.keys.values()] == [("k1", b"hash"), ("k2", b"hush")]
    assert found.clamps == {"k2": 0.1}
    assert found.limits == {"team:a": Limits(concurrent=1)}


def test_a_change_is_made_once_for_all_who_ask_and_only_of_what_is_other() -> None:
    play, fronts = Play(), Fronts()
    assert fronts.look(play.world, 1) == 0
    nothing = fronts.whole()
    play.tell(ev.KeyPut(at=1, key=Key("k1", b"hash")))
    assert fronts.look(play.world, 1) == 0, "the journal has not grown"
    assert fronts.look(play.world, 2) == 1
    play.tell(ev.KeyPut(at=1, key=Key("k2", b"hush")))
    assert fronts.look(play.world, 3) == 2
    first, second = fronts.since(0) or [b"", b""]
    assert b"k1" in first
    assert b"k1" not in second
    assert fronts.since(1) == [second]
    assert fronts.since(2) == []
    assert fronts.whole() is fronts.whole() != nothing
    assert fronts.look(play.world, 4) == 2, "something else was written down"
    assert fronts.look(Play().world, 4) == 3
    assert b'"gone":["k1","k2"]' in (fronts.since(2) or [b""])[0]


def test_whoever_is_too_far_behind_is_told_all_of_it() -> None:
    play, fronts = Play(), Fronts()
    for n in range(CHANGES_KEPT + 1):
        play.tell(ev.KeyPut(at=1, key=Key("k", b"%d" % n)))
        fronts.look(play.world, n)
    assert fronts.since(0) is None
    assert len(fronts.since(1) or ()) == CHANGES_KEPT


def test_gateways_and_replicas_are_told_the_same_secret_and_only_where_gateways_come() -> None:
    play = fleet(Service(2, serves=Serves()), "a", "b")
    play.apply(Workload("plain", Service(1), needs(cpu=1), program=Program(("true",), {"A": "b"})))
    workload = play.world.workloads["llm"]
    play.apply(replace(workload, program=Program(("true",), {"A": "b"})))
    play.settle()
    for replica in list(play.world.replicas.values()):
        play.tell(ev.ReplicaStarted(at=play.now, replica=replica.id, node=replica.node, port=9_000))
        play.ready(replica.id)

    def secret(name: str) -> str:
        return gateway_secret(b"launch", name)

    (service,) = view(play.world, gateway_secret=secret).services
    told = {upstream.credential for upstream in service.upstreams}
    briefs = [desired_set(play.world, name, play.now, secret).briefs for name in play.world.nodes]
    found = {name: brief.program.env for each in briefs for name, brief in each.items()}
    assert found["llm"] == {"A": "b", "HOLDFAST_GATEWAY_SECRET": secret("llm")}
    assert found["plain"] == {"A": "b"}
    assert told == {secret("llm")}
    assert secret("llm") != secret("plain") != gateway_secret(b"another fleet", "plain")
