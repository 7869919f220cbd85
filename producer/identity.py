"""Canonical JSON, ids, scope hashes and bounded text, byte for byte as the reference TypeScript. Standard library only.

JavaScript decides every corner, so this module keeps its rules, not Python's:

- a text is a row of UTF-16 units: lengths, cuts and the order of keys count those, and two surrogates that meet in a
  Python string are the one character that they are in JavaScript
- canonical JSON has keys in JavaScript's order of own properties after a sort by UTF-16 unit (array indices, that is
  "0" to "4294967294", first and by value), no spaces, non-ASCII as it is, lone surrogates as \\udXXX
- a number is a double, printed as JavaScript prints it (`1e+21`, `1e-7`, `0` for -0); NaN and infinities are `null`
- trimming takes JavaScript's white space: U+FEFF is part of it, U+0085 and U+001C to U+001F are not
- a lone surrogate in text that is hashed as UTF-8 (scope hashes) becomes U+FFFD

A key that is missing is left out; a value that is None is JSON's null, except `sourceEventId` of an episode ("").
"""

from __future__ import annotations

import hashlib
import json.encoder
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from producer import errors

__all__ = [
    "ELLIPSIS",
    "JS_SPACE",
    "bounded_text",
    "canonical_json",
    "episode_event_id",
    "fact_id",
    "normal_time",
    "scope_hash",
    "sha256_hex",
    "utf16_length",
    "well_formed",
]

SCHEMA_VERSION = 1
ELLIPSIS = "…"
# What String.prototype.trim removes: WhiteSpace and LineTerminator of ECMAScript.
JS_SPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

_EPISODE_FIELDS = (
    "runtime",
    "agentId",
    "profileId",
    "externalSessionId",
    "sourceEventId",
    "turnIndex",
    "userText",
    "assistantText",
)
_FACT_FIELDS = (
    "runtime",
    "agentId",
    "profileId",
    "participantScopeHash",
    "subjectKey",
    "kind",
    "sourceEventId",
    "text",
)
_MAX_ARRAY_INDEX = 2**32 - 2
_TIME = (
    r"(\d{4})(-?)(\d\d)\2(\d\d)[Tt ](\d\d)"  # date; basic and extended form
    r"(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?"  # minutes, seconds, fraction
    r" ?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)"  # the offset is required
)
_DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_quote: Any = json.encoder.encode_basestring  # the C form of JSON.stringify for text without lone surrogates


def canonical_json(value: Any) -> str:
    """`JSON.stringify` of the value with sorted keys. Mappings, lists, tuples, text, numbers, booleans and None.

    The text may be encoded as UTF-8 without an error handler: lone surrogates are escaped. Raises
    `errors.ContractViolation` for any other type, and for nesting too deep.
    """
    try:
        return _stringify(value)
    except RecursionError:
        raise errors.ContractViolation("is nested too deep") from None


def episode_event_id(event: Mapping[str, Any]) -> str:
    """eventId of an episode or of an episode's input; fields that are not part of the identity are not looked at."""
    identity = {name: event[name] for name in _EPISODE_FIELDS if name in event}
    if identity.get("sourceEventId") is None:
        identity["sourceEventId"] = ""
    return sha256_hex(canonical_json({"schemaVersion": SCHEMA_VERSION, "eventType": "episode", **identity}))


def fact_id(fact: Mapping[str, Any]) -> str:
    """factId of a fact or of a fact's input; fields that are not part of the identity are not looked at."""
    identity = {name: fact[name] for name in _FACT_FIELDS if name in fact}
    return sha256_hex(canonical_json({"schemaVersion": SCHEMA_VERSION, "eventType": "fact", **identity}))


def scope_hash(parts: Iterable[str | None], salt: str = "") -> str:
    """Hash of identity parts; None is a missing part, the same as a blank one. Refuses nothing: `scope_of` does."""
    joined = "\x1f".join("" if part is None else part.strip(JS_SPACE) for part in parts)
    return sha256_hex(f"{salt}\x1e{joined}")


def bounded_text(text: str, max_units: int = 6000) -> str:
    """The text without NULs, trimmed, and cut after `max_units` UTF-16 units with an ellipsis behind the cut.

    The cut may split a surrogate pair, as the reference does; capture shortens by one unit first.
    """
    trimmed = text.replace("\0", "").strip(JS_SPACE)
    if 4 * len(trimmed) <= 2 * max_units:  # no text has more than two units a character
        return _joined(trimmed)
    units = trimmed.encode("utf-16-le", "surrogatepass")
    if len(units) > 2 * max_units:
        return units[: 2 * max_units].decode("utf-16-le", "surrogatepass") + ELLIPSIS
    return units.decode("utf-16-le", "surrogatepass")


