"""Tenants: the keys that workers accept, and what each may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import tenants
from producer import config, errors

SECRET = "s3cret-" * 6
ONE: dict[str, Any] = {"keyId": "host-a", "secret": SECRET, "tenant": "acme"}


@pytest.fixture
def producer(tmp_path) -> config.ProducerConfig:
    return config.load({"MEMORY_STATE_DIR": str(tmp_path / "state")})


def written(tmp_path: Path, *entries: Any, mode: int = 0o600) -> Path:
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps(list(entries)))
    path.chmod(mode)
    return path


def test_without_a_file_the_one_key_of_the_environment_may_do_everything(producer):
    given = tenants.Tenants.load(producer, None)
    assert given.secret_of("local") == producer.producer_key.encode()
    assert given.tenant_of("local") == "local"
    assert given.grant_of("local").operator
    assert given.grant_of("local").allows("any", "profile")
    assert given.stores() == {"local": (producer.store_url, "")}


def test_a_file_names_keys_their_tenants_and_limits(producer, tmp_path):
    path = written(
        tmp_path,
        {**ONE, "agents": ["support"], "profiles": ["default"]},
        {**ONE, "keyId": "operator", "operator": True},
        {
            "keyId": "b",
            "secret": "another " * 6,
            "tenant": "other",
            "storeUrl": "rushdb+https://x.example",
            "storeToken": "t",
        },
    )
    given = tenants.Tenants.load(producer, path)
    assert given.tenant_of("host-a") == given.tenant_of("operator") == "acme"
    assert given.grant_of("host-a").allows("support", "default")
    assert not given.grant_of("host-a").allows("support", "other")
    assert not given.grant_of("host-a").allows("sales", "default")
    assert not given.grant_of("host-a").operator
    assert given.grant_of("operator").operator
    assert given.stores()["other"] == ("rushdb+https://x.example", "t")
    assert given.secret_of("local") is None


def test_a_key_that_is_not_there_is_unknown(producer):
    given = tenants.Tenants.load(producer, None)
    assert given.secret_of("nobody") is None
    with pytest.raises(errors.SignatureRefused, match="unknown_key"):
        given.tenant_of("nobody")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_may_read_is_refused(producer, tmp_path, mode):
    with pytest.raises(errors.SettingsRefused, match="0600"):
        tenants.Tenants.load(producer, written(tmp_path, ONE, mode=mode))


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([], "names no key"),
        ([ONE, ONE], "twice"),
        ([ONE, {**ONE, "keyId": "b", "storeUrl": "sqlite:////x"}], "two stores"),
        ([ONE, {**ONE, "keyId": "b", "tenant": "beta", "secret": "x" * 32}], "one store in common"),
        ([ONE, {**ONE, "keyId": "b", "tenant": "beta", "storeUrl": "sqlite:////x"}], "a secret in common"),
        ([{**ONE, "secret": "short"}], "32 characters"),
        ([{**ONE, "tenant": "a:b"}], "tenant must be"),
        ([{**ONE, "keyId": ""}], "keyId must be"),
        ([{**ONE, "admin": True}], "unknown fields admin"),
        ([{**ONE, "agents": []}], "agents must be"),
        ([{**ONE, "profiles": "default"}], "profiles must be"),
        ([{**ONE, "operator": "yes"}], "operator true or false"),
        (["x"], "is not an object"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_without_quoting_a_secret(producer, tmp_path, entries, what):
    with pytest.raises(errors.SettingsRefused, match=what) as caught:
        tenants.Tenants.load(producer, written(tmp_path, *entries))
    assert caught.value.setting == "MEMORY_TENANTS_FILE"
    assert SECRET not in str(caught.value)


def test_a_missing_file_and_one_that_is_not_json_are_refused(producer, tmp_path):
    with pytest.raises(errors.SettingsRefused, match="cannot be read"):
        tenants.Tenants.load(producer, tmp_path / "none.json")
    broken = written(tmp_path)
    broken.write_text("{")
    with pytest.raises(errors.SettingsRefused, match="is not JSON"):
        tenants.Tenants.load(producer, broken)


def test_secrets_stay_out_of_the_representation(producer, tmp_path):
    given = tenants.Tenants.load(producer, written(tmp_path, {**ONE, "storeToken": "tok-1"}))
    assert SECRET not in repr(given.grant_of("host-a"))
    assert "tok-1" not in repr(given.grant_of("host-a"))
