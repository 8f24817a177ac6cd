"""Which control plane to try next, and how long to wait before that.

All that are known are tried in turn: those given at the start, then those that a control plane told of. One
that sends us on to the leader is believed, a few times in a row. After a link is lost everybody comes back at
once, so each waits a little by chance; when nobody answers the rounds become slower, up to two seconds. A
longer wait would only make the return slower: to ask costs a control plane less than one heartbeat.

An agent that was told to use TLS is never led away from it, and only one that was started with --insecure is
led to plain http on another machine.
"""

from collections.abc import Callable, Iterable

from holdfast.agent.settings import Url

AFTER_LOSS_S = 0.2
WITHIN_ROUND_S = 0.1
FIRST_ROUND_S = 0.2
SLOWEST_ROUND_S = 2.0
REFUSED_S = 5.0
MOVES_MAX = 3  # in a row: two that name each other must not keep us busy


class ControlPlanes:
    def __init__(
        self,
        given: tuple[Url, ...],
        learned: Iterable[Url],
        chance: Callable[[], float],
        *,
        insecure: bool = False,
    ) -> None:
        self._given, self._chance, self._insecure = given, chance, insecure
        self.learned: tuple[Url, ...] = ()
        self.learn(learned)
        self._at = 0  # of `known`: whom to try
        self._tries = 0  # since somebody welcomed us
        self._moves = 0
        self._wait = 0.0

    @property
    def known(self) -> tuple[Url, ...]:
        return tuple(dict.fromkeys((*self._given, *self.learned)))

    def learn(self, urls: Iterable[Url]) -> None:
        """Those that there are now; those told of earlier may be gone."""
        only_tls = all(url.scheme == "https" for url in self._given)

        def may(url: Url) -> bool:
            return url.scheme == "https" or (not only_tls and (self._insecure or not url.plain))

        self.learned = tuple(filter(may, urls)) or self.learned

    def next(self) -> Url:
        return self.known[self._at % len(self.known)]

    def wait_s(self) -> float:
        """How long to wait before that."""
        return self._wait

    # how it went

    def welcomed(self, url: Url, all_of_them: Iterable[Url]) -> None:
        self.learn(all_of_them)
        self._point_at(url)
        self._tries = self._moves = 0

    def lost(self, *, was_welcomed: bool, deaf: bool = False) -> None:
        """The link ended. One that only fell silent leads nowhere: it would cost a time-out to try again."""
        if was_welcomed:
            self._at += deaf
            self._wait = self._chance() * AFTER_LOSS_S
        else:
            self._failed()

    def refused(self, *, final: bool) -> None:
        self._failed()
        if final:
            self._wait = REFUSED_S * (0.8 + 0.2 * self._chance())

    def moved(self, leader: Url | None, all_of_them: Iterable[Url]) -> None:
        self.learn(all_of_them)
        self._moves += 1
        if leader is not None and leader in self.known and self._moves <= MOVES_MAX:
            self._point_at(leader)
            self._wait = self._chance() * WITHIN_ROUND_S
        else:
            self._failed()

    def _failed(self) -> None:
        self._tries += 1
        self._at += 1
        rounds, within = divmod(self._tries, len(self.known))
        if within:
            self._wait = self._chance() * WITHIN_ROUND_S
        else:
            self._moves = 0
            slowest = min(SLOWEST_ROUND_S, FIRST_ROUND_S * 2 ** min(rounds, 10))
            self._wait = slowest * (0.5 + 0.5 * self._chance())

    def _point_at(self, url: Url) -> None:
        if url in self.known:
            self._at = self.known.index(url)
