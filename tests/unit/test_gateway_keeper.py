"""What a keeper does with keys that are clamped: also when it, or a worker, starts anew."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.core.gateway.key_audit.audit import Seen
from holdfast.core.gateway.quota.broker import Ask, counter
from holdfast.core.gateway.quota.lent import Part
from holdfast.core.gateway.routing.updates import Load, Went
from holdfast.gateway import messages, metrics, settings
from holdfast.gateway.admin import Admin
from holdfast.gateway.counts import Counted, ModelCounted, ReplicaCounted, ServiceCounted
from holdfast.gateway.keeper import Keeper
from holdfast.model.gateway import Grade, Limits, scope_of_key
from holdfast.wire.keys import KeyWanted
from tests.gateways import key

LIMITS = Limits(tokens_per_min=1_000)


class Worker:
    """The keeper's end of a link."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.on_message: Any = None

    def send(self, message: object) -> None:
        self.told.append(message)

    def abort(self) -> None:
        raise AssertionError("it is one of ours")


def keeper(state: Path, *, shadow: bool = False, workers: int = 1) -> Keeper:
    keys = (key(limits=LIMITS),)
    return Keeper(settings.Gateway(state=state, keys=keys, shadow=shadow, workers=workers))


def lent(ours: Keeper, id: str, tokens: float) -> bool:
    """Does the broker lend so much of this key's quota?"""
    name = counter("tokens", scope_of_key(id))
    ask = Ask(f"holder of {tokens}", 1, "", True, {name: Part(0.0, tokens)})
    return ours.broker.ask(ask, ours.now()).grants[name].amount >= tokens


def clamped(ours: Keeper) -> dict[str, float]:
    """What a worker that starts now is told."""
    worker, seat = Worker(), ours.seats[0]
    ours._by_pid[7] = seat
    ours.greet(worker, messages.Hello(7))  # type: ignore[arg-type]
    return {each.key: each.share for each in worker.told if isinstance(each, messages.Clamped)}


def test_a_clamp_holds_in_workers_that_start_later_and_over_a_restart(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    made, _ = first.ring.create(KeyWanted("ci", limits=LIMITS), 1)
    first.put_key(made)
    assert clamped(first) == {}
    first.watch._act(made, Grade.CLAMP, "nobody reads it")
    assert clamped(first) == {"ci": 0.1}
    again = keeper(tmp_path)
    assert clamped(again) == {"ci": 0.1}
    assert (lent(again, "ci", 500), lent(again, "ci", 50)) == (False, True)
    watched = keeper(tmp_path, shadow=True)
    assert clamped(watched) == {}, "who watches only touches nothing"
    assert lent(watched, "ci", 500)
    first.watch.restore("ci")
    assert clamped(first) == {}


def test_a_key_that_is_deleted_leaves_no_clamp(tmp_path: Path) -> None:
    ours = keeper(tmp_path)
    made, _ = ours.ring.create(KeyWanted("ci", limits=LIMITS), 1)
    ours.watch._act(made, Grade.CLAMP, "nobody reads it")
    ours.ring.delete("ci")
    ours.drop_key("ci")
    assert clamped(ours) == {}


@asynccontextmanager
async def admin(ours: Keeper) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Admin(ours, "token").app())
    sent = {"authorization": "Bearer token"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=sent) as client:
        yield client


async def test_a_clamped_key_of_the_configuration_can_be_restored(tmp_path: Path) -> None:
    ours = keeper(tmp_path)
    ours.watch._act(ours.ring.get("test"), Grade.CLAMP, "nobody reads it")
    assert clamped(ours) == {"test": 0.1}
    async with admin(ours) as client:
        found = await client.post("/v1/keys/test/restore", json={})
        assert found.status_code == 200
        assert found.json()["grade"] == "fine"
        assert (await client.post("/v1/keys/nobody/restore", json={})).status_code == 404
    assert clamped(ours) == {}


