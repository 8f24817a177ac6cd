"""The file of a gateway: what it may say, and how every mistake in it is answered."""

import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.files.gateway import gateway_file as files
from holdfast.files.problem import FileProblem
from holdfast.gateway import settings
from holdfast.model.gateway import Limits
from tests.certificates import self_signed, write

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "ab" * 32


def parsed(text: str) -> settings.Gateway:
    return files.parsed(text, "gateway.yaml", Path("/state"))


def test_an_upstream_is_all_a_gateway_needs() -> None:
    wanted = parsed("services: [{ name: llama, upstreams: ['http://10.0.0.1:8000/v1'] }]")
    assert (wanted.host, wanted.port, wanted.admin_port, wanted.workers) == ("127.0.0.1", 8080, 8081, 1)
    (service,) = wanted.services
    assert service.models == ("llama",)
    assert service.upstreams == (settings.Upstream("http://10.0.0.1:8000/v1"),)
    defaults = settings.Service("llama")
    for field in settings.Service.__struct_fields__:
        if field not in ("models", "upstreams"):
            assert getattr(service, field) == getattr(defaults, field), f"{field}: form and settings disagree"
    plain, ours = settings.Gateway(state=Path("/state")), parsed("services: []")
    assert plain == ours, "form and settings agree on every default"


def test_everything_is_taken_over() -> None:
    wanted = parsed(
        f"""
        listen: "[::1]:9000"
        admin: ":9001"
        workers: 4
        body_max: 1MiB
        fail_open: true
        shadow: false
        services:
          - name: llama
            models: ["llama-*", other]
            upstreams:
              - {{ url: "http://10.0.0.1:8000", id: a, weight: 2, priority: 1, credential: sk-up }}
              - unix:/run/x.sock
            hosts: [x.example]
            prefixes: [/tools]
            probe: /health
            probe_every: 500ms
            hold: {{ requests: 5, tokens: 100, patience: 3s }}
            concurrent: 8
            tries: 2
            connect: 1s
            total: 10m
        limits:
          global: {{ tokens_per_min: 1000 }}
          models: {{ llama: {{ concurrent: 3 }} }}
          teams: {{ red: {{ requests_per_min: 5, models: {{ "org/llama": {{ tokens_total: 7 }} }} }} }}
        keys:
          - {{ id: ci, sha256: "{DIGEST.upper()}", team: red, limits: {{ tokens_burst: 9 }}, exempt: true }}
        """
    )
    assert (wanted.host, wanted.port, wanted.admin_host, wanted.admin_port) == (
        "::1",
        9000,
        "127.0.0.1",
        9001,
    )
    assert (wanted.workers, wanted.body_max, wanted.fail_open, wanted.shadow) == (4, 1_048_576, True, False)
    (service,) = wanted.services
    assert service.upstreams[0] == settings.Upstream("http://10.0.0.1:8000", "a", 2.0, 1, "sk-up")
    assert service.upstreams[1].url == "unix:/run/x.sock"
    assert (service.models, service.names_models) == (("llama-*", "other"), True)
    assert service.hold == settings.Hold(5, 100, 3.0)
    assert (service.probe_every_s, service.connect_s, service.total_s) == (0.5, 1.0, 600.0)
    assert wanted.limits == {
        "global": Limits(tokens_per_min=1000),
        "model:llama": Limits(concurrent=3),
        "team:red": Limits(requests_per_min=5),
        "team:red/model:org/llama": Limits(tokens_total=7),
    }
    (key,) = wanted.keys
    assert (key.hash, key.team, key.limits, key.exempt) == (
        bytes.fromhex(DIGEST),
        "red",
        Limits(tokens_burst=9),
        True,
    )


def test_a_credential_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "services: [{ name: a, upstreams: [{ url: 'http://h', credential: 'env:UP_KEY' }] }]"
    monkeypatch.setenv("UP_KEY", "sk-from-there")
    assert parsed(text).services[0].upstreams[0].credential == "sk-from-there"
    monkeypatch.delenv("UP_KEY")
    with pytest.raises(FileProblem, match="expected the variable UP_KEY to be set"):
        parsed(text)


