"""What of the control plane's environment is passed on to what it starts."""

from holdfast.adapters.providers.inherited import inherited, may_be_inherited

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_SESSION_TOKEN": "s",
    "PGPASSWORD": "s",
    "GITHUB_TOKEN": "s",
    "HTTPS_PROXY": "http://user:s@proxy",
    "HOLDFAST_DATABASE": "postgresql://me:s@db/holdfast",
    "HOLDFAST_TOKEN": "s",
    "HOLDFAST_JOIN_TOKEN": "s",
    "SOMETHING_NEW": "s",
}
USUAL = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "LC_TIME": "C",
    "TZ": "UTC",
    "TMPDIR": "/scratch",
    "CUDA_VISIBLE_DEVICES": "0,1",
}


def test_only_what_is_listed_is_passed_on() -> None:
    assert inherited((), USUAL | SECRETS) == USUAL


def test_what_is_named_besides_is_passed_on_if_it_is_there() -> None:
    assert inherited(("SOMETHING_NEW", "NOT_THERE"), USUAL | SECRETS) == USUAL | {"SOMETHING_NEW": "s"}


def test_what_is_said_to_this_program_alone_cannot_be_named() -> None:
    assert inherited(("HOLDFAST_DATABASE",), SECRETS) == {}
    assert not may_be_inherited("HOLDFAST_TOKEN")
    assert not may_be_inherited("A=b")
    assert not may_be_inherited("")
    assert may_be_inherited("KRB5CCNAME")
