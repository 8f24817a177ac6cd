"""The gateway: the way in for those who ask the services that holdfast keeps up, or any other upstream."""
