import pytest

# Suites that test modules subclass: their asserts explain themselves only when rewritten before the first import.
pytest.register_assert_rewrite("tests.contract.store_contract")
