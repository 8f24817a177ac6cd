"""May one more piece of a request be kept?

A request is read whole before it is let in, and its body stays until it is answered. So bodies are most of a
worker's memory, and they have a budget: of the worker, of each key, and of each address they come from. A
piece that does not fit is refused with 503, and all that came of its request is given back at once.

What has come is counted, not what was announced: who announces 32 MiB and sends nothing takes nothing. Bodies
up to `SMALL` are not counted: connections bound them. Requests without a key (of services that are open) have
together what one key has.

Refused: to stop reading instead of refusing. Many half bodies would wait for each other, and none would end.
"""

from holdfast.gateway.replies import Answer

SMALL = 16_384


class Buffers:
    def __init__(self, most: int, of_key: int, of_address: int) -> None:
        self.most, self.of_key, self.of_address = most, of_key, of_address
        self.held = 0
        self.keys: dict[str, int] = {}
        self.addresses: dict[str, int] = {}

    def take(self, size: int, key: str, address: str) -> Answer | None:
        """`address` empty: not limited by where it comes from."""
        if self.held + size > self.most:
            return _full("this gateway")
        if self.keys.get(key, 0) + size > self.of_key:
            return _full(f"the key {key}" if key else "requests without a key")
        if address and self.addresses.get(address, 0) + size > self.of_address:
            return _full("your address")
        self.held += size
        self.keys[key] = self.keys.get(key, 0) + size
        if address:
            self.addresses[address] = self.addresses.get(address, 0) + size
        return None

    def give_back(self, size: int, key: str, address: str) -> None:
        self.held -= size
        _less(self.keys, key, size)
        if address:
            _less(self.addresses, address, size)


def _less(held: dict[str, int], name: str, size: int) -> None:
    left = held.get(name, 0) - size
    if left > 0:
        held[name] = left
    else:
        held.pop(name, None)


def _full(whose: str) -> Answer:
    text = f"the bodies of requests of {whose} take all the memory they may have at the moment"
    return Answer(503, "buffers_full", text, "server_error", wait_s=1.0, close=True)