def test_no_requests_to_hold_is_no_queue() -> None:
    assert parsed("services: [{ name: a, hold: { requests: 0 } }]").services[0].hold is None


SERVICE = "services: [{ name: a, upstreams: [%s] }]"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("", "", "expected a gateway, got an empty file"),
        ("[1]", "", "expected fields such as services"),
        ("a: [", "", ""),
        ("services: []\n---\nservices: []", "", "expected one document, got 2"),
        ("servces: []", "servces", "Did you mean: services"),
        ("listen: 8080", "listen", 'Try: listen: "127.0.0.1:8080"'),
        ('listen: "host"', "listen", "expected an address"),
        ('listen: "h:99999"', "listen", "expected an address"),
        ("workers: 0", "workers", "at least 1"),
        ("workers: many", "workers", "expected a whole number"),
        ("body_max: 5 apples", "body_max", "expected"),
        ("open: maybe", "open", "expected"),
        ("tls: { certificate: x }", "tls.key", "expected"),
        ("tls: { certificate: none.pem, key: none.pem }", "tls", "got: No such file"),
        ("upstream_ca: none.pem", "upstream_ca", "got: No such file"),
        ("services: [{}]", "services[0].name", "expected"),
        ("services: [{ name: 'a b' }]", "services[0].name", "expected"),
        (
            "services: [{ name: a }, { name: a }]",
            "services[1].name",
            "expected another name than services[0]",
        ),
        ("services: [{ name: a, prefixes: [tools] }]", "services[0].prefixes", "paths that begin with /"),
        ("services: [{ name: a, tries: 0 }]", "services[0].tries", "at least 1"),
        ("services: [{ name: a, connect: soon }]", "services[0].connect", "expected a duration"),
        (
            "services: [{ name: a, hold: { patience: -1s } }]",
            "services[0].hold.patience",
            "expected a duration",
        ),
        ("services: [{ name: a, hedging: true }]", "services[0].hedging", "Did you mean: hedge"),
        (SERVICE % "'ftp://h'", "services[0].upstreams[0].url", "http://HOST:PORT"),
        (SERVICE % "'http://h?x=y'", "services[0].upstreams[0].url", "http://HOST:PORT"),
        (SERVICE % "'http://h:x'", "services[0].upstreams[0].url", "http://HOST:PORT"),
        (SERVICE % "'unix:x.sock'", "services[0].upstreams[0].url", "unix:/PATH"),
        (SERVICE % "5", "services[0].upstreams[0]", "expected"),
        (SERVICE % "{ url: 'http://h', weight: 0 }", "services[0].upstreams[0].weight", "from 0.01"),
        (SERVICE % "'http://h', 'http://h'", "services[0].upstreams[1]", "expected each upstream once"),
        ("limits: { team: {} }", "limits.team", "Did you mean: teams"),
        ("limits: { teams: { red: { tokens: 5 } } }", "limits.teams.red.tokens", "Did you mean: tokens_"),
        (
            "limits: { teams: { red: { tokens_per_min: -5 } } }",
            "limits.teams.red.tokens_per_min",
            "at least 0",
        ),
        ("limits: { globl: {} }", "limits.globl", "Did you mean: global"),
        ("limits: { global: { tokens: 5 } }", "limits.global.tokens", "Did you mean: tokens_"),
        ("limits: { global: { concurrent: 1.5 } }", "limits.global.concurrent", "expected a whole number"),
        ("keys: [{ id: a }]", "keys[0].sha256", "expected"),
        ("keys: [{ id: a, sha256: sk-secret }]", "keys[0].sha256", "64 hexadecimal digits"),
        (
            f"keys: [{{ id: a, sha256: '{DIGEST}' }}, {{ id: a, sha256: '{DIGEST}' }}]",
            "keys[1].id",
            "each key once",
        ),
    ],
)
def test_every_mistake_is_answered_with_its_path_and_what_was_expected(
    text: str, path: str, words: str
) -> None:
    with pytest.raises(FileProblem) as found:
        parsed(text)
    problems = found.value.problems
    assert [problem.path for problem in problems] == [path], found.value.lines()
    assert words in "\n".join(found.value.lines())


