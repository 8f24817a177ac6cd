"""How the answers of a control plane look."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.api import shapes
from holdfast.cli.client.http import read
from holdfast.cli.commands.capacity import told as capacity_page
from holdfast.cli.render import status_page, theme
from holdfast.cli.render.rows import Rows, facts
from holdfast.cli.render.tables import fleet as tables
from holdfast.cli.render.tables import market
from holdfast.model.units import DAY
from tests.cli_rig import NOW, Holdfast, fleet, gives, line, listening, node, replica, workload


def test_the_page_says_what_is_wrong_first() -> None:
    seats = [
        shapes.Seat(f"web/{n}", "active", "open", "", "", "", state, 0, None, "")
        for n, state in enumerate(("ready", "starting", "pending"))
    ]
    told = theme.plain(
        status_page.page(
            fleet(
                [node("std-a"), node("std-b", "dead"), node("std-c", state="launching")],
                [workload("api", ready=1), workload(wanted=3, ready=1, why="no room", seats=seats)],
                brakes=[shapes.Brake("fleet", NOW - 40_000, "2 of 3 in doubt")],
            ),
            [line(1)],
            bars=False,
        )
    )
    assert "1 of 2 nodes alive, 1 coming" in told
    assert "1 of 2 workloads as wanted" in told
    assert "BRAKE  fleet for 40s: 2 of 3 in doubt  (holdfast release-brake)" in told
    assert told.index("web ") < told.index("api ")
    assert told.index("std-b") < told.index("std-c") < told.index("std-a")
    assert "✕ dead" in told
    assert "silent, and its provider says it stopped" in told
    assert "●◐○" in told
    assert "no room" in told
    assert "3/4" in told
    assert "happened" in told


def test_a_node_that_is_alive_and_out_of_service_is_counted_at_the_head() -> None:
    out = [
        node("std-b", state="quarantined", findings=["fails every replica"]),
        node("std-c", state="draining"),
    ]
    told = theme.plain(status_page.page(fleet([node("std-a"), *out], []), [], bars=False))
    assert "3 of 3 nodes alive, 1 quarantined, 1 draining" in told
    assert "fails every replica" in told


def test_what_is_paused_is_shown_as_paused_and_not_as_lost() -> None:
    states = ("lost", "pending", "stopping")
    seats = [
        shapes.Seat(f"web/{n}", "active", "open", "", "", "", state, 0, None, "asked to stop")
        for n, state in enumerate(states)
    ]
    paused = workload(wanted=3, paused=True, seats=seats)
    assert "‖‖◐" in theme.plain(tables.workloads([paused]))
    told = theme.plain(tables.seat_rows(paused))
    assert (told.count("‖ paused"), told.count("asked to stop")) == (2, 1)
    assert "✕○◐" in theme.plain(tables.workloads([workload(wanted=3, seats=seats)]))


def test_a_dead_node_looks_neither_ready_nor_busy() -> None:
    dead = node("std-a", "dead", replicas=["web/0.1", "web/1.1"])
    (row,) = theme.plain(tables.nodes([dead], bars=False)).splitlines()[1:]
    assert "ready" not in row
    assert "2 lost" in row
    assert "lost, was ready" in theme.plain(tables.node_facts(dead))
    assert "0 lost" not in theme.plain(tables.nodes([node("std-a", "dead", replicas=[])], bars=False))


def test_names_with_numbers_are_sorted_as_people_count(holdfast: Holdfast) -> None:
    found = [node("local-10"), node("local-9"), node("a"), node("local-2")]
    assert sorted(["a10b", "a9b", "9", "a", "b1", ""], key=theme.natural) == [
        "",
        "9",
        "a",
        "a9b",
        "a10b",
        "b1",
    ]
    told = theme.plain(status_page.page(fleet(found, []), [], bars=False))
    assert told.index("local-2") < told.index("local-9") < told.index("local-10")
    with listening(lambda method, path: gives(found)) as server:
        rows = holdfast("nodes", "--url", server.url).out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["a", "local-2", "local-9", "local-10"]


def test_a_long_line_goes_on_below_its_own_text() -> None:
    assert theme.hanging("12:00  web  ", "one two three four five six", 34) == (
        "12:00  web  one two three four\n            five six"
    )
    assert theme.hanging("", "short", 80) == "short"
    assert theme.hanging("a long beginning ", "and-a-word-that-cannot-be-cut", 20).count("\n") == 0


@pytest.mark.parametrize(
    ("fields", "well"),
    [
        ({"ready": 1}, True),
        ({}, False),
        ({"paused": True}, True),
        ({"ready": 1, "failed": 1}, False),
        ({"kind": "job", "done": 1}, True),
        ({"kind": "sweep", "wanted": 9, "ready": 2, "done": 3}, True),
        ({"kind": "sweep", "wanted": 9, "done": 3}, False),
        ({"kind": "sweep", "wanted": 9, "done": 9}, True),
    ],
)
def test_what_counts_as_wanted(fields: dict[str, Any], well: bool) -> None:
    assert tables.as_wanted(workload(**fields)) is well


def test_an_empty_fleet_says_what_to_do() -> None:
    told = theme.plain(status_page.page(fleet([], [], leader=""), [], bars=False))
    assert "nobody leads" in told
    assert "no workloads: holdfast apply" in told
    assert "no nodes" in told


def test_a_large_fleet_is_cut_to_what_fits_and_says_so() -> None:
    nodes = [node(f"n-{number}") for number in range(500)] + [node("sick", "suspect")]
    told = theme.plain(status_page.page(fleet(nodes, [workload(ready=1)]), [], bars=False, rows=30))
    assert len(told.splitlines()) <= 30
    assert "sick" in told
    assert "nodes more" in told


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_width_breaks_the_page(width: int) -> None:
    page = status_page.page(
        fleet([node("a-long-name-of-a-node", "dead")], [workload(why="a reason " * 10)]), [], bars=True
    )
    lines = theme.plain(page, width).splitlines()
    assert max(len(text) for text in lines) <= width
    assert "a reason" in "\n".join(lines)


def test_a_remark_that_does_not_fit_beside_its_row_stands_below_it() -> None:
    rows = Rows("A", "B")
    rows.add("x", "y", remark="why " * 5)
    assert theme.plain(rows, 80) == "A  B\nx  y  why why why why why"
    assert theme.plain(rows, 20) == "A  B\nx  y\n    why why why why\n    why"


def test_columns_that_can_be_spared_make_room() -> None:
    rows = Rows("LONG", "SPARE", "LAST", spare=("SPARE",))
    rows.add("a" * 10, "b" * 10, "c" * 10)
    assert "SPARE" in theme.plain(rows, 40)
    assert theme.plain(rows, 30) == "LONG        LAST\naaaaaaaaaa  cccccccccc"


def test_facts_leave_out_what_is_empty() -> None:
    assert theme.plain(facts(("a", "1"), ("b", ""), ("long", "2"))) == "a     1\nlong  2"


def test_a_bar_shows_what_is_used_and_what_is_promised() -> None:
    assert [theme.bar(used, promised).plain for used, promised in ((0, 0), (0.5, 1), (2, 0), (-1, 0.5))] == [
        "░░░░░░",
        "███▓▓▓",
        "██████",
        "▓▓▓░░░",
    ]


def capacity() -> shapes.Capacity:
    hit = shapes.Hit("web", 0, 2, 1, 0, 1, 0, 1, 0, 0.999, "for as long as it is gone")
    return shapes.Capacity(
        now_ms=NOW,
        level="zone",
        told=["2 of 3 nodes open, with 12 cpus free", "5 h100 are free, but no node has 4 together " * 2],
        cpu_milli=12_000,
        cpu_milli_unusable=0,
        gpu_milli_unusable=0,
        free=[shapes.Free("std", "p/r/a", "h100", 3, 2, 12_000, 4_096, 5, 500, 1, 0, 0)],
        gpus=[shapes.FreeGpus("h100", 5, 500, 3, {"1": 5, "2": 2, "4": 0, "8": 0}, 1_500)],
        fits=[shapes.Fits("web", 0, 1), *(shapes.Fits(f"w{n}", 100, 0) for n in range(30))],
        losses=[shapes.Loss("zone", f"p/r/{z}", "", 3, 2, 1, [hit], {}) for z in "abcdefghijk"],
    )


def test_the_capacity_fits_on_a_terminal_of_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theme, "width", lambda: 80)
    for one in (False, True):
        lines = theme.plain(capacity_page(capacity(), one=one), 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)
    assert "and 3 more; --json shows all" in theme.plain(capacity_page(capacity(), one=False), 80)
    assert "and 11 that fit as often or more" in theme.plain(capacity_page(capacity(), one=False), 80)


def listed(**other: Any) -> shapes.OfferListed:
    facts: dict[str, Any] = {
        "key": "std/a",
        "name": "a",
        "pool": "std",
        "place": shapes.Place("aws", "us-east-1", "us-east-1a", "-"),
        "capacity": shapes.Resources(192_000, 2_097_152, 8000, "h100"),
        "price_micro_usd": 500_000,
        "spot": True,
        "prices": [shapes.Price(NOW - 2, 400_000), shapes.Price(NOW - 1, 500_000)],
        "chance": 0.129,
        "ready_ms": 185_000,
        "lasts_a_day": 0.999,
        "cost_micro_usd": 612_000,
        "asked": 3.0,
        "came_up": 1.0,
        "refused": 1.99,
        "failed": 0.01,
        "lost": 0.5,
        "retry_ms": NOW,
        "refusal": "asked again in 20 s: failed once: sold out",
    }
    return shapes.OfferListed(**{**facts, **other})


def spending() -> shapes.Spending:
    limits = shapes.Budget(3_000_000, 9_000_000)
    fleet = shapes.Spend("", 3, 1_500_000, 2_000_000, 12_345_678_900, limits, 18_000_000, 2_000_000)
    pool = shapes.Spend("a-pool-with-a-long-name", 3, 1_500_000, 0, 0, shapes.Budget(), None, None)
    return shapes.Spending(NOW, NOW + 1, fleet, [pool], ["it may cost $3.00/h and costs $1.50/h"])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_offers_and_money_fit_on_a_terminal(width: int) -> None:
    long = listed(key="a-pool-with-a-long-name/p5.48xlarge", capacity=shapes.Resources(500, 512), refusal="")
    for made in (market.offers([listed(), long]), market.spend(spending())):
        told = theme.plain(made, width)
        assert max(map(len, told.splitlines())) <= width
        assert "a-pool-with-a-lo" in told
    if width >= 80:
        assert "12%" in told or "THIS MONTH" in told


def test_a_service_that_scales_shows_its_bounds() -> None:
    bounds = shapes.Bounds(1, 8, ["in_flight", "queue"])
    shown = workload(ready=2, wanted=3, scale=bounds)
    assert tables.progress(shown).plain == "2/3 (1-8)"
    assert "1 to 8, by in_flight, queue" in theme.plain(tables.workload_facts(shown))


def test_what_a_pool_costs_is_shown_only_if_it_costs_something() -> None:
    free = shapes.Pool("mine", "join", 0, 9, 0, 1, "", [])
    paid = shapes.Pool("std", "aws", 0, 9, 0, 1, "", [], 500_000, None, shapes.Budget(None, 90_000_000))
    assert "COSTS" not in theme.plain(tables.pools([free]))
    told = theme.plain(tables.pools([free, paid]))
    assert "$0.50/h  $90.00 a month" in told
    assert max(map(len, theme.plain(tables.pools([free, paid]), 80).splitlines())) <= 80


def test_offers_of_a_pool_that_does_not_exist_are_a_mistake(holdfast: Holdfast) -> None:
    pools = [shapes.Pool("mine", "join", 0, 9, 0, 1, "", [])]
    with listening(lambda method, path: gives(pools if path == "/v1/pools" else [])) as server:
        assert holdfast("offers", "mine", "--url", server.url).out == "no offers\n"
        told = holdfast("offers", "mime", "--url", server.url)
        assert (told.code, told.err.splitlines()[-1]) == (2, "hint: Did you mean: mine")


def test_lists_and_details_can_be_shown(holdfast: Holdfast) -> None:
    offer = shapes.Offer(
        "a", "std", shapes.Place("local", "r", "a", "-"), shapes.Resources(1000, 64), 0, False
    )
    answers: dict[str, object] = {
        "/v1/nodes": [node("std-a", capacity=shapes.Resources(1, 1, 2000, "h100"))],
        "/v1/nodes/std-a": node("std-a", labels={"disk": "ssd"}),
        "/v1/workloads": [workload(ready=1), workload("count", "job", done=1)],
        "/v1/workloads/web": workload(
            ready=1, seats=[shapes.Seat("web/0", "active", "open", "r", "r", "n", "ready", 0, 5, "")]
        ),
        "/v1/replicas": [replica()],
        "/v1/pools": [shapes.Pool("std", "local", 1, 3, 0, 1, "sold out", [offer])],
        "/v1/capacity": capacity(),
        "/v1/offers": [listed()],
        "/v1/spend": spending(),
        "/v1/tokens": [shapes.TokenShown("1a", "join", "for me", "std", "", NOW, None, "")],
        "/v1/explain/node": shapes.Explanation(
            "node", "a", "is well", ["it is heard"], ["nothing"], [line(1)]
        ),
    }
    shown = {
        ("nodes",): ["std-a", "● alive", "h100"],
        ("nodes", "std-a"): ["disk=ssd", "local / r / a / -"],
        ("workloads",): ["web", "1/1", "1 done"],
        ("workloads", "web"): ["web/0", "● ready", "serve"],
        ("replicas",): ["web/0.1", "127.0.0.1:80"],
        ("pools",): ["std", "sold out", "1 offer"],
        ("capacity",): ["- 2 of 3 nodes open", "5 h100", "FIT x4", "100 more or above", "IF ZONE GOES"],
        ("capacity", "--if-zone", "a"): ["if zone p/r/a goes", "99.9000% broken for as long as it is gone"],
        ("offers",): [
            "std/a",
            "0.50 spot",
            "0.61",
            "12%",
            "3m",
            "sold out",
            "lately 2 refused, 0.5 lost of 3",
        ],
        ("offers", "std"): ["std/a", "was $0.40"],
        ("spend",): ["fleet", "$1.50/h", "$2.00/h", "$3.00/h, $9.00 a month", "lasts 5.0 h", "- it may cost"],
        ("token", "list"): ["1a", "never", "for me"],
        ("explain", "node", "a"): ["is well", "because", "- it is heard", "would help", "- nothing"],
    }
    with listening(lambda method, path: gives(answers[path.partition("?")[0]])) as server:
        for words, expected in shown.items():
            told = holdfast(*words, "--url", server.url)
            assert (told.code, told.err) == (0, "")
            assert [text for text in expected if text not in told.out] == []
            assert "\x1b" not in told.out
            as_json = holdfast(*words, "--url", server.url, "--json")
            assert json.loads(as_json.out)


def test_nothing_is_said_in_words_too(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives([])) as server:
        for words in (("nodes",), ("workloads",), ("replicas",), ("pools",), ("token", "list"), ("events",)):
            assert len(holdfast(*words, "--url", server.url).out.split()) > 1


def test_an_answer_of_a_newer_server_is_read_all_the_same() -> None:
    body = msgspec.json.encode({**msgspec.to_builtins(node("a")), "mood": "fine"})
    assert read(body, shapes.Node).name == "a"


def test_the_page_says_where_limits_and_fencing_are_not_the_kernels() -> None:
    kept = [node("n1", limits="cgroup", fencing="kernel")]
    assert "limits" not in theme.plain(status_page.page(fleet(kept, []), [], bars=False))
    shown = theme.plain(
        status_page.page(fleet([*kept, node("n2", limits="watchdog", fencing="none")], []), [], bars=False)
    )
    assert "limits: watchdog on 1 of 2 nodes: memory, not cpus" in shown
    assert "fencing: none on n2" in shown


def test_a_clock_that_is_far_off_is_said_on_the_page() -> None:
    behind = theme.plain(status_page.page(fleet([], [], clock_off_ms=-400 * DAY), [], bars=False))
    assert "CLOCK  that of the control plane is 400d behind the fleet's time" in behind
    assert "CLOCK" not in theme.plain(status_page.page(fleet([], []), [], bars=False))
