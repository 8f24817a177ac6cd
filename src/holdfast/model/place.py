"""Where a node is: its failure domains, widest first."""

import enum

import msgspec


class Level(enum.StrEnum):
    PROVIDER = "provider"
    REGION = "region"
    ZONE = "zone"
    RACK = "rack"
    NODE = "node"


LEVELS: tuple[Level, ...] = (Level.PROVIDER, Level.REGION, Level.ZONE, Level.RACK)


class Place(msgspec.Struct, frozen=True, cache_hash=True):
    provider: str
    region: str = "-"
    zone: str = "-"
    rack: str = "-"

    def domain(self, level: Level) -> str:
        """The name of the failure domain at this level, as a path so that equal names in two regions
        differ."""
        match level:
            case Level.PROVIDER:
                return self.provider
            case Level.REGION:
                return f"{self.provider}/{self.region}"
            case Level.ZONE:
                return f"{self.provider}/{self.region}/{self.zone}"
            case Level.RACK | Level.NODE:
                return f"{self.provider}/{self.region}/{self.zone}/{self.rack}"
