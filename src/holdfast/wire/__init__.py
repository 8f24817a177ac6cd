"""How agents and control planes talk: messages, frames, and who is who."""
