"""The reference page of workload files: `python -m holdfast.files.workload.workload_reference`."""

from collections.abc import Iterator

from holdfast.adapters.providers.inherited import NAMES
from holdfast.files.policy.policy_file import POLICY
from holdfast.files.scenario.scenario_reference import table
from holdfast.files.validation_errors import table_at
from holdfast.files.workload.workload_schema import PoolDocument, ProjectDocument, WorkloadDocument

HEAD = """# Workload files

What must stay up, in YAML: one document a thing, with its `kind` (`service`, `job`, `training`, `sweep`,
`pool`, `project` or `policy`). Several documents in one file are separated by `---`. `holdfast apply FILE`
asks for it, again and again if you like: what did not change is left alone. `holdfast plan FILE` says what
would happen.

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

This page is made by `python -m holdfast.files.workload.workload_reference` and checked by a test.
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
| `HOLDFAST_STATE_FILE` | JSON of what may change: role, epoch, and a training's membership (see below) |
| `HOLDFAST_PROGRESS_FILE` | where it writes how many milliseconds of work its last checkpoint holds |
| `HOLDFAST_CHECKPOINT_DIR` | a folder that its next copy finds again |
| `HOLDFAST_GATEWAY_SECRET` | of a service with `serves`: gateways send it as a bearer token |
| `HOLDFAST_RANK`, `HOLDFAST_WORLD_SIZE` | in a training: its number, and how many there are |
| `HOLDFAST_PEERS` | in a training: `address:port` of each member, by rank |
| `RANK`, `WORLD_SIZE`, `LOCAL_RANK` | in a training: the same, as PyTorch and others read it |
| `MASTER_ADDR`, `MASTER_PORT` | in a training: the node of rank 0, and the `PORT` of rank 0 |
| `CUDA_VISIBLE_DEVICES` | the GPUs it was given |

The rest is what its agent has: on a machine of its own, what that machine gives it. Local nodes, and jobs of
Slurm, are started by the control plane, and find of its environment only this: {names}, `LC_*`, and what
`--inherit-env` (for Slurm, the setting `inherit_env`) names. So no secret of the control plane is in a job.

A job, a training and a task of a sweep run in a PID namespace of their own where the node can make one:
process ids are small, `/proc` shows their own processes, mounts they make are theirs, and with an agent that
is not root programs that change the user (`sudo`) do not work. All of it ends with the replica.

The members of a training start when the ports of all are known. When it loses a member, or grows, it gets a
new generation: every member is stopped (`stop_grace`) and, when all have ended, started anew where it is,
with a higher epoch and the new ranks. With `tell` the members keep running, get that signal, and read `gang`
(the generation), `rank`, `world_size`, `peers`, `master_addr` and `master_port` in the state file.

`torch.distributed.init_process_group("gloo", init_method="env://")` needs nothing more. With `torchrun`:

```sh
torchrun --nnodes $HOLDFAST_WORLD_SIZE --node-rank $HOLDFAST_RANK \\
  --master-addr $MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node 8 train.py
```

## How `cpus` and `memory` are kept

`holdfast explain node NODE` and `nodes --json` say which holds on a node, `limits`:

| | `cpus` | `memory` |
|---|---|---|
| `cgroup` | the kernel gives no more | the kernel kills what takes more |
| `watchdog` | not limited: more for a minute is a line in the agent's log, and in `explain node` | the agent
kills a replica that holds more, looking once a second: `out of memory: used 600 MiB of 512 MiB` |

The watchdog counts anonymous and shared memory of all processes of a replica, what they share once, and no
pages of files. A node has `cgroup` when its agent may write a control group of version 2 with the controllers
cpu and memory: as root, in a container with one, or under systemd with `Delegate=yes`. Version 1 is not used.
"""
LOCAL = """### `settings` of a local pool

A pool of the provider `local` may pretend a market, to try on one machine how a fleet fares on a real one.
Chance is drawn from the names of the nodes, so it is the same each time. `holdfast chaos notice NODE` and
`holdfast chaos sell-out POOL` do the same by hand.

| setting | default | is |
|---|---|---|
| `boot` | `0s` | from the launch to the agent's start; `2s..4s`: something between |
| `stock` |  | so many nodes of each offer at a time; `a=2,b=0`: by offer |
| `refuses` | `0%` | this share of the launches is refused |
| `lives` |  | a spot node is taken away so long after its boot; `5m..20m`: something between |
| `notice` | `2m` | and is told so long before |
| `capacity` | `1000` | nodes of this machine, of all pools |
"""

