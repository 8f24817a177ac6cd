"""Which control plane a command asks, as whom, and what it makes of every kind of answer and of none. Here a
little HTTP server answers as it is told; the real one is in tests/integration/test_cli_live.py."""

import json
import os
import socket
from pathlib import Path

import httpx
import pytest

from holdfast.api import shapes
from holdfast.cli.client import address, with_client
from holdfast.cli.client.address import BadAddress, Server
from holdfast.cli.client.http import Client, Unanswered
from tests.cli_rig import Answer, Holdfast, gives, listening, problem
from tests.ports import free_port

# ---- which control plane, and as whom


def note(folder: Path, url: str, token: str = "") -> None:
    (folder / ".holdfast").mkdir()
    (folder / ".holdfast" / "url").write_text(f"{url}\n")
    if token:
        (folder / ".holdfast" / "token").touch(0o600)
        (folder / ".holdfast" / "token").write_text(f"{token}\n")


def test_an_option_goes_before_the_environment_and_that_before_the_files(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1111", "from-file")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    env = {"HOLDFAST_URL": "http://127.0.0.1:2222", "HOLDFAST_TOKEN": "from-env"}
    assert address.server(folder=inside, environment={}) == Server(("http://127.0.0.1:1111",), "from-file")
    assert address.server(folder=inside, environment=env) == Server(("http://127.0.0.1:2222",), "from-env")
    given = address.server("127.0.0.1:3333/", "given", folder=inside, environment=env)
    assert given == Server(("http://127.0.0.1:3333",), "given")


def test_without_anything_it_is_the_usual_place_on_this_machine(tmp_path: Path) -> None:
    assert address.server(folder=tmp_path, environment={}) == Server((address.USUAL,))


def test_the_folder_of_a_control_plane_can_be_named(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1111", "secret")
    env = {"HOLDFAST_DIR": str(tmp_path / ".holdfast")}
    assert address.server(folder=Path("/"), environment=env).token == "secret"


def test_what_login_keeps_is_found_from_everywhere_behind_what_is_nearer(tmp_path: Path) -> None:
    home, near = tmp_path / "home", tmp_path / "near"
    home.mkdir()
    near.mkdir()
    note(home, "http://127.0.0.1:1111")
    environment = {"HOME": str(home)}
    assert address.server(folder=near, environment=environment).urls == ("http://127.0.0.1:1111",)
    note(near, "http://127.0.0.1:2222")
    assert address.server(folder=near, environment=environment).urls == ("http://127.0.0.1:2222",)


def test_a_folder_that_was_named_and_has_no_address_leads_to_no_other_control_plane(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1111", "secret")
    environment = {"HOLDFAST_DIR": str(tmp_path / "none")}
    with pytest.raises(BadAddress, match="no control plane of yours has left its address there"):
        address.server(folder=tmp_path, environment=environment)
    assert address.server("http://127.0.0.1:3", folder=tmp_path, environment=environment).urls


@pytest.mark.parametrize("token", ["tök", "a b\nc", "hf_\x00"])
def test_a_token_with_letters_that_none_has_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(BadAddress, match="letters that no token has"):
        address.server(token=token, folder=tmp_path, environment={})


def test_the_token_of_a_folder_goes_to_no_other_machine(tmp_path: Path) -> None:
    note(tmp_path, "https://here.example:7700", "secret")
    assert address.server(folder=tmp_path, environment={}).token == "secret"
    assert address.server("https://there.example", folder=tmp_path, environment={}).token == ""
    both = "https://here.example:7700,https://there.example"
    assert address.server(both, folder=tmp_path, environment={}).token == ""
    assert address.server("http://localhost:1", folder=tmp_path, environment={}).token == "secret"


def test_a_token_that_others_could_read_is_not_sent_and_what_helps_is_said(
    tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(tmp_path, "http://127.0.0.1:1", "secret")
    (tmp_path / ".holdfast" / "token").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    told = holdfast("status")
    assert told.code == 2
    assert "has the mode 0644" in told.err
    assert "hint: chmod 600 " in told.err
    assert address.server(token="another", folder=tmp_path, environment={}).token == "another"


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("https://there.example", "whoever answers at https://there.example gets the token"),
        ("http://there.example", "http://there.example is plain http: all in between can read the token"),
        ("https://127.0.0.1:1", ""),
    ],
)
def test_a_token_that_goes_to_whoever_answers_is_told_of(
    url: str, warned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_client._warned(address.server(url, "secret", insecure=True, environment={}, folder=Path("/")))
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {warned}") if warned else told == ""
    with_client._warned(address.server("https://there.example", "secret", environment={}, folder=Path("/")))
    assert capsys.readouterr().err == ""


PIN = "sha256:" + "0a" * 32


def test_a_token_brings_its_pin_along_and_goes_over_the_wire_without_it(tmp_path: Path) -> None:
    given = f"hf_secret.{'0a' * 32}"
    found = address.server("https://there.example", given, folder=tmp_path, environment={})
    assert (found.token, found.pin) == ("hf_secret", PIN)
    named = address.server("https://there.example", given, "ca.pem", folder=tmp_path, environment={})
    assert (named.token, named.pin, named.ca) == ("hf_secret", "", "ca.pem")


@pytest.mark.parametrize("token", ["hf_secret.", "hf_secret.0a0a", f"hf_secret.{'0a' * 32}0", "hf.secret"])
def test_a_token_that_was_cut_is_not_taken_for_one_without_a_pin(tmp_path: Path, token: str) -> None:
    with pytest.raises(BadAddress, match="not whole") as error:
        address.server("https://there.example", token, folder=tmp_path, environment={})
    assert error.value.hint == "copy all of it"


def test_the_authority_of_the_fleet_is_known_by_itself_and_one_that_was_given_by_the_host(
    tmp_path: Path,
) -> None:
    note(tmp_path, "https://there.example", "secret")
    (tmp_path / ".holdfast" / "ca.pem").touch()
    found = address.server(folder=tmp_path, environment={})
    assert (found.authority, found.ca) == ("", str(tmp_path / ".holdfast" / "ca.pem"))
    (tmp_path / ".holdfast" / "ca").mkdir()
    (tmp_path / ".holdfast" / "ca" / "ca.pem").touch()
    found = address.server(folder=tmp_path, environment={})
    assert (found.authority, found.ca) == (str(tmp_path / ".holdfast" / "ca" / "ca.pem"), "")


def test_files_of_somebody_else_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(tmp_path, "http://evil.example", "x")
    theirs = os.geteuid() + 1
    for name in ("url", "token"):
        if os.geteuid() == 0:
            os.chown(tmp_path / ".holdfast" / name, theirs, -1)
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: theirs)
    assert address.server(folder=tmp_path, environment={}) == Server((address.USUAL,))


NO_ADDRESSES = ["ftp://a", "http://", "http://a:x", "http://[::1", "http://a:0", " , "]
NO_ADDRESSES += ["http:/a:7700", "http//a", "https:a", "a b", "http://a/?b", "http://a#b", "https://a,b c"]


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_what_is_no_address_is_refused(url: str, holdfast: Holdfast) -> None:
    with pytest.raises(BadAddress):
        address.server(url, environment={})
    told = holdfast("status", "--url", url)
    assert told.code == 2
    assert told.err.startswith("error: expected ")
    assert f"hint: --url {address.USUAL}" in told.err
    told = holdfast("gateway", "--control", url)
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: --control: expected ")
    assert "hint: --control http://127.0.0.1:7700" in told.err


@pytest.mark.parametrize(
    "url", ["a", "a:7700", "https://a_b.c-d/", "http://[::1]:7", "https://[fe80::1%eth0]:7"]
)
def test_what_is_an_address_is_taken(url: str) -> None:
    assert len(address.server(url, environment={}).urls) == 1


def test_an_address_without_a_scheme_means_https_unless_it_is_of_this_machine() -> None:
    named = address.server("cp1:7700,127.0.0.1:7700,localhost,[::1]:7", environment={})
    assert named.urls == ("https://cp1:7700", "http://127.0.0.1:7700", "http://localhost", "http://[::1]:7")


def test_plain_http_to_another_machine_must_be_wanted_and_is_warned_of(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    url = "http://localhost.evil.invalid:7700"
    told = holdfast("status", "--url", url, "--token", "secret")
    assert (told.code, "all in between could read the token" in told.err) == (2, True)
    assert "hint: https://localhost.evil.invalid:7700, or --insecure" in told.err
    assert holdfast("gateway", "--control", url).code == 2
    assert holdfast("keys", "list", "--gateway", url).code == 2
    told = holdfast("status", "--url", url, "--token", "secret", "--insecure")
    assert "warning: http://localhost.evil.invalid:7700 is plain http" in told.err
    note(tmp_path, url, "secret")
    assert address.server(folder=tmp_path, environment={}).urls == (url,), "whoever noted it wanted it"


# ---- what can go wrong on the way


def test_nobody_there_is_said_with_what_to_do(holdfast: Holdfast) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    told = holdfast("status", "--url", url)
    assert told.code == 1
    assert told.err == f"error: cannot connect to {url}: connection refused\n" + (
        "hint: is it running? start one with: holdfast up\n"
    )


@pytest.mark.parametrize(
    ("answer", "code", "error", "hint"),
    [
        (problem(401, "a token is needed", "send it as: Authorization"), 2, "a token is needed", "--token"),
        (problem(401, "the token has expired"), 2, "the token has expired", "$HOLDFAST_TOKEN"),
        (problem(403, "it takes an operator"), 2, "it takes an operator", ""),
        (problem(404, "there is no node called x", "Did you mean: y"), 2, "no node called x", "y"),
        (problem(409, "it is a job"), 2, "it is a job", ""),
        (problem(422, "wrong", problems=["a: bad", "b: bad"]), 2, "a: bad\nerror: b: bad", ""),
        (problem(503, "nobody leads", "try again"), 1, "nobody leads", "try again"),
        (problem(507, "the disk is full"), 1, "the disk is full", ""),
        ((502, {}, b"<html>bad gateway"), 1, "what is there is no control plane", "--url"),
        ((301, {"Location": "http://x.example/"}, b""), 1, "it sends us to http://x.example/", "--url"),
        ((200, {}, b"<html>hello"), 1, "the answer cannot be read", "another version"),
        ((200, {}, b'{"leader": 3}'), 1, "the answer cannot be read", "another version"),
    ],
)
def test_every_bad_answer_is_an_error_and_a_hint(
    holdfast: Holdfast, answer: Answer, code: int, error: str, hint: str
) -> None:
    with listening(lambda method, path: answer) as server:
        told = holdfast("status", "--url", server.url)
    assert (told.code, told.out) == (code, "")
    assert f"error: {error}" in told.err or error in told.err
    assert hint in told.err
    assert "Authorization" not in told.err


def test_a_connection_that_breaks_is_no_traceback(holdfast: Holdfast) -> None:
    with listening(lambda method, path: (200, {"Content-Length": "100"}, b"{")) as server:
        told = holdfast("nodes", "--url", server.url)
    assert told.code == 1
    assert told.err.startswith("error: the connection broke")


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = Client(Server((f"http://127.0.0.1:{silent.getsockname()[1]}",)), answer_s=0.2)
        with pytest.raises(Unanswered, match="took too long") as caught:
            api.get("/v1/status")
        api.close()
    assert caught.value.may_pass


def test_an_order_follows_to_the_leader_with_the_token_and_stays_there() -> None:
    with (
        listening(lambda method, path: gives({"done": path})) as leader,
        listening(lambda method, path: (307, {"Location": f"{leader.url}{path}"}, b"")) as other,
    ):
        api = Client(Server((other.url,), "secret"))
        body = api.post("/v1/workloads/web/scale", {"count": 3})
        api.get("/v1/status", limit=1)
        api.close()
    assert json.loads(body) == {"done": "/v1/workloads/web/scale"}
    assert [asked[:2] for asked in leader.asked] == [
        ("POST", "/v1/workloads/web/scale"),
        ("GET", "/v1/status?limit=1"),
    ]
    assert leader.asked[0][3] == b'{"count":3}'
    assert leader.authorized == ["Bearer secret"] * 2
    assert len(other.asked) == 1


def test_a_query_is_not_doubled_on_the_way_to_the_leader() -> None:
    with (
        listening(lambda method, path: gives([])) as leader,
        listening(lambda method, path: (307, {"Location": f"{leader.url}{path}"}, b"")) as other,
    ):
        api = Client(Server((other.url,)))
        api.get("/v1/replicas", workload="a b", node="")
        api.close()
    assert [asked[1] for asked in leader.asked] == ["/v1/replicas?workload=a+b"]


def test_control_planes_that_send_us_in_a_circle_are_told() -> None:
    with listening(lambda method, path: (307, {"Location": path}, b"")) as server:
        api = Client(Server((server.url,)), order_s=0)
        with pytest.raises(Unanswered, match="in a circle"):
            api.post("/v1/workloads/web/pause")
        api.close()
        assert len(server.asked) == 4


def test_an_order_waits_for_the_next_leader_and_a_question_does_not(holdfast: Holdfast) -> None:
    asked = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal asked
        asked += 1
        return gives(shapes.Done("x")) if method == "POST" and asked == 3 else problem(503, "nobody leads")

    with listening(answer) as server:
        told = holdfast("pause", "web", "--url", server.url)
        assert (told.code, told.out, asked) == (0, "web is paused\n", 3)
        assert holdfast("nodes", "--url", server.url).code == 1
        assert asked == 4


@pytest.mark.parametrize("words", [("chaos", "kill", "a"), ("token", "create", "--role", "read")])
def test_what_would_be_done_twice_is_not_repeated(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    with listening(lambda method, path: problem(503, "it took too long")) as server:
        assert holdfast(*words, "--url", server.url).code == 1
        assert len(server.asked) == 1


def test_a_token_does_not_go_from_https_to_plain_http() -> None:
    api = Client(Server(("https://a.example",), "secret"))
    assert api.headers("https://b.example/v1/status") == {"Authorization": "Bearer secret"}
    assert api.headers("http://b.example/v1/status") == {}
    api.close()


def test_the_next_of_several_control_planes_is_asked_when_one_is_away() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with listening(lambda method, path: gives([])) as server:
        api = Client(Server((away, server.url)))
        assert api.get("/v1/nodes") == b"[]"
        assert api.base == server.url
        api.close()
    api = Client(Server((away, server.url)))
    with pytest.raises(Unanswered, match="cannot connect"):
        api.get("/v1/nodes")
    api.close()


def test_certificates_that_cannot_be_read_are_told(holdfast: Holdfast, tmp_path: Path) -> None:
    told = holdfast("status", "--url", "https://127.0.0.1:1", "--ca", tmp_path / "none.pem")
    assert told.code == 2
    assert "none.pem: expected certificates, got: No such file" in told.err


def test_http_and_https_that_were_mixed_up_are_told(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives([])) as server:
        told = holdfast("nodes", "--url", server.url.replace("http", "https"), "--insecure")
    assert told.code == 2
    assert f"{server.url.replace('http', 'https')} speaks plain http, and no TLS" in told.err
    assert f"hint: {server.url}" in told.err


def test_a_hint_fits_the_address_that_cannot_be_reached() -> None:
    error = httpx.ConnectError("refused")
    here = Client(Server(("http://127.0.0.1:7700", "http://[::1]:7700"))).unreached(error)
    there = Client(Server(("http://127.0.0.1:7700", "https://cp1.example.org:7700"))).unreached(error)
    assert here.hint == "is it running? start one with: holdfast up"
    assert "holdfast up" not in there.hint
    assert "--url names another" in there.hint
