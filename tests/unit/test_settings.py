"""Settings of the service side: what is read, what is refused at start, what the table says."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pydantic
import pytest

from memory_tasks import settings
from producer import config, errors


def load(tmp_path: Path, **variables: str) -> settings.Settings:
    return settings.Settings.load({"MEMORY_STATE_DIR": str(tmp_path / "state"), **variables})


def test_an_empty_environment_gives_the_defaults_of_one_machine(tmp_path):
    given = load(tmp_path)
    assert given.producer.local
    assert given.visibility_timeout_s == 600
    assert given.retry_max_countdown_s == 30
    assert given.retry_limit == 3
    assert given.poison_deaths == 3
    assert given.unknown == ()


def test_variables_set_fields_of_both_sides(tmp_path):
    given = load(tmp_path, MEMORY_CONCURRENCY="4", MEMORY_STORE_LATE_S="20", MEMORY_TENANTS_FILE="/etc/tenants.json")
    assert given.concurrency == 4
    assert given.producer.store_late_s == 20
    assert given.tenants_file == Path("/etc/tenants.json")


def test_the_process_environment_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "MEMORY_CONCURRENCY", "5")
    assert load(tmp_path).concurrency == 16


def test_settings_are_frozen(tmp_path):
    with pytest.raises(pydantic.ValidationError):
        load(tmp_path).concurrency = 3


@pytest.mark.parametrize("variable", ["MEMORY_RETRY_MAX_COUNTDOWN_S", "MEMORY_STORE_LATE_S"])
@pytest.mark.parametrize(("value", "refused"), [("299.9", False), ("300", True), ("301", True)])
def test_a_countdown_of_half_the_visibility_timeout_or_more_is_refused_at_start(tmp_path, variable, value, refused):
    if not refused:
        load(tmp_path, **{variable: value})
        return
    with pytest.raises(errors.SettingsRefused, match=variable) as caught:
        load(tmp_path, **{variable: value})
    assert caught.value.setting == variable
    assert "MEMORY_VISIBILITY_TIMEOUT_S" in str(caught.value)


def test_a_shorter_visibility_timeout_is_refused_with_the_default_countdowns(tmp_path):
    with pytest.raises(errors.SettingsRefused):
        load(tmp_path, MEMORY_VISIBILITY_TIMEOUT_S="5")
    load(tmp_path, MEMORY_VISIBILITY_TIMEOUT_S="5", MEMORY_RETRY_MAX_COUNTDOWN_S="2", MEMORY_STORE_LATE_S="2")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MEMORY_CONCURRENCY", "many"),
        ("MEMORY_CONCURRENCY", "0"),
        ("MEMORY_VISIBILITY_TIMEOUT_S", "-1"),
        ("MEMORY_VISIBILITY_TIMEOUT_S", "nan"),
        ("MEMORY_FLOWER_USER", "a:b"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_variable_and_not_quoted(tmp_path, variable, value):
    with pytest.raises(errors.SettingsRefused) as caught:
        load(tmp_path, **{variable: value})
    assert caught.value.setting == variable


NUMBERS = [f for f in dataclasses.fields(config.ProducerConfig) if f.type in ("int", "float")]


@pytest.mark.parametrize("name", [f.name for f in NUMBERS])
def test_a_host_refuses_a_number_of_zero_where_it_would_silently_do_nothing(tmp_path, name):
    variable = config.env_name(name)
    environ = {"MEMORY_STATE_DIR": str(tmp_path / "state"), variable: "0"}
    if name in ("store_late_s", "embed_dimensions"):
        assert getattr(config.load(environ), name) == 0
        return
    with pytest.raises(errors.SettingsRefused, match="above 0") as caught:
        config.load(environ)
    assert caught.value.setting == variable
    assert getattr(config.load({**environ, variable: "1"}), name) == 1


def test_variables_nobody_reads_are_listed(tmp_path):
    given = load(tmp_path, MEMORY_CONCURENCY="4", MEMORY_STORE_TIMEOUT_S="3", OTHER="x")
    assert given.unknown == ("MEMORY_CONCURENCY",)


def test_secrets_stay_out_of_the_representation(tmp_path):
    given = load(tmp_path, MEMORY_PRODUCER_KEY="k" * 40, MEMORY_FLOWER_PASSWORD="let-me-in", MEMORY_STORE_TOKEN="tok-1")
    for secret in ("k" * 40, "let-me-in", "tok-1"):
        assert secret not in repr(given)
        assert secret not in str(given)


def test_the_table_lists_every_variable_of_both_sides_once_with_its_reason(tmp_path):
    rows = settings.table()
    names = [row.variable for row in rows]
    assert len(names) == len(set(names))
    for name in ("MEMORY_STORE_URL", "MEMORY_VISIBILITY_TIMEOUT_S", "MEMORY_STATE_DIR", "MEMORY_HOOK_CONFIG"):
        assert name in names
    for row in rows:
        assert re.fullmatch(r"MEMORY_[A-Z0-9_]+", row.variable)
        assert row.reason.endswith("."), row.variable
        if row.side == "worker":
            assert row.unit, row.variable
    by_name = {row.variable: row for row in rows}
    assert by_name["MEMORY_VISIBILITY_TIMEOUT_S"].default == "600"
    assert by_name["MEMORY_PRODUCER_KEY"].secret
    assert by_name["MEMORY_FLOWER_PASSWORD"].default == ""


def test_the_effective_value_of_every_row_can_be_read(tmp_path):
    given = load(tmp_path)
    for row in settings.table():
        if row.field:
            assert hasattr(given.producer if row.side == "host" else given, row.field)
