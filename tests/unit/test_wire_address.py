import pytest

from holdfast.wire.address import is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here
