"""What an agent is told at its start, and what it says when that makes no sense."""

import inspect
import sys
from pathlib import Path

import pytest

from holdfast.agent import settings
from holdfast.agent.home import Unusable
from holdfast.agent.settings import Url, join_token, read, read_urls
from holdfast.cli.commands import agent as cli_agent
from holdfast.model.place import Place

JOIN = ("--join", "https://10.0.0.1:7700")


def test_everything_can_be_said() -> None:
    told = read(
        [
            *("--join", "http://a:7700,https://b", "--join", "c:1"),
            *("--name", "n-1", "--root", "x", "--token", "t", "--pool", "p"),
            *("--offer", "m5.large@us-east-1a:spot"),
            *("--place", "aws/eu/a/r1", "--cpus", "1.5", "--memory", "2048", "--gpus", "8"),
            *("--gpu-kind", "h100", "--address", "10.0.0.2", "--allow-chaos", "--ca", "ca.pem"),
            *("--insecure", "--checkpoints", "y", "--log-json", "--stop-all-on-exit"),
        ],
        {},
    )
    assert told.join == (Url("http", "a", 7700), Url("https", "b", 443), Url("https", "c", 1))
    assert (told.name, told.token, told.pool, told.offer) == ("n-1", "t", "p", "m5.large@us-east-1a:spot")
    assert (told.root, told.checkpoints) == (Path("x").absolute(), Path("y").absolute())
    assert told.place == Place("aws", "eu", "a", "r1")
    assert (told.cpu_milli, told.memory_mib, told.gpus, told.gpu_kind) == (1500, 2048, 8, "h100")
    assert (told.address, told.ca) == ("10.0.0.2", Path("ca.pem"))
    assert told.allow_chaos
    assert told.insecure
    assert told.log_json
    assert told.stop_all_on_exit


def test_an_address_without_a_scheme_means_https_unless_it_is_of_this_machine() -> None:
    told = read(["--join", "cp1:7700,127.0.0.1:7700,localhost:1,[::1]:7,10.0.0.1"], {})
    assert [str(url) for url in told.join] == [
        "https://cp1:7700",
        "http://127.0.0.1:7700",
        "http://localhost:1",
        "http://[::1]:7",
        "https://10.0.0.1:443",
    ]


@pytest.mark.parametrize("host", ["cp1:7700", "10.0.0.1:7700", "127.0.0.1.example.org", "localhost.evil:1"])
def test_plain_http_to_another_machine_must_be_wanted(host: str) -> None:
    words = ("--join", f"https://fine.example,http://{host}")
    with pytest.raises(Unusable, match=f"http://{host}.* is plain http") as problem:
        read(words, {})
    assert "--insecure" in problem.value.hint
    assert read((*words, "--insecure"), {}).join[1].plain


def test_only_whom_to_join_must_be_said() -> None:
    told = read(JOIN, {"XDG_STATE_HOME": "/state", settings.TOKEN_VARIABLE: "secret"})
    assert told.name
    assert told.root == Path("/state/holdfast/nodes") / told.name
    assert told.checkpoints == told.root / "checkpoints"
    assert told.token == "secret"
    assert (told.place, told.cpu_milli, told.memory_mib, told.gpus) == (None, None, None, None)


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ((), "nobody to join"),
        (("--join", ""), "nobody to join"),
        (("--join", "ftp://a"), "ftp://a"),
        (("--join", "http://a:99999"), "http://a:99999"),
        (("--join", "http://a:x"), "http://a:x"),
        (("--join", "http://user@a:1"), "user@a"),
        (("--join", "http://a/v1/link"), "v1/link"),
        (("--join", "http://"), "http://"),
        (("--join", "http://[::1"), "no address of a control plane"),
        ((*JOIN, "--name", "-x"), "--name"),
        ((*JOIN, "--name", "a b"), "a b"),
        ((*JOIN, "--name", "a" * 64), "aaa"),
        ((*JOIN, "--place", "a//b"), "a//b"),
        ((*JOIN, "--place", "a/b/c/d/e"), "a/b/c/d/e"),
        ((*JOIN, "--cpus", "0"), "processors"),
        ((*JOIN, "--cpus", "nan"), "processors"),
        ((*JOIN, "--cpus", "1e400"), "processors"),
        ((*JOIN, "--memory", "4GiB"), "4GiB"),
        ((*JOIN, "--memory", "-1"), "--memory"),
        ((*JOIN, "--gpus", "half"), "half"),
        ((*JOIN, "--token", "a", "--token-file", "b"), "twice"),
        ((*JOIN, "--nome", "x"), "--nome"),
        ((*JOIN, "extra"), "extra"),
    ],
)
def test_what_makes_no_sense_is_named_with_a_hint(words: tuple[str, ...], about: str) -> None:
    with pytest.raises(Unusable) as problem:
        read(words, {})
    assert about in str(problem.value)
    assert "\n" not in str(problem.value)
    assert problem.value.hint


