"""The reference page of workload files: `python -m holdfast.files.workload_reference`."""

from collections.abc import Iterator

from holdfast.files.explain import table_at
from holdfast.files.policy import POLICY
from holdfast.files.reference import table
from holdfast.files.workload_forms import PoolDocument, WorkloadDocument

HEAD = """# Workload files

What must stay up, in YAML: one document a thing, with its `kind` (`service`, `job`, `training`, `sweep`,
`pool` or `policy`). Several documents in one file are separated by `---`. `holdfast apply FILE` asks for it,
again and again if you like: what did not change is left alone. `holdfast plan FILE` says what would happen.

```yaml
kind: service
name: web
replicas: 3
command: python3 -m http.server $PORT
ready: { http: / }
```

- A **duration** is a text such as `90s`, `5m`, `1h30m` or `30d` (ms, s, m, h, d, w), at most 3650 days, or a
  number of seconds.
- A **size** of memory is a text such as `512MiB` or `32GiB`.
- **Money** is dollars an hour: `1.2` or `$1.20`.
- A **share** is `99.9%` or `0.999`.
- A **command** is a list of words, or one text that `sh -c` runs.
- Where a text is expected, it is what is written: `env: { VERSION: 1.10, COUNTRY: no }` are "1.10" and "no".
- Anchors (`&name`, `*name`) and merge keys (`<<`) work; a field twice, tags, and more than 4 MiB do not.

This page is made by `python -m holdfast.files.workload_reference` and checked by a test.
"""
RUNS = """## What the program finds

In its environment, besides what `env` says:

| variable | is |
|---|---|
| `PORT`, `HOLDFAST_PORT` | a port of its own to listen on; `ready` and `alive` ask there |
| `HOLDFAST_NODE`, `HOLDFAST_WORKLOAD`, `HOLDFAST_REPLICA`, `HOLDFAST_SLOT` | where and what it is |
| `HOLDFAST_INDEX` | the number of its slot, from 0: which task of a sweep |
| `HOLDFAST_EPOCH` | rises with every new copy in its slot: to fence its writes |
| `HOLDFAST_ROLE` | active or standby |
| `HOLDFAST_STATE_FILE` | JSON with role, epoch and gang, rewritten when they change (see `tell`) |
| `HOLDFAST_CHECKPOINT_DIR` | a folder that its next copy finds again |
| `HOLDFAST_RANK`, `HOLDFAST_WORLD_SIZE`, `HOLDFAST_PEERS` | in a training: its number, how many, and where |
| `CUDA_VISIBLE_DEVICES` | the GPUs it was given |
"""


def page() -> str:
    return "\n".join([HEAD, *_sections()]).replace("a text in quotes", "a text")  # quotes are rare in YAML


def _sections() -> Iterator[str]:
    yield from ("## `kind: service`, `job`, `training` and `sweep`", "", *table(WorkloadDocument))
    yield from ("### `restart`", "", *table(table_at(WorkloadDocument, ("restart",))))
    yield from ("### `ready` and `alive`", "", "Exactly one of `http`, `tcp` and `exec`.", "")
    yield from table(table_at(WorkloadDocument, ("ready",)))
    yield RUNS
    yield from ("## `kind: pool`", "", *table(PoolDocument))
    yield from ("### `offers`", "", *table(table_at(PoolDocument, ("offers", 0))))
    yield from ("### `hosts`", "", *table(table_at(PoolDocument, ("hosts", 0))))
    yield from ("## `kind: policy`", "", "The last one applied holds, as a whole.", "")
    for name in POLICY.model.model_fields:
        yield from (f"### `{name}`", "", *table(table_at(POLICY.model, (name,))))


if __name__ == "__main__":
    print(page(), end="")
