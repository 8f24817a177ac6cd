"""What may be spent, and what has been."""

import msgspec

from holdfast.model.units import Instant, MicroUsd

UsdTime = int  # micro-dollars an hour, times milliseconds: sums of it are exact


class Budget(msgspec.Struct, frozen=True):
    """Hard limits. None: there is no limit; 0: nothing may cost anything."""

    hour_micro_usd: MicroUsd | None = None  # what all that is there may cost an hour
    month_micro_usd: MicroUsd | None = None  # what a calendar month may cost, by UTC


class Account(msgspec.Struct, frozen=True):
    """What the nodes of a pool cost: settled up to `as_of`, and going on at `rate_micro_usd` an hour."""

    pool: str
    rate_micro_usd: MicroUsd = 0
    as_of: Instant = 0
    month_from: Instant = 0
    spent_month: UsdTime = 0  # since `month_from`
    spent: UsdTime = 0  # since ever
