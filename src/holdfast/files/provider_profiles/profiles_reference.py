"""The reference page of provider profiles: `python -m
holdfast.files.provider_profiles.profiles_reference`."""

from collections.abc import Iterator

from holdfast.adapters.providers.found import OURS, declared
from holdfast.files.provider_profiles.profiles_file import ProfilesForm
from holdfast.files.scenario.scenario_reference import table
from holdfast.files.validation_errors import table_at

HEAD = """# Provider profiles

Which programs, files, URLs and accounts of the control plane's own host pools may use, in YAML:
`providers.yaml` in the `--dir` of `holdfast serve` and `holdfast up`, or the file that `--provider-profiles`
names. A pool comes over the API and names a profile; what the profile says does not come from there. So an
admin of the API cannot have that host run another program, read another key, or send its credentials
elsewhere.

```yaml
profiles:
  cluster:
    provider: slurm
    settings: { root: /home/me/holdfast, python: /home/me/holdfast/venv/bin/python }
  lab:
    provider: ssh
    settings: { key_file: /etc/holdfast/lab_key, known_hosts: /etc/holdfast/lab_hosts }
telemetry: [http://prometheus:9090]
```

```
kind: pool
name: gpus
provider: slurm
max: 8
profile: cluster
settings: { account: my-project, time: 4h }
```

- It belongs to the user that runs the control plane, or to root, and nobody else can write it: else it is not
  used. Secrets do not belong into it.
- It is read at the start, where a mistake keeps the control plane from starting, and again when it changes. A
  change that cannot be used is in the log as an error, and what was read before holds on.
- A profile may say any setting of its provider; a pool may not say it too. Those below come from a profile
  only: a pool that names one is refused with 409. A pool that was applied with some before there were
  profiles keeps them, and cannot change them.
- Each control plane of a fleet has its own: they should say the same.
- A provider of others that does not declare its settings has all of them from a profile.

This page is made by `python -m holdfast.files.provider_profiles.profiles_reference` and checked by a test.
"""
ONLY = """## Settings that come from a profile only

| provider | setting | is |
|---|---|---|"""


def page() -> str:
    return "\n".join([HEAD, *_sections()]).replace("a text in quotes", "a text")  # quotes are rare in YAML


def _sections() -> Iterator[str]:
    yield from ("## The file itself", "", *table(table_at(ProfilesForm, ())))
    yield from ("## `profiles.NAME`", "", *table(table_at(ProfilesForm, ("profiles", "NAME"))))
    yield ONLY
    for provider in OURS:
        takes = declared(provider)
        for name, kind in takes.kinds.items() if takes is not None else ():
            if kind.of_host:
                yield f"| {provider} | `{name}` | {kind.expected} |"
    yield ""


if __name__ == "__main__":
    print(page(), end="")