async def test_a_key_made_anew_under_an_old_name_has_nothing_of_its_namesake(tmp_path: Path) -> None:
    """A worker that started later held it to the old one's limit for a model, of which nobody lent; after a
    restart it had spent what the old one had."""
    ours = keeper(tmp_path)
    total, scope = Limits(tokens_total=1_000), "key:ci/model:toy"
    async with admin(ours) as client:
        await client.post("/v1/keys", json={"id": "ci", "limits": {"tokens_total": 1_000}})
        await client.put(f"/v1/limits/{scope}", json={"tokens_total": 900})
        parts = {counter("total", each): Part(0.0, 800.0) for each in ("key:ci", scope)}
        ours.budgets.begin()
        ours._lend(Worker(), Ask("h", 1, "", True, parts), ours.now())  # type: ignore[arg-type]
        assert keeper(tmp_path).budgets.drawn == {"key:ci": 800, scope: 800}
        await client.delete("/v1/keys/ci")
        await client.post("/v1/keys", json={"id": "ci", "limits": {"tokens_total": 1_000}})
        assert (await client.get("/v1/limits")).json() == {}
    again = keeper(tmp_path)
    assert again.budgets.crashed, "it has not ended"
    assert again.budgets.drawn == {}
    assert again.ring.get("ci").limits == total


def test_what_is_heard_of_a_key_after_it_was_deleted_is_not_remembered(tmp_path: Path) -> None:
    """Nobody forgot it any more, and the next key of that name was judged by it."""
    ours = keeper(tmp_path)
    seen = Seen(1, 200, 10, 5, 5, 0, False, False, 1, 1, 1)
    ours.watch.saw([("test", 1.0, seen), ("deleted", 1.0, seen)])
    assert set(ours.watch.watch.habits) == {"test"}