NETWORK = """
A node is reached where its link to the control plane comes from. Behind NAT, behind a proxy, or with
several addresses that is the wrong one: declare in `network` the networks that its nodes have addresses in,
and give the agent the right one with `--address`. An address outside of them is not used
(`holdfast_dropped_reports_total{reason="foreign_address"}`, and a line in the log of the control plane),
and neither is one of a link-local, multicast or loopback network, whatever `network` says: gateways would
send requests there. It counts from the next time that the node connects. Replicas get ports from 20000 to
29999."""

RESERVE = """
At most `max` less `nodes` of the pool hold anything less important. Of the others none is launched for it,
and it is put on none, empty or not; a node that holds something less important may take more of it. Nodes
that may still be launched count as kept. Nobody is moved or stopped for a reserve that is made later, and
somebody important who finds no room preempts as ever."""

QUOTA = """
The quota of a project; it takes an admin. Each slot of its workloads counts once, from its first copy until
the last is gone, so a failover or a rolling update needs no room in the quota. What is beyond it waits:
`holdfast explain workload NAME` and `plan` say so. It preempts nobody, and no node is launched for it. Where
`month` is given, a node is launched only if the whole of it is within what is left. A quota that is made
smaller stops nothing. Applied without limits, the project has no quota.

`replicas` and `workloads` are of what is wanted, whether it runs or waits: what would bring the project over
them is refused when it is applied or scaled, and in a dry run. All projects together may have 250,000 slots
and 10,000 workloads. `holdfast projects --json` says how many there are, and how many there may be."""


def page() -> str:
    return "\n".join([HEAD, *_sections()]).replace("a text in quotes", "a text")  # quotes are rare in YAML


def _sections() -> Iterator[str]:
    yield from ("## `kind: service`, `job`, `training` and `sweep`", "", *table(WorkloadDocument))
    yield from ("### `restart`", "", *table(table_at(WorkloadDocument, ("restart",))))
    yield from ("### `ready` and `alive`", "", "Exactly one of `http`, `tcp` and `exec`.", "")
    yield from table(table_at(WorkloadDocument, ("ready",)))
    yield from ("### `scale`", "", *table(table_at(WorkloadDocument, ("scale",))))
    yield from (
        "### `schedule` of a `scale`",
        "",
        *table(table_at(WorkloadDocument, ("scale", "schedule", 0))),
    )
    yield from ("### `mix`", "", *table(table_at(WorkloadDocument, ("mix",))))
    yield from ("### `serves`", "", *table(table_at(WorkloadDocument, ("serves",))))
    yield RUNS.replace("{names}", ", ".join(f"`{name}`" for name in sorted(NAMES)))
    yield from ("## `kind: pool`", "", *table(PoolDocument), NETWORK)
    yield ""
    yield from ("### `budget`", "", *table(table_at(PoolDocument, ("budget",))))
    yield from ("### `reserve`", "", *table(table_at(PoolDocument, ("reserve",))), RESERVE)
    yield LOCAL
    yield from ("### `offers`", "", *table(table_at(PoolDocument, ("offers", 0))))
    yield from ("### `hosts`", "", *table(table_at(PoolDocument, ("hosts", 0))))
    yield from ("## `kind: project`", "", *table(ProjectDocument), QUOTA)
    yield from ("## `kind: policy`", "", "The last one applied holds, as a whole.", "")
    for name in POLICY.model.model_fields:
        yield from (f"### `{name}`", "", *table(table_at(POLICY.model, (name,))))


if __name__ == "__main__":
    print(page(), end="")
