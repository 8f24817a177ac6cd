"""May this join token enrol this node? The same answer in every registry, and in the simulator's twin."""

from holdfast.ports.registry import Identity, Role, Token


def unfit(token: Token | None, identity: Identity) -> str:
    """Why not; empty: it may. The time is that of the enrolment."""
    if token is None or token.role is not Role.JOIN:
        return "this join token is not known"
    if token.used_by:
        return f"this join token was used by {token.used_by}"
    if token.expires_at and token.expires_at <= identity.enrolled_at:
        return "this join token has expired"
    if token.node and token.node != identity.node:
        return f"this join token is for {token.node}"
    if token.pool and token.pool != identity.pool:
        return f"this join token is for the pool {token.pool}"
    return ""
