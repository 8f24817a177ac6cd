"""Libraries that not everybody has installed: whoever needs one is told how to get it."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from holdfast.ports.errors import Denied


class Library:
    def __init__(self, name: str, needs: str) -> None:
        """`needs`: who needs it, and what to install."""
        self.name, self.needs = name, needs

    def insist(self) -> None:
        """Before anything is wanted of it; to load it would hold up whoever else is served."""
        if find_spec(self.name) is None:
            raise Denied(self.needs)

    def load(self) -> Any:
        try:
            return import_module(self.name)
        except ImportError as error:
            raise Denied(self.needs) from error
