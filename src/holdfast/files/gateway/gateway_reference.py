"""The reference page of a gateway's file: `python -m holdfast.files.gateway.gateway_reference`."""

from collections.abc import Iterator

from holdfast.files.gateway.gateway_schema import GatewayForm
from holdfast.files.scenario.scenario_reference import table
from holdfast.files.validation_errors import table_at

HEAD = """# The file of a gateway

What a gateway leads to and who may ask it for how much, in YAML: `gateway.yaml`. `holdfast gateway` reads it
once, when it starts; `holdfast gateway --check` only says whether it is good. All mistakes are told at once.

```yaml
services:
  - name: llama
    upstreams: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    probe: /health
limits:
  teams:
    red: { tokens_per_min: 100000, concurrent: 32 }
```

- A **duration** is a text such as `90s`, `5m`, `1h30m` or `30d` (ms, s, m, h, d, w), at most 3650 days, or a
  number of seconds.
- A **size** is a text such as `512KiB` or `32MiB`.
- An **address** is `"HOST:PORT"`; without a host, `127.0.0.1`. Port 0 is any that is free.
- **Tokens** are those of the prompt and of the answer together, as the engine counts them.
- A request is held against every limit that applies: its key's, its team's, its model's, its team's for that
  model, and those of all together. It is let in if all of them have room, and else none is touched.

Keys may stand here, by the hash of their secret, or be made while the gateway runs, with
[`holdfast keys create`](cli.md). Those that stand here are changed here. What it answers, and with which
headers, is in [the gateway's HTTP reference](gateway-http.md).

This page is made by `python -m holdfast.files.gateway.gateway_reference` and checked by a test.
"""
TABLES: tuple[tuple[str, tuple[str | int, ...]], ...] = (
    ("## The file itself", ()),
    ("## `services`", ("services", 0)),
    ("### `upstreams` of a service", ("services", 0, "upstreams", 0)),
    ("### `hold` of a service", ("services", 0, "hold")),
    ("## `limits`", ("limits",)),
    ("### `limits.teams.NAME`", ("limits", "teams", "NAME")),
    ("### `limits.global`, `limits.models.NAME`, `limits` of a key", ("limits", "global")),
    ("## `keys`", ("keys", 0)),
    ("## `tls`", ("tls",)),
)
NOTES = {
    "### `upstreams` of a service": "A URL alone will do.",
    "### `hold` of a service": "When it is full, or their patience is over, they get 503 `no_capacity`.",
}


def page() -> str:
    return "\n".join([HEAD, *_sections()]).replace("a text in quotes", "a text")  # quotes are rare in YAML


def _sections() -> Iterator[str]:
    for heading, loc in TABLES:
        yield from (heading, "")
        if heading in NOTES:
            yield from (NOTES[heading], "")
        yield from table(table_at(GatewayForm, loc))


if __name__ == "__main__":
    print(page(), end="")
