"""The account at EC2: one client a region, and the only place where boto3 is called.

boto3 blocks, so its calls run in threads of our own. A call that was given up still has its thread until its
time-out, so the threads are the limit: with those that everybody shares, a cloud that hangs would take them
all. Nothing is tried again here that changes something: the control plane does that, it knows what else has
happened meanwhile. Looking is tried twice. So one call ends within 50 s, and three in a row within the 180 s
that the control plane waits.

When EC2 refuses us, the credentials are read anew for the next call: a person may have renewed them, and
boto3 would keep the old ones for ever.
"""

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.adapters.providers.ec2.faults import translated
from holdfast.adapters.providers.ec2.settings import Ec2Settings
from holdfast.adapters.providers.library import Library
from holdfast.ports.errors import Denied

AT_ONCE = 12
CONNECT_S = 5
LOOK_S = 15
DO_S = 40
LOOKS = 2
PRICING_REGION = "us-east-1"  # the price list is served from few regions, and is the same in all


BOTO3 = Library("boto3", "EC2 needs boto3: pip install 'holdfast[aws]'")


@functools.cache
def _descriptions() -> Any:
    """What boto3 reads about EC2: tens of megabytes and most of a second, once for all accounts."""
    from botocore.loaders import create_loader

    return create_loader()


class Account:
    def __init__(self, settings: Ec2Settings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ec2")
        self._making = threading.Lock()  # clients may be shared by threads, but not made by several
        self._session: Any = None
        self._clients: dict[tuple[str, str, bool], Any] = {}

    async def look(self, region: str, what: str, **words: Any) -> dict[str, Any]:
        """All pages of an answer that changes nothing."""
        return await self._in_thread(functools.partial(self._look, "ec2", region, what, words))

    async def do(self, region: str, what: str, **words: Any) -> dict[str, Any]:
        return await self._in_thread(functools.partial(self._do, region, what, words))

    async def price_list(self, **words: Any) -> dict[str, Any]:
        return await self._in_thread(
            functools.partial(self._look, "pricing", PRICING_REGION, "get_products", words)
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # in a thread

    async def _in_thread(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        BOTO3.load()  # says what to install, before anything else
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _look(self, service: str, region: str, what: str, words: dict[str, Any]) -> dict[str, Any]:
        def ask(client: Any) -> Any:
            if client.can_paginate(what):
                return client.get_paginator(what).paginate(**words).build_full_result()
            return getattr(client, what)(**words)

        return self._asked(service, region, ask, only_looks=True)

    def _do(self, region: str, what: str, words: dict[str, Any]) -> dict[str, Any]:
        return self._asked("ec2", region, lambda client: getattr(client, what)(**words), only_looks=False)

    def _asked(
        self, service: str, region: str, ask: Callable[[Any], Any], *, only_looks: bool
    ) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError  # something between us and EC2 answered

        try:
            answer: dict[str, Any] = ask(self._client(service, region, only_looks))
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            meant = translated(error, only_looks=only_looks)
            if isinstance(meant, Denied):
                self._begin_anew()
            raise meant from error
        return answer

    def _begin_anew(self) -> None:
        with self._making:
            self._session, self._clients = None, {}

    def _begun(self) -> Any:
        from botocore.session import Session

        core = Session()
        core.register_component("data_loader", _descriptions())
        return BOTO3.load().Session(botocore_session=core, profile_name=self._settings.profile or None)

    def _client(self, service: str, region: str, only_looks: bool) -> Any:
        from botocore.config import Config

        with self._making:
            if self._session is None:
                self._session = self._begun()
            key = (service, region, only_looks)
            if key not in self._clients:
                self._clients[key] = self._session.client(
                    service,
                    region_name=region,
                    endpoint_url=self._settings.endpoint_url or None,
                    config=Config(
                        connect_timeout=CONNECT_S,
                        read_timeout=LOOK_S if only_looks else DO_S,
                        retries={"mode": "standard", "total_max_attempts": LOOKS if only_looks else 1},
                        max_pool_connections=AT_ONCE,
                    ),
                )
            return self._clients[key]