def test_what_others_tell_us_of_may_be_anything() -> None:
    assert read_urls("http://a:1 nonsense:x ftp://b //// http://[::1 https://c:2/") == (
        Url("http", "a", 1),
        Url("https", "c", 2),
    )
    assert read_urls("") == ()


def test_an_address_is_written_as_it_is_read() -> None:
    assert [str(url) for url in read_urls("http://[::1]:7700 https://h")] == [
        "http://[::1]:7700",
        "https://h:443",
    ]
    assert [
        url.loopback for url in read_urls("http://[::1]:1 http://localhost http://127.0.0.3 http://a")
    ] == [
        True,
        True,
        True,
        False,
    ]


def test_the_token_of_a_file_is_needed_until_the_node_has_joined(tmp_path: Path) -> None:
    told = read((*JOIN, "--token-file", str(tmp_path / "token")), {settings.TOKEN_VARIABLE: "another"})
    with pytest.raises(Unusable, match="cannot be read"):
        join_token(told, joined=False)
    assert join_token(told, joined=True) == ""
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("from the file\n")
    assert join_token(told, joined=False) == "from the file"


def test_a_token_file_that_others_could_read_is_refused_until_the_node_has_joined(tmp_path: Path) -> None:
    """Afterwards it is of no use, and a restart must not fail by it."""
    told = read((*JOIN, "--token-file", str(tmp_path / "token")), {})
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(Unusable, match="has the mode 0644") as problem:
        join_token(told, joined=False)
    assert problem.value.hint.startswith(f"chmod 600 {tmp_path / 'token'}")
    assert join_token(told, joined=True) == ""


@pytest.mark.parametrize("token", ["hfj_a.", "hfj_a.0a0a", "hfj_a.nonsense"])
def test_a_join_token_that_was_cut_is_not_taken_for_one_without_a_pin(token: str) -> None:
    with pytest.raises(Unusable, match="not whole"):
        join_token(read((*JOIN, "--token", token), {}), joined=False)


def test_a_token_of_another_role_is_not_sent_to_whoever_answers() -> None:
    with pytest.raises(Unusable, match="no join token") as refused:
        join_token(read((*JOIN, "--token", "hf_an-operators"), {}), joined=False)
    assert "hf_an-operators" not in str(refused.value)
    assert "--role join" in refused.value.hint


def test_what_runs_here_does_not_inherit_the_token() -> None:
    environment = {settings.TOKEN_VARIABLE: "secret", "PATH": "/bin"}
    settings.forget_secrets(environment)
    assert environment == {"PATH": "/bin"}


# the command that becomes the agent


def test_the_command_takes_every_option_of_the_agent_and_no_other() -> None:
    theirs = {"--" + name.replace("_", "-") for name in inspect.signature(cli_agent.agent).parameters}
    ours = {word for action in settings.parser()._actions for word in action.option_strings}
    assert theirs == ours - {"-h", "--help"}
    assert cli_agent.TOKEN_VARIABLE == settings.TOKEN_VARIABLE


def test_the_command_hands_over_what_was_said_and_only_that() -> None:
    told = {
        "join": "http://a:1",
        "name": "-n",
        "cpus": None,
        "pool": "",
        "allow_chaos": True,
        "insecure": False,
    }
    words = cli_agent.command(told)
    assert words == [
        sys.executable,
        "-m",
        "holdfast.agent",
        "--join=http://a:1",
        "--name=-n",
        "--allow-chaos",
    ]
