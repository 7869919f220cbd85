"""How long a fact holds when its host does not say: the rules of `MEMORY_TIME_TO_LIVE`. Standard library only.

    preference=180d                  facts of this kind
    support/default:preference=30d   those of one profile of one agent: agentId/profileId:kind
    support/default:*=90d            every other kind there
    *=never                          all others

Comma-separated, in any order. One rule decides, the most specific: a rule of the scope before one of all scopes, and
there a named kind before `*`. Durations are whole numbers of days, hours, minutes or seconds (`d`, `h`, `m`, `s`), or
`never`, for what a wider rule must not end. A kind is written as facts carry it; one with `:`, `=` or `,` in it can
have no rule of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from producer import errors, identity

__all__ = ["Rule", "TimeToLive", "parse"]

_VARIABLE = "MEMORY_TIME_TO_LIVE"
_ANY = "*"
_NEVER = "never"
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"([1-9][0-9]{0,8})([dhms])", re.ASCII)
_LONGEST_S = 36_500 * 86_400  # a hundred years: more is `never`


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """`scope` is (agentId, profileId), or None for all; `kind` may be `*`; `seconds` None: for ever."""

    scope: tuple[str, str] | None
    kind: str
    seconds: int | None


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """All rules, and the text they were read from."""

    text: str = ""
    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return self.text

    def end_of(self, *, kind: str, agent_id: str, profile_id: str, valid_from: str) -> str | None:
        """The `validUntil` of a fact of this kind and scope that begins to hold then; None when it has no end.

        Raises `errors.ContractViolation` when `valid_from` is no time.
        """
        own, rules = (agent_id, profile_id), {(rule.scope, rule.kind): rule for rule in self.rules}
        for place in ((own, kind), (own, _ANY), (None, kind), (None, _ANY)):
            if (rule := rules.get(place)) is not None:
                return None if rule.seconds is None else _later(valid_from, rule.seconds)
        return None


def parse(text: str) -> TimeToLive:
    """The rules in this text; none in an empty one. Raises `errors.SettingsRefused`, which says what is wrong."""
    rules: dict[tuple[tuple[str, str] | None, str], Rule] = {}
    for number, part in enumerate(text.split(","), 1):
        if not part.strip():
            continue
        rule = _rule(number, part)
        if (rule.scope, rule.kind) in rules:
            raise _refused(number, "says again what an earlier rule says of the same kind and scope")
        rules[(rule.scope, rule.kind)] = rule
    return TimeToLive(text.strip(), tuple(rules.values()))


def _rule(number: int, text: str) -> Rule:
    place, equals, duration = (part.strip() for part in text.rpartition("="))
    if not equals or "=" in place:
        raise _refused(number, "is not kind=duration or agentId/profileId:kind=duration")
    named, colon, kind = (part.strip() for part in place.rpartition(":"))
    if not kind:
        raise _refused(number, "names no kind; * is any kind")
    if not colon:
        return Rule(scope=None, kind=kind, seconds=_seconds(number, duration))
    agent_id, slash, profile_id = (part.strip() for part in named.partition("/"))
    if (
        not slash
        or not agent_id
        or not profile_id
        or "/" in profile_id
        or ":" in named
        or _ANY in (agent_id, profile_id)
    ):
        raise _refused(number, "names no scope: before the colon stands one agentId/profileId")
    return Rule(scope=(agent_id, profile_id), kind=kind, seconds=_seconds(number, duration))


def _seconds(number: int, text: str) -> int | None:
    if text == _NEVER:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _refused(number, "has no duration: a whole number with d, h, m or s behind it (30d, 12h, 90m), or never")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST_S:
        raise _refused(number, "is longer than 36500d: say never")
    return seconds


def _later(time: str, seconds: int) -> str | None:
    """That much later; None beyond the last year that a time can be written in."""
    try:
        moment = datetime.fromisoformat(identity.normal_time(time)) + timedelta(seconds=seconds)
    except OverflowError:
        return None
    return identity.normal_time(moment.isoformat())


def _refused(number: int, what: str) -> errors.SettingsRefused:
    return errors.SettingsRefused(_VARIABLE, f"rule {number} {what}")
