"""A table of the file for a struct of the domain, made from the struct itself so that the two cannot drift.

The table says `lease = "20s"` where the struct has `lease_ms`: a unit in the name is for programs, a unit in
the value for people. A float whose default is at most one is a share. What is read arrives as the struct.
"""

import enum
from functools import cached_property
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from holdfast.files import values
from holdfast.files.values import Leaf


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


_STRUCTS: dict[type[BaseModel], type[msgspec.Struct]] = {}


def mirrored_by(model: type[BaseModel]) -> type[msgspec.Struct] | None:
    """The struct that a table was made from."""
    return _STRUCTS.get(model)


class Mirror:
    def __init__(self, struct: type[msgspec.Struct], *, least_ms: int = 0, **instead: Leaf) -> None:
        self.struct, self.least_ms, self.instead = struct, least_ms, instead

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._build, handler.generate_schema(self.model))

    def _build(self, table: BaseModel) -> msgspec.Struct:
        given = {self.fields[name]: getattr(table, name) for name in table.model_fields_set}
        return self.struct(**given)

    @cached_property
    def fields(self) -> dict[str, str]:
        """The name in the file -> the name in the struct."""
        return {plain(name): name for name in self.struct.__struct_fields__}

    @cached_property
    def model(self) -> type[BaseModel]:
        types = get_type_hints(self.struct)
        columns: dict[str, Any] = {}
        for field in msgspec.structs.fields(self.struct):
            name, default = plain(field.name), default_of(field)
            kind = self.instead.get(name) or self._kind(field.name, types[field.name], default)
            columns[name] = (Annotated[types[field.name], kind], ... if field.required else default)
        model = create_model(self.struct.__name__, __base__=Strict, **columns)
        _STRUCTS[model] = self.struct
        return model

    def _kind(self, name: str, type_: Any, default: object) -> "Leaf | Mirror":
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            return Mirror(type_, least_ms=self.least_ms)
        return _leaf(name, type_, default, self.least_ms).like(default)


def _leaf(name: str, type_: Any, default: object, least_ms: int) -> Leaf:
    if name.endswith("_ms") or name == "at":
        return values.duration(least_ms if default else 0)
    if name.endswith("_micro_usd"):
        return values.DOLLARS
    if type_ is float:
        return values.SHARE if isinstance(default, float) and default <= 1 else values.number(0, 1000, "6")
    if isinstance(type_, type) and issubclass(type_, enum.StrEnum):
        return values.choice(type_)
    if get_origin(type_) is tuple:
        return values.NAMES
    return {bool: values.FLAG, int: values.whole(), str: values.TEXT}[type_]


def plain(name: str) -> str:
    """The name of a field in the file."""
    return name.removesuffix("_ms").removesuffix("_micro_usd")


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """None: it must be given, or nothing is what it is without."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None