def utf16_length(text: str) -> int:
    """Length in UTF-16 units, JavaScript's `length`."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def normal_time(text: str) -> str:
    """A calendar time of ISO 8601 with an offset, as `YYYY-MM-DDTHH:MM:SS.mmmZ`; a finer fraction is cut off.

    Raises `errors.ContractViolation` for anything else: a time without an offset has no place on the clock.
    """
    found = re.fullmatch(_TIME, text, re.ASCII) if isinstance(text, str) and len(text) <= 64 else None
    if found is None:
        raise errors.ContractViolation("is not an ISO 8601 time with an offset")
    year, month, day, hour, minute, second = (int(found[i] or 0) for i in (1, 3, 4, 5, 6, 7))
    offset_hours, offset_minutes = int(found[10] or 0), int(found[11] or 0)
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)) or hour > 23 or max(minute, second) > 59:
        raise errors.ContractViolation("is no date of the calendar")
    if offset_hours > 23 or offset_minutes > 59:
        raise errors.ContractViolation("has no valid offset")
    offset_s = (offset_hours * 60 + offset_minutes) * (-60 if found[9] == "-" else 60)
    seconds = _days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset_s
    utc = time.gmtime(seconds)
    if not 1 <= utc.tm_year <= 9999:
        raise errors.ContractViolation("is outside of the years 1 to 9999")
    millis = (found[8] or "")[:3].ljust(3, "0")
    date = f"{utc.tm_year:04}-{utc.tm_mon:02}-{utc.tm_mday:02}"
    return f"{date}T{utc.tm_hour:02}:{utc.tm_min:02}:{utc.tm_sec:02}.{millis}Z"


def sha256_hex(text: str) -> str:
    """sha256 of the UTF-8 form that Node's `Hash.update` takes: a lone surrogate is U+FFFD."""
    return hashlib.sha256(well_formed(text).encode("utf-8")).hexdigest()


def well_formed(text: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD, as `String.prototype.toWellFormed`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _stringify(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping):
        try:
            names = sorted(value, key=_property_order)
        except AttributeError:
            raise errors.ContractViolation("holds a key that is not text") from None
        parts = []
        for name in names:  # no comprehension: its frames would halve the depth that can be reached
            parts.append(f"{_string(name)}:{_stringify(value[name])}")
        return "{" + ",".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        parts = []
        for item in value:
            parts.append(_stringify(item))
        return "[" + ",".join(parts) + "]"
    raise errors.ContractViolation("holds a value that JSON cannot hold")


def _string(text: str) -> str:
    if text.isascii():
        return _quote(text)
    quoted = _quote(_joined(text))
    try:
        quoted.encode("utf-8")
    except UnicodeEncodeError:
        return "".join([f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in quoted])
    return quoted


def _joined(text: str) -> str:
    """The text with surrogates that meet made the one character that JavaScript sees."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _number(value: int | float) -> str:
    """Number::toString of ECMAScript. Python and JavaScript both choose the shortest digits that read back."""
    try:
        number = float(value)
    except OverflowError:
        return "null"  # an integer beyond all doubles is Infinity
    if number != number or number in (float("inf"), float("-inf")):
        return "null"
    if number == int(number) and abs(number) < 2**53:
        return str(int(number))
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))  # 0.digits * 10**point
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def _property_order(name: str) -> tuple[int, int, bytes]:
    if name.isdecimal() and name.isascii() and len(name) <= 10 and (name == "0" or name[0] != "0"):
        index = int(name)
        if index <= _MAX_ARRAY_INDEX:
            return 0, index, b""
    return 1, 0, name.encode("utf-16-be", "surrogatepass")


def _days_in(year: int, month: int) -> int:
    if month == 2 and (year % 4 or (year % 100 == 0 and year % 400)):
        return 28
    return _DAYS_IN_MONTH[month - 1]


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Days of the Gregorian calendar; by hand, because importing `datetime` costs a hook process 3 ms."""
    year -= month <= 2
    era_year = year % 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return year // 400 * 146097 + era_year * 365 + era_year // 4 - era_year // 100 + day_of_year - 719468
