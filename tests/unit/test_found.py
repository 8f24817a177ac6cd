"""Which providers there are, and what a person is told of one that cannot be had."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.adapters.providers import found
from holdfast.adapters.providers.join import JoinProvider
from holdfast.files.problem import FileProblem
from holdfast.files.workload.workload_file import documents
from holdfast.model.pool import Pool
from holdfast.ports.errors import Denied, Unreachable
from holdfast.ports.provider import Join
from tests.how_to import blocks, install, install_documented

MODULE = """
from holdfast.adapters.providers.settings import Kind, Settings
from holdfast.adapters.providers.join import JoinProvider
from holdfast.ports.errors import Unreachable

class Good(JoinProvider):
    takes = None

    def __init__(self, settings, credentials):
        self.settings = settings

class Picky(Good):
    def __init__(self, settings, credentials):
        int(settings["size"])

class Broken(Good):
    def __init__(self, settings, credentials):
        1 / 0

class Leaving(Good):
    def __init__(self, settings, credentials):
        raise SystemExit("it needs a licence")

class Away(Good):
    def __init__(self, settings, credentials):
        raise Unreachable("the cloud is down")

class Declaring(Good):
    takes = Settings({
        "size": Kind("a number", "3", int, needed=True),
        "strange": Kind("nothing", "-", lambda text: [][3]),
    })

class Half:
    def __init__(self, settings, credentials): ...
    async def launch(self, request): ...
    list = None

