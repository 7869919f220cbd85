"""The rules of `MEMORY_TIME_TO_LIVE`: how they are read, and which of them decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer import config, errors, expiry

AT = "2026-12-01T12:00:00.000Z"
RULES = "*=90d, note=30d, quiet=never, support/default:note=12h, support/default:*=1d, support/other:quiet=90m"


def end_of(text: str, kind: str, scope: str = "agent/default", at: str = AT) -> str | None:
    agent_id, _, profile_id = scope.partition("/")
    return expiry.parse(text).end_of(kind=kind, agent_id=agent_id, profile_id=profile_id, valid_from=at)


@pytest.mark.parametrize(
    ("scope", "kind", "end"),
    [
        ("agent/default", "note", "2026-12-31T12:00:00.000Z"),
        ("agent/default", "plan", "2027-03-01T12:00:00.000Z"),
        ("agent/default", "quiet", None),
        ("support/default", "note", "2026-12-02T00:00:00.000Z"),
        ("support/default", "plan", "2026-12-02T12:00:00.000Z"),
        ("support/default", "quiet", "2026-12-02T12:00:00.000Z"),  # the scope counts before the kind
        ("support/other", "quiet", "2026-12-01T13:30:00.000Z"),
        ("support/other", "note", "2026-12-31T12:00:00.000Z"),
        ("default/support", "note", "2026-12-31T12:00:00.000Z"),
    ],
)
def test_the_most_specific_rule_decides_in_whatever_order_they_stand(scope, kind, end):
    assert end_of(RULES, kind, scope) == end
    assert end_of(",".join(reversed(RULES.split(","))), kind, scope) == end


@pytest.mark.parametrize(
    ("duration", "end"),
    [
        ("30d", "2026-12-31T12:00:00.000Z"),
        ("12h", "2026-12-02T00:00:00.000Z"),
        ("90m", "2026-12-01T13:30:00.000Z"),
        ("5s", "2026-12-01T12:00:05.000Z"),
        ("36500d", "2126-11-07T12:00:00.000Z"),
        ("never", None),
    ],
)
def test_durations_are_whole_days_hours_minutes_or_seconds_or_never(duration, end):
    assert end_of(f"note={duration}", "note") == end


@pytest.mark.parametrize(("text", "rules"), [("", 0), (" , ", 0), ("note=1d,", 1), (" a / b : note = 1d ", 1)])
def test_spaces_and_empty_parts_mean_nothing(text, rules):
    assert len(expiry.parse(text).rules) == rules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("note", "rule 1 is not kind=duration"),
        ("a=1d,30d", "rule 2 is not kind=duration"),
        ("note=a=1d", "is not kind=duration"),
        ("=1d", "names no kind"),
        ("agent/default:=1d", "names no kind"),
        ("agent:note=1d", "names no scope"),
        ("agent/:note=1d", "names no scope"),
        ("/default:note=1d", "names no scope"),
        ("agent/a/b:note=1d", "names no scope"),
        ("agent/*:note=1d", "names no scope"),
        ("agent/a:b:note=1d", "names no scope"),
        ("note=", "has no duration"),
        ("note=30", "has no duration"),
        ("note=d", "has no duration"),
        ("note=0d", "has no duration"),
        ("note=-1d", "has no duration"),
        ("note=1.5h", "has no duration"),
        ("note=1w", "has no duration"),
        ("note=1 d", "has no duration"),
        ("note=٣d", "has no duration"),
        ("note=36501d", "say never"),
        ("note=999999999d", "say never"),
        ("note=1d,note=2d", "rule 2 says again"),
        ("a/b:*=1d,a/b:*=never", "rule 2 says again"),
    ],
)
def test_a_rule_that_is_none_is_refused_and_says_which_and_why(text, said):
    with pytest.raises(errors.SettingsRefused, match=said) as caught:
        expiry.parse(text)
    assert caught.value.setting == "MEMORY_TIME_TO_LIVE"


def test_without_a_rule_nothing_ends(tmp_path):
    assert end_of("", "note") is None
    assert end_of("plan=1d", "note") is None
    assert not config.load({"MEMORY_STATE_DIR": str(tmp_path)}).time_to_live.rules


def test_any_form_of_a_beginning_counts_and_an_end_beyond_the_calendar_is_none():
    assert end_of("note=1h", "note", at="2026-12-01T13:30:00.1239+02:00") == "2026-12-01T12:30:00.123Z"
    assert end_of("note=36500d", "note", at="9950-01-01T00:00:00Z") is None
    with pytest.raises(errors.ContractViolation):
        end_of("note=1h", "note", at="soon")


@given(text=st.text(alphabet="ab/:=*, 1dhms9never", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        read = expiry.parse(text)
    except errors.SettingsRefused:
        return
    assert expiry.parse(str(read)) == read


def test_the_settings_read_it_and_show_it_as_it_was_written(tmp_path):
    loaded = config.load({"MEMORY_STATE_DIR": str(tmp_path), "MEMORY_TIME_TO_LIVE": RULES})
    assert len(loaded.time_to_live.rules) == 6
    assert str(loaded.time_to_live) == RULES
    with pytest.raises(errors.SettingsRefused):
        config.load({"MEMORY_STATE_DIR": str(tmp_path), "MEMORY_TIME_TO_LIVE": "note=soon"})
