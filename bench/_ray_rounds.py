"""Ray under the same harm: an actor with restarts, and the worker node it runs on killed or frozen.

As it comes, with its health check tuned hard, and tuned as hard as it will go. The time is from just before
the first signal to the first answer of the actor elsewhere. `dead` is when Ray itself called the node dead,
so that finding out and starting again can be told apart.
"""

import itertools
import time

from bench._failover_rounds import Times, collected, tell
from bench._ray_cluster import SETTINGS, WORKERS, Cluster, NoRay, cluster
from holdfast.adapters.providers.local import tree

ANSWER_S = 180.0
ADD_AGAIN_S = 60.0
WORKERS_MAX = 60


def measure(rounds: int) -> dict[str, object]:
    """The slower the setting, the fewer rounds: with its defaults one pair takes a minute and a half."""
    counts = {"defaults": max(1, rounds // 20), "tuned": max(1, rounds // 3), "edge": max(1, rounds // 5)}
    found: dict[str, object] = {}
    for name, count in counts.items():
        tell(f"ray {name}: {SETTINGS[name] or 'as it comes'}")
        try:
            found[name] = {**_measure(name, count), "settings": SETTINGS[name]}
        except (NoRay, OSError) as error:
            found[name] = {"error": str(error)}
    return found


def _measure(name: str, count: int) -> dict[str, object]:
    with cluster(name) as made:
        return {
            "version": made.last("version"),
            "kill": collected([_round(made, name, "kill") for _ in range(count)]),
            "hang": collected([_round(made, name, "hang") for _ in range(count)]),
        }


def _round(made: Cluster, name: str, deed: str) -> Times:
    made.whole()
    root, mark, at = str(made.last("root")), len(made.news), time.monotonic()
    if deed == "kill":
        tree.kill(root)
    else:
        tree.stop(root)
    answered = made.wait(lambda news: "instance" in news, mark, ANSWER_S)
    dead = made.wait(lambda news: news.get("alive") == WORKERS - 1, mark, ANSWER_S)
    tree.kill(root)
    made.add_worker()
    times = {"total": _at(answered) - at, "dead": _at(dead) - at}
    tell(f"ray {name} {deed}: {times['total']:.2f} s")
    return times


def _at(news: dict[str, object]) -> float:
    at = news["at"]
    assert isinstance(at, float)
    return at


class Untouched:
    """A cluster that nobody harms: whatever it loses, it loses by mistake. Lost workers are replaced, or it
    would run out of mistakes to make."""

    def __init__(self, made: Cluster) -> None:
        self.made, self.mark, self.begun = made, len(made.news), time.monotonic()
        self.added = 0
        self.added_at = 0.0

    def look(self) -> None:
        short = self.made.last("alive") != WORKERS and not self.made.last("over")
        if short and self.added < WORKERS_MAX and time.monotonic() - self.added_at > ADD_AGAIN_S:
            self.added, self.added_at = self.added + 1, time.monotonic()
            self.made.add_worker()

    def result(self) -> dict[str, object]:
        news = self.made.news[self.mark :]
        alive = [WORKERS, *(int(str(one["alive"])) for one in news if "alive" in one)]
        lost = sum(max(0, before - after) for before, after in itertools.pairwise(alive))
        over = [_at(one) - self.begun for one in news if "over" in one]
        return {
            "false_failovers": lost,
            "actor_restarts": sum("instance" in one for one in news),
            "cluster_lost_after_s": round(over[0], 1) if over else None,
        }
