import pytest

# Before anything imports the suite: its assertions then show the values they compare.
pytest.register_assert_rewrite("steering_gateway_testing.store_conformance")