def test_a_gateway_that_ends_and_starts_anew_brings_nobody_a_second_burst(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    assert lent(first, "test", 900)
    first.budgets.end(first.broker.drawn(), first.broker.levels(first.now()), first.wall())
    assert not lent(keeper(tmp_path), "test", 900)
    assert lent(keeper(tmp_path), "test", 100)
    first.budgets.end({}, first.broker.levels(first.now()), first.wall() - 60_000)
    assert lent(keeper(tmp_path), "test", 900), "a minute has brought it back"
    first.budgets.end({}, first.broker.levels(first.now()), first.wall() + 60_000)
    assert not lent(keeper(tmp_path), "test", 900), "a clock that was set back brings nothing"


def counted(requests: int, in_flight: int = 0) -> Counted:
    buckets = [requests, 0, 1]
    model = ModelCounted("toy", {200: requests}, 10, 5, buckets, 0.5, buckets, 0.25)
    service = ServiceCounted("toy", requests, 1, 0, 0, in_flight, 2, 30, 1.5, models=(model,))
    return Counted(3, {401: 2}, (service,))


def metric(ours: Keeper, name: str) -> float:
    page, _ = metrics.page(ours)
    lines = [line for line in page.decode().splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def test_counters_do_not_fall_when_a_worker_ends(tmp_path: Path) -> None:
    """The sum over workers fell by what the ended one had counted: whoever takes its rate sees a leap."""
    ours = keeper(tmp_path)
    [seat] = ours.seats
    for requests in (7, 5):
        ours.heard(seat, messages.CountedNow(counted(requests, in_flight=4)))
        ours.left(seat)
    assert metric(ours, "holdfast_gateway_requests_total") == 12
    ours.heard(seat, messages.CountedNow(counted(2, in_flight=1)))
    assert metric(ours, "holdfast_gateway_requests_total") == 14
    assert metric(ours, "holdfast_gateway_refused_requests_total") == 6
    assert metric(ours, "holdfast_gateway_prompt_tokens_total") == 30
    assert metric(ours, "holdfast_gateway_first_token_seconds_count") == 14 + 3
    assert metric(ours, "holdfast_gateway_in_flight") == 1, "nothing of the ended is in flight"
    assert metric(ours, "holdfast_gateway_connections") == 3
    assert metric(ours, "holdfast_gateway_queue_tokens") == 30


def test_what_a_worker_said_before_it_ended_is_not_heard_after_that(tmp_path: Path) -> None:
    """Its siblings counted what it had in flight for ever; its last question for quota failed."""
    ours = keeper(tmp_path, workers=2)
    links = [Worker(), Worker()]
    for pid, link in enumerate(links):
        ours._by_pid[pid] = ours.seats[pid]
        ours.greet(link, messages.Hello(pid))  # type: ignore[arg-type]
    dead, other = links
    shared = messages.Shared(ours.seats[0].worker, {"s": messages.Sharing([], {"r": Load(1.0, 1.0, 1)})})
    dead.on_message(shared)
    assert other.told[-1] == shared
    ours.left(ours.seats[0])
    dead.on_message(shared)
    dead.on_message(messages.Asked(Ask("w0", 1, "", True, {})))
    dead.on_message(messages.CountedNow(Counted(1)))
    assert other.told[-1] == messages.SiblingGone(ours.seats[0].worker)
    assert ours.seats[0].counted is None


def test_a_worker_that_starts_knows_what_its_siblings_have_in_flight(tmp_path: Path) -> None:
    """They tell what is new: long streams that had begun before it came were not known to it."""
    ours = keeper(tmp_path, workers=3)

    def comes(place: int) -> Worker:
        link = Worker()
        ours._by_pid[place] = ours.seats[place]
        ours.greet(link, messages.Hello(place))  # type: ignore[arg-type]
        return link

    def told(link: Worker) -> list[messages.Shared]:
        return [each for each in link.told if isinstance(each, messages.Shared)]

    one = comes(0)
    name, load = ours.seats[0].worker, {"r": Load(1.0, 1.0, 1)}
    went = Went((1,), 0, 1, 0, "r")
    one.on_message(messages.Shared(name, {"s": messages.Sharing([went], load)}))
    one.on_message(messages.Shared(name, {"other": messages.Sharing([], {})}))
    assert told(comes(1)) == [
        messages.Shared(name, {"s": messages.Sharing([], load), "other": messages.Sharing([], {})})
    ]
    ours.left(ours.seats[0])
    assert told(comes(2)) == []


def test_it_is_told_when_every_replica_of_a_service_fails_and_when_one_is_back(tmp_path: Path) -> None:
    """A gateway said nothing while all who asked waited."""
    ours = keeper(tmp_path)
    [seat] = ours.seats

    def states(*found: str) -> messages.CountedNow:
        replicas = tuple(ReplicaCounted(f"r{at}", 0, 0.0, state, False) for at, state in enumerate(found))
        [service] = counted(1).services
        return messages.CountedNow(Counted(0, {}, (replace(service, replicas=replicas),)))

    with capture_logs() as lines:
        for found in (("ready", "ejected"), ("ejected", "ejected"), ("ejected", "ejected"), ("ready",), ()):
            ours.heard(seat, states(*found))
    assert [(line["log_level"], line["event"], line.get("replica")) for line in lines] == [
        ("warning", "a replica fails, and is left out", "r1"),
        ("warning", "a replica fails, and is left out", "r0"),
        ("warning", "every replica of a service fails: requests wait", None),
        ("info", "a replica is asked again", "r0"),
        ("info", "a service answers again", None),
    ]
    assert {line["service"] for line in lines} == {"toy"}


def test_a_service_that_failed_and_has_no_replicas_any_more_does_not_answer_again(tmp_path: Path) -> None:
    ours = keeper(tmp_path)
    [seat] = ours.seats
    [service] = counted(1).services
    with capture_logs() as lines:
        for found in (("ejected",), ()):
            replicas = tuple(ReplicaCounted("r", 0, 0.0, state, False) for state in found)
            ours.heard(seat, messages.CountedNow(Counted(0, {}, (replace(service, replicas=replicas),))))
    assert lines[-1]["event"] == "a service that failed has no replicas any more"