def test_all_mistakes_are_told_at_once_with_their_lines() -> None:
    with pytest.raises(FileProblem) as found:
        parsed("workers: 0\nopen: 7\nservices:\n  - name: a\n    tries: 99\n")
    assert [(problem.line, problem.path) for problem in found.value.problems] == [
        (1, "workers"),
        (2, "open"),
        (5, "services[0].tries"),
    ]


def test_what_can_only_be_checked_when_all_is_read_is_told_in_the_same_list() -> None:
    """They came one after the other: a variable that is not set, only when everything else was right."""
    text = """workers: 0
services:
  - name: a
    tres: 99
    upstreams:
      - { url: "http://h", credential: "env:NOT_SET_ANYWHERE" }
      - ftp://h
      - { weight: 2 }
  - name: a
limits:
  team:
    red: { token_per_min: -1, concurrent: x }
    blue: { models: { m: { tokens: 5 } } }
"""
    with pytest.raises(FileProblem) as found:
        parsed(text)
    assert [(problem.line, problem.path) for problem in found.value.problems] == [
        (1, "workers"),
        (4, "services[0].tres"),
        (6, "services[0].upstreams[0].credential"),
        (7, "services[0].upstreams[1].url"),
        (8, "services[0].upstreams[2].url"),
        (9, "services[1].name"),
        (11, "limits.team"),
        (12, "limits.team.red.concurrent"),
        (12, "limits.team.red.token_per_min"),
        (13, "limits.team.blue.models.m.tokens"),
    ]
    assert all(problem.suggestion for problem in found.value.problems)


def test_a_workload_file_is_told_as_such_with_what_to_type() -> None:
    with pytest.raises(FileProblem) as found:
        parsed("# web\nkind: service\nname: web\nreplicas: 3\n---\nkind: pool\n")
    (told,) = found.value.lines()
    assert told.startswith("gateway.yaml:2: expected the file of a gateway, got one of workloads")
    assert told.endswith("Try: holdfast apply gateway.yaml")