number = 7
"""
PROJECT = """
[project]
name = "theirs"
version = "1"
[project.entry-points."holdfast.providers"]
"""

Install = Callable[..., None]


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with these entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("theirs", "holdfast_folders"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def put(module: str = MODULE, **points: str) -> None:
        install(tmp_path, PROJECT + "\n".join(f'{k} = "{v}"' for k, v in points.items()), theirs=module)

    return put


async def credentials(node: str) -> Join:
    raise AssertionError("nothing is launched here")


def made(provider: str, **settings: str) -> object:
    return found.made_of(Pool("mine", provider, (), settings=settings), credentials)


def refusal(provider: str, **settings: str) -> str:
    with pytest.raises(Denied) as denied:
        made(provider, **settings)
    return str(denied.value)


def test_a_provider_of_others_is_called_with_the_settings_of_its_pool(theirs: Install) -> None:
    theirs(good="theirs:Good")
    one = made("good", size="3")
    assert isinstance(one, JoinProvider)
    assert one.settings == {"size": "3"}  # type: ignore[attr-defined]


def test_none_is_loaded_before_a_pool_asks_for_it(theirs: Install) -> None:
    theirs(good="theirs:Good", broken="theirs:Broken")
    assert set(found.others()) >= {"good", "broken"}
    assert "theirs" not in sys.modules


def test_ours_keep_their_names(theirs: Install) -> None:
    theirs(join="theirs:Broken", local="theirs:Broken", ec2="theirs:Broken", good="theirs:Good")
    assert not set(found.others()) & {"join", "local", "ec2"}
    assert type(made("join")) is JoinProvider


def test_a_name_that_nobody_has_is_told_with_those_there_are(theirs: Install) -> None:
    theirs(good="theirs:Good")
    told = refusal("goood")
    assert told.startswith("there is no provider called goood here; there is: local, join, ssh, ec2, slurm")
    assert "good" in told.partition("there is: ")[2].split(", ")


@pytest.mark.parametrize(
    ("name", "library", "settings", "told"),
    [
        (
            "ssh",
            "asyncssh",
            {"hosts": '[{"name": "n1", "address": "n1"}]'},
            "asyncssh: pip install 'holdfast[ssh]'",
        ),
        (
            "ec2",
            "boto3",
            {"regions": "us-east-1", "image": "ami-1", "install": "holdfast"},
            "boto3: pip install 'holdfast[aws]'",
        ),
    ],
)
async def test_a_library_that_is_missing_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, library: str, settings: dict[str, str], told: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    pool = Pool("mine", name, (), settings=settings)
    with pytest.raises(Denied) as denied:
        await found.made_of(pool, credentials).list("mine")
    assert str(denied.value).endswith(told)


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("nowhere:Thing", "cannot be loaded: No module named 'nowhere'"),
        ("theirs:Missing", "cannot be loaded: AttributeError: module 'theirs' has no attribute 'Missing'"),
        ("not a path", "cannot be loaded: "),
        ("theirs:number", "cannot be made: its entry point is nothing to call"),
        ("theirs:Leaving", "cannot be made: SystemExit: it needs a licence"),
        ("theirs:Broken", "cannot be made: ZeroDivisionError: division by zero"),
        ("theirs:Picky", "cannot be made: KeyError: 'size'"),
        ("theirs:Half", "cannot be used: it has no terminate, reset, state, list, offers"),
    ],
)
def test_an_entry_point_that_is_no_provider_is_denied_and_says_why(
    theirs: Install, point: str, told: str
) -> None:
    theirs(bad=point)
    assert refusal("bad").startswith(f"the provider bad {told}")


@pytest.mark.parametrize(
    "module", ["1 / 0", "def (", "raise OSError('no disk')", "import sys; sys.exit('no such platform')"]
)
def test_a_module_that_fails_while_it_is_loaded_is_denied(theirs: Install, module: str) -> None:
    theirs(module, bad="theirs:Thing")
    assert refusal("bad").startswith("the provider bad cannot be loaded: ")


def test_settings_that_do_not_make_sense_are_the_pools_fault(theirs: Install) -> None:
    theirs(picky="theirs:Picky")
    assert refusal("picky", size="big").startswith("the settings of mine cannot be used: invalid literal")


def test_a_provider_of_others_declares_its_settings_and_mistakes_are_told_in_the_file(
    theirs: Install,
) -> None:
    theirs(declaring="theirs:Declaring")
    text = "kind: pool\nname: mine\nprovider: declaring\nnodes: 1\nsettings: {{ {} }}"
    documents(text.format("size: 3"), "f.yaml")
    for settings, told in {
        "sise: 3, size: 3": "f.yaml:5: settings.sise: expected a setting that its provider knows, "
        "got another. Did you mean: size",
        "size: big": "f.yaml:5: settings.size: expected a number, got big. Try: size: 3",
        "": "f.yaml:5: settings.size: expected a number, got nothing. Try: size: 3",
    }.items():
        with pytest.raises(FileProblem) as problem:
            documents(text.format(settings), "f.yaml")
        assert problem.value.lines() == [told]
    assert (
        refusal("declaring", size="big")
        == "the settings of mine cannot be used: size: expected a number, got big"
    )


def test_a_provider_that_fails_while_it_is_asked_of_its_settings_keeps_no_file_from_being_read(
    theirs: Install,
) -> None:
    theirs(declaring="theirs:Declaring", absent="nowhere:Thing")
    assert found.wrong_settings("declaring", {"size": "3", "strange": "x"}, ()) == []
    assert found.wrong_settings("absent", {"size": "3"}, ()) == []
    assert refusal("declaring", size="3", strange="x").startswith(
        "the provider declaring cannot be made: IndexE"
    )


def test_an_error_of_the_port_is_what_it_says(theirs: Install) -> None:
    theirs(away="theirs:Away")
    with pytest.raises(Unreachable, match="the cloud is down"):
        made("away")


def test_the_documented_one_is_found(theirs: Install, tmp_path: Path) -> None:
    install_documented(tmp_path)
    assert "folders" in found.others()
    assert type(made("folders", root="/nowhere", most="4")).__name__ == "FolderProvider"
    assert "most" in blocks()["yaml"]


def test_of_one_that_declares_nothing_every_setting_comes_from_a_profile(theirs: Install) -> None:
    """What they name, nobody knows."""
    theirs(good="theirs:Good", declaring="theirs:Declaring")
    assert found.of_host("good", {"size": "3"}) == {"size": "3"}
    assert found.of_host("declaring", {"size": "3"}) == {}
    with pytest.raises(Denied, match="there is no provider called absent"):
        found.of_host("absent", {"size": "3"})
