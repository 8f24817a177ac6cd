"""Stores: one implementation over SQL, for SQLite and for PostgreSQL."""

from holdfast.adapters.stores.open import open_database, open_store, read_store, sqlite_path, unverified
from holdfast.adapters.stores.registry import SqlRegistry
from holdfast.adapters.stores.store import SqlStore

__all__ = [
    "SqlRegistry",
    "SqlStore",
    "open_database",
    "open_store",
    "read_store",
    "sqlite_path",
    "unverified",
]