def test_without_a_file_it_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["holdfast", "gateway"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "--config examples/gateway.yaml" in said
    assert "--control http" in said


def test_the_example_is_good(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["holdfast", "gateway", "-c", str(ROOT / "examples/gateway.yaml"), "--check"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "is good: 1 service, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "credential", "warned"),
    [(0o644, "sk-engine", True), (0o600, "sk-engine", False), (0o644, "env:ENGINE", False)],
)
def test_a_file_with_credentials_that_others_can_read_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: int,
    credential: str,
    warned: bool,
) -> None:
    monkeypatch.setenv("ENGINE", "sk-of-the-environment")
    file = tmp_path / "gateway.yaml"
    upstream = f"{{ url: 'http://127.0.0.1:1', credential: '{credential}' }}"
    file.write_text(f"services: [{{ name: a, upstreams: [{upstream}] }}]\n")
    file.chmod(mode)
    monkeypatch.setattr(
        sys, "argv", ["holdfast", "gateway", "--check", "--config", str(file), "--dir", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 0
    assert (f"warning: {file} has the mode 0644" in said) == warned
    assert (f"hint: chmod 600 {file}, or credential: env:NAME" in said) == warned
    assert "sk-" not in said


def test_a_certificate_must_belong_to_its_key(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.pem", "a.key", "b.pem", "b.key")]
    write(paths, (*self_signed("a"), *self_signed("b")))
    good = f"tls: {{ certificate: {paths[0]}, key: {paths[1]} }}\nupstream_ca: {paths[2]}"
    assert parsed(good).certificate == paths[0]
    with pytest.raises(FileProblem, match="expected a certificate and its key"):
        parsed(good.replace("a.key", "b.key"))
    paths[1].chmod(0o644)
    with pytest.raises(FileProblem, match=f"chmod 600 {paths[1]}"):
        parsed(good)


def test_what_could_not_work_is_told_before_it_starts(tmp_path: Path) -> None:
    text = """
listen: 127.0.0.1:8090
admin: 127.0.0.1:8090
services:
  - { name: a, upstreams: [{ url: "http://127.0.0.1:1" }], probe: health }
  - { name: b, models: [b, a], upstreams: [{ url: "http://127.0.0.1:2" }] }
"""
    with pytest.raises(FileProblem) as found:
        files.parsed(text, "gateway.yaml", tmp_path)
    said = "\n".join(found.value.lines())
    assert "expected another address than listen has" in said
    assert "admin: 127.0.0.1:8091" in said
    assert "expected a path, got health" in said
    assert "expected one service a model, got a of a and of b" in said


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("services: [{ name: a }]", "services[0].upstreams: expected one at least, got none"),
        (
            "services: [{ name: toy, upstreams: ['http://a'] }]\n"
            "limits: { models: { tyo: { concurrent: 1 } } }",
            'limits.models.tyo: expected a model of a service, got "tyo". Did you mean: toy',
        ),
        (
            "services: [{ name: x, models: ['toy-*'], upstreams: ['http://a'] }]\n"
            "limits: { teams: { red: { models: { tpy-1: { concurrent: 1 }, toy-1: { concurrent: 1 } } } } }",
            'limits.teams.red.models.tpy-1: expected a model of a service, got "tpy-1"',
        ),
        (
            "services: [{ name: x, models: ['toy-*'], upstreams: ['http://a'] }]\n"
            "limits: { models: { 'toy-a*': { concurrent: 1 }, 'toy-*': { concurrent: 1 } } }",
            'limits.models.toy-a*: expected a model of a service, got "toy-a*"',
        ),
        (
            "services: [{ name: x, upstreams: ['http://a'] }]\n"
            "limits: { teams: { red: { concurrent: 1 }, ml: { concurrent: 1 }, ml2: {} } }\n"
            f"keys: [{{ id: a, sha256: {DIGEST}, team: rde }}, {{ id: b, sha256: {DIGEST}, team: zz }},"
            f" {{ id: c, sha256: {DIGEST}, team: ml2 }}]",
            'keys[0].team: expected a team of limits.teams, got "rde", which has no limits. Did',
        ),
    ],
)
def test_what_could_answer_or_limit_nobody_is_told_where_nobody_else_says_more(text: str, wrong: str) -> None:
    """Whoever asked waited two minutes for an upstream that nobody had named."""
    assert parsed(text) is not None, "behind a control plane there may be more"
    with pytest.raises(FileProblem) as found:
        files.parsed(text, "gateway.yaml", Path("/state"), alone=True)
    [line] = found.value.lines()
    assert wrong in line


def test_budgets_and_who_is_trusted_are_taken_over() -> None:
    wanted = parsed(
        """
        connections_per_address: 5
        trusted_proxies: ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]
        buffers: 64MiB
        buffers_per_key: 48MiB
        buffers_per_address: 32MiB
        insecure: true
        services: [{ name: a, models: [a], hosts: [h], paths: ["/x/*"], upstreams: ["http://h"] }]
        """
    )
    assert (wanted.connections_per_address, wanted.insecure) == (5, True)
    assert wanted.trusted_proxies == ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32")
    mib = settings.MIB
    found = (wanted.buffers, wanted.buffers_per_key, wanted.buffers_per_address)
    assert found == (64 * mib, 48 * mib, 32 * mib)
    assert wanted.services[0].paths == ("/x/*",)
    large = parsed("body_max: 300MiB\nservices: []")
    assert large.buffers_per_address == large.buffers_per_key == 300 * mib, "one has room"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("trusted_proxies: [10.0.0.1/8]", "expected an address or a network such as"),
        ("trusted_proxies: [lb.example]", "expected an address or a network such as"),
        ("buffers_per_key: 16MiB", "expected room for body_max (32 MiB), got 16 MiB"),
    ],
)
def test_a_budget_without_room_and_what_is_no_network_are_told(text: str, wrong: str) -> None:
    with pytest.raises(FileProblem) as found:
        parsed(f"{text}\nservices: []")
    assert wrong in "\n".join(found.value.lines())
