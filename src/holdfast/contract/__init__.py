"""Tests that an adapter must pass, for those who write one outside of this repository."""

import pytest

pytest.register_assert_rewrite("holdfast.contract.provider")  # so that a failure shows both sides
