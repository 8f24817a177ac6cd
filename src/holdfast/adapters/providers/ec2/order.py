"""Which words make a machine of a LaunchNode, and how a machine is known again.

Everything by which we know it is in the request itself: tags that are added afterwards are missing from a
machine whose launch nobody finished. The client token is made from the node's id, so EC2 itself sees to it
that asking again, from whichever control plane, is the same machine. Nothing goes in that may differ when the
next leader asks again (why it was launched, which plan it was): EC2 would take that for another request.
"""

import hashlib
from typing import Any

from holdfast.adapters.providers.ec2.settings import TYPE, Ec2Settings, of_region, write
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.ports.errors import Denied

FLEET, NODE, POOL, OFFER = "holdfast:fleet", "holdfast:node", "holdfast:pool", "holdfast:offer"
TAGGED = ("instance", "volume", "network-interface")
ONCE = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}

Words = dict[str, Any]


def instance_type(offer: str) -> str:
    """`m5.large@us-east-1a:spot` is of type m5.large. Empty: the offer names no type."""
    name = offer.partition("@")[0]
    return name if TYPE.fullmatch(name) else ""


def token(fleet: str, node: str) -> str:
    """EC2 takes 64 characters."""
    return f"holdfast-{hashlib.sha256(f'{fleet}/{node}'.encode()).hexdigest()[:48]}"


def zone_of(place: Place) -> str:
    """The zone's whole name, also when only its letter was written; empty: any."""
    if place.zone in ("", "-"):
        return ""
    return place.zone if place.zone.startswith(place.region) else f"{place.region}{place.zone}"


def run_words(request: LaunchNode, settings: Ec2Settings, user_data: str) -> Words:
    """For RunInstances."""
    region = request.place.region
    if region not in settings.regions:
        known = ", ".join(settings.regions)
        raise Denied(f"{region} is none of the pool's regions ({known}): {write('regions')}")
    kind = instance_type(request.offer)
    if not kind:
        raise Denied(f"{request.offer} names no instance type: call offers TYPE@ZONE, as m5.large@us-east-1a")
    words: Words = {
        "ImageId": of_region(settings.image, region)[0],
        "InstanceType": kind,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token(settings.fleet, request.node),
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "TagSpecifications": _tags(request, settings),
        **_where(request.place, settings),
    }
    if request.spot:
        most = request.price_max_micro_usd
        ceiling = {"MaxPrice": f"{most / 1_000_000:.6f}"} if most else {}
        words["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {**ONCE, **ceiling}}
    if groups := of_region(settings.security_groups, region):
        words["SecurityGroupIds"] = list(groups)
    if keys := of_region(settings.key_name, region):
        words["KeyName"] = keys[0]
    return words


def _where(place: Place, settings: Ec2Settings) -> Words:
    zone = zone_of(place)
    if not settings.subnets:
        return {"Placement": {"AvailabilityZone": zone}} if zone else {}
    for known, subnets in settings.subnets.items():
        if known == zone or (not zone and known.startswith(place.region)):
            return {"SubnetId": subnets[0]}
    raise Denied(f"there is no subnet for {zone or place.region}: {write('subnets')}")


def _tags(request: LaunchNode, settings: Ec2Settings) -> list[Words]:
    said = {
        **settings.tags,
        "Name": f"{settings.fleet} {request.node}",
        FLEET: settings.fleet,
        NODE: request.node,
        POOL: request.pool,
        OFFER: request.offer,
    }
    tags = [{"Key": key, "Value": value} for key, value in said.items()]
    kinds = (*TAGGED, *(("spot-instances-request",) if request.spot else ()))
    return [{"ResourceType": kind, "Tags": tags} for kind in kinds]


# knowing it again


def filters(**of: str) -> list[Words]:
    """`filters(node="n1", fleet="prod")`: by our tags."""
    return [{"Name": f"tag:holdfast:{name}", "Values": [value]} for name, value in of.items()]


def in_states(*states: str) -> list[Words]:
    return [{"Name": "instance-state-name", "Values": list(states)}]


def instances(answer: Words) -> list[Words]:
    return [each for group in answer.get("Reservations", []) for each in group["Instances"]]


def node_of(instance: Words) -> str:
    return next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == NODE), "")


def state_of(instance: Words) -> str:
    return str(instance["State"]["Name"])
