"""The reference page of the API, made from its OpenAPI document: `python -m holdfast.api.reference`."""

import sys
from collections.abc import Iterator
from typing import Any

from holdfast.api.app import Api

HEAD = """# The REST API

The contract is under `/v1`; `/openapi.json` has all of it for programs. Instants are milliseconds since 1970,
durations milliseconds, money micro-dollars (a millionth of a dollar).

**Who may ask.** A token goes into the header `Authorization: Bearer TOKEN`. Each endpoint below names the
roles that it takes. `read` looks; `operator` also plans, applies, drains and deletes workloads; `admin` does
all the rest: tokens, pools, projects, the policy. A token of the role `gateway` is for
`holdfast gateway --control`, one of the role `signals` posts signals, and neither reads anything else.
`/healthz`, `/readyz`, `/ca.pem` and `/openapi.json` take no token; `/metrics` takes one of the role `read`.
`holdfast up` and `holdfast serve` put the first token into the file `token` of their `--dir`.

**Projects.** A token with a project sees and changes the workloads of that project alone, and others are not
there for it; the header `Holdfast-Project: NAME` makes the same of any token. What concerns the whole fleet
takes a token without a project. [Who gets which token](../how-to/tokens-and-roles.md).

**Rate limit.** A token may ask 100 times a second (one of a gateway 1,000 times), and have 32 streams open.
What holds the control plane for long counts for more: in the long run a token has half of a processor. Orders
may add 1 MiB a second to the journal, and 16 MiB at once. Beyond that the answer is a 429, which says in
Retry-After when to come again.

**Who answers.** Every control plane answers reads. What takes the leader is sent on to it with a 307 and its
Location; when nobody leads, the answer is a 503 with Retry-After.

**Problems** are `application/problem+json` as RFC 9457 has it: `title`, `status`, `detail`, a `hint` what to
do, and in `problems` each thing that is wrong with what was sent. A 503 after an order may mean that it
happened: its `hint` says so.

**Following events.** `GET /v1/events` with `Accept: text/event-stream` goes on for ever. Come back with the
last id that you saw in `Last-Event-ID`, and no line is lost or comes twice. A line with a colon in front
comes every ten seconds when nothing happens.

```sh
token="Authorization: Bearer $(cat .holdfast/token)"
curl -s localhost:7700/v1/status -H "$token"
curl -s localhost:7700/v1/apply -H "$token" -H 'Content-Type: application/yaml' \\
    --data-binary @examples/web.yaml
curl -sN localhost:7700/v1/events -H "$token" -H 'Accept: text/event-stream'
```

This page is made by `python -m holdfast.api.reference` and checked by a test.
"""


def page() -> str:
    document = Api().openapi()
    lines = [HEAD]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += _endpoint(method.upper(), path, operation)
    lines += ["# Shapes", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += _shape(name, schema)
    return "\n".join(lines)


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    summary = operation["summary"]
    yield from (f"## `{method} {path}`", "", summary if summary.endswith("?") else f"{summary}.", "")
    if "description" in operation:
        yield from (" ".join(operation["description"].split()), "")
    rows = [_parameter(each) for each in operation.get("parameters", ())]
    if rows:
        yield from ("| | | |", "|---|---|---|", *rows, "")
    if "requestBody" in operation:
        yield from (f"Takes {_content(operation['requestBody']['content'])}.", "")
    good = operation["responses"]["200"]
    yield f"Gives {_content(good['content'])}: {good['description']}."
    others = sorted(status for status in operation["responses"] if status != "200")
    yield from (f"Else {', '.join(others)}.", "")


def _parameter(of: dict[str, Any]) -> str:
    schema = of["schema"]
    must = "*required*" if of.get("required") else _default(schema)
    kind = "" if of["in"] == "query" else f" ({of['in']})"
    return f"| `{of['name']}`{kind} | {must} | {of.get('description', _type(schema))} |"


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value in (None, "") else f"`{str(value).lower()}`"


def _content(content: dict[str, Any]) -> str:
    kinds = []
    for media_type, said in content.items():
        name = _type(said["schema"])
        kinds.append(name if media_type == "application/json" and name != "string" else f"`{media_type}`")
    return " or ".join(dict.fromkeys(kinds))


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return str(kind)


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {name}", "")
    if "description" in schema:
        yield from (" ".join(schema["description"].split()), "")
    if "enum" in schema:
        yield from (_type(schema), "")
        return
    yield from ("| field | type | |", "|---|---|---|")
    for field, of in schema.get("properties", {}).items():
        yield f"| `{field}` | {_type(of)} | {of.get('description', '')} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
