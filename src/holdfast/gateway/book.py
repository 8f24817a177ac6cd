"""What a worker knows: whose keys are good, which service answers for which model, host or path."""

import hashlib
import hmac
from collections.abc import Iterable

from holdfast.gateway.replies import Answer
from holdfast.gateway.service import Service
from holdfast.model.gateway import Key, may_use
from holdfast.model.units import Instant
from holdfast.ports.clock import JUMP_MS

SECRET_MAX = 512


def hashed(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class Book:
    def __init__(self) -> None:
        self.keys: dict[bytes, Key] = {}
        self.key_hashes: dict[str, bytes] = {}  # by id
        self.services: dict[str, Service] = {}
        self._models: dict[str, Service] = {}
        self._model_starts: list[tuple[str, Service]] = []
        self._hosts: dict[bytes, Service] = {}
        self._prefixes: list[tuple[bytes, Service]] = []  # the longest first

    def put_key(self, key: Key) -> None:
        self.drop_key(key.id)
        self.keys[key.hash] = key
        self.key_hashes[key.id] = key.hash

    def drop_key(self, id: str) -> None:
        digest = self.key_hashes.pop(id, None)
        if digest is not None:
            self.keys.pop(digest, None)

    def set_services(self, services: Iterable[Service]) -> None:
        self.services = {service.name: service for service in services}
        self._models, self._model_starts, self._hosts, self._prefixes = {}, [], {}, []
        for service in self.services.values():
            for model in service.settings.models:
                if model.endswith("*"):
                    self._model_starts.append((model[:-1], service))
                else:
                    self._models.setdefault(model, service)
            for host in service.settings.hosts:
                self._hosts.setdefault(host.lower().encode(), service)
            for prefix in service.settings.prefixes:
                self._prefixes.append((prefix.encode(), service))
        self._model_starts.sort(key=lambda each: -len(each[0]))
        self._prefixes.sort(key=lambda each: -len(each[0]))

    def service_for(self, model: str) -> Service | None:
        found = self._models.get(model)
        if found is not None:
            return found
        for start, service in self._model_starts:
            if model.startswith(start):
                return service
        return None

    def service_at(self, host: bytes, path: bytes) -> Service | None:
        found = self._hosts.get(host.lower()) or self._hosts.get(host.lower().rpartition(b":")[0])
        if found is not None:
            return found
        for prefix, service in self._prefixes:
            if path == prefix or path.startswith(prefix if prefix.endswith(b"/") else prefix + b"/"):
                return service
        return None

    def models(self, key: Key | None) -> list[str]:
        return [model for model in self._models if key is None or may_use(key, model)]

    def key_of(self, secret: bytes, wall: Instant) -> Key | Answer:
        """The key that has this secret. Looked up by its hash: nothing is compared byte by byte with a
        secret, so the time it takes tells nothing."""
        if not secret:
            return Answer(
                401,
                "invalid_api_key",
                "no key was sent: send it as Authorization: Bearer KEY",
            )
        digest = hashed(secret)
        key = self.keys.get(digest)
        if key is None or len(secret) > SECRET_MAX or not hmac.compare_digest(key.hash, digest):
            return Answer(401, "invalid_api_key", "this key is not known here")
        return self.lapsed(key, wall) or key

    def lapsed(self, key: Key, wall: Instant) -> Answer | None:
        """Why it is not good now. One that ends was made by a clock; if that was far ahead of ours, so is its
        end, and it would be good for years."""
        if key.suspended:
            return Answer(
                403, "key_suspended", f"the key {key.id} is suspended: {key.suspended}", "permission_error"
            )
        if key.expires_at and key.expires_at <= wall:
            return Answer(401, "invalid_api_key", f"the key {key.id} has expired")
        if key.expires_at and key.created_at > wall + JUMP_MS:
            text = f"the key {key.id} was made by a clock that is ahead of the clock of this gateway"
            return Answer(401, "invalid_api_key", text)
        return None
