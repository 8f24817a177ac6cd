"""Provider profiles: what pools may have of the control plane's own host."""
