"""Secrets and local paths, replaced by placeholders `[redacted:<kind>]` before anything is bounded, hashed or written.

`redact` is deterministic, and does nothing to what it has already redacted. It takes bounded time on any input: a rule
runs only where a cheap substring says it may match, every repetition in a pattern is bounded or cannot start twice in
one run of characters, and patterns are compiled at first use. It must be given the whole text: a secret that a bound
has split is no longer recognised.

What survives on purpose: commit hashes, UUIDs, digests, ordinary code (`password = get_password()`, `max_tokens: 4096`,
`token: str`), URLs without credentials, prose. Standard library only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["KINDS", "redact"]

_MAX_PASSES = 4
_GROUPS = ("secret", "quoted", "bare")


class _Rule(NamedTuple):
    kind: str
    triggers: tuple[str, ...]  # lower case; one of them stands in the lowered text, or the rule is not tried
    pattern: str  # what the group `secret` (`quoted`, `bare`) matches is replaced; without one the whole match
    accept: Callable[[re.Match[str], str], bool] | None = None


def redact(text: str) -> tuple[str, dict[str, int]]:
    """The text with placeholders, and how many of each kind were put in."""
    counts: dict[str, int] = {}
    for _ in range(_MAX_PASSES):  # a placeholder may stand where it lets another rule see more, rarely more than once
        lowered = text.lower()  # only to look for triggers: lowering may change lengths
        before = text
        for rule in _RULES:
            if any(trigger in lowered for trigger in rule.triggers):
                text = _apply(rule, text, counts)
        if text == before:
            break
    return text, counts


def _apply(rule: _Rule, text: str, counts: dict[str, int]) -> str:
    pieces: list[str] = []
    done = 0
    for found in re.finditer(rule.pattern, text):
        group = next((name for name in _GROUPS if name in found.re.groupindex and found[name]), 0)
        secret = found[group]
        if secret.startswith("[redacted:") or (rule.accept and not rule.accept(found, secret)):
            continue
        start, end = found.span(group)
        pieces += (text[done:start], f"[redacted:{rule.kind}]")
        done = end
        counts[rule.kind] = counts.get(rule.kind, 0) + 1
    return "".join((*pieces, text[done:])) if pieces else text


# What a value looks like --------------------------------------------------------------------------------------------

_PLACEHOLDER = (
    r"(?i)<.*>|\[.*\]|\{.*\}|\$.*|%.*%|x{3,}|\*{3,}|\.{3,}|-+|_+|#.*"
    r"|(?:my|your|the|some|an?|new|old|insert|enter|put)[ _-].*"
    r"|(?:null|none|nil|undefined|true|false|str|string|bytes|int|bool|any|optional|required|missing|redacted|empty|example)"
)
_REFERENCE = (
    r"(?:self|this|os|process|env|environ|config|settings|args|options|opts|props|ctx|req|request|response|params)[.\[(].*"
    r"|[A-Za-z_][\w.]*[(\[].*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[A-Za-z_]\w*(?:\[.*\])?\|.*"
)


def _classes(value: str) -> int:
    """How many of lower case, upper case, digits and other characters the value has."""
    return (
        any("a" <= c <= "z" for c in value)
        + any("A" <= c <= "Z" for c in value)
        + any("0" <= c <= "9" for c in value)
        + any(not c.isalnum() for c in value)
    )


def _is_random(value: str) -> bool:
    """Whether a key generator may have made it: letters and digits mixed, with no word-like structure."""
    digits = sum("0" <= c <= "9" for c in value)
    if digits == 0:
        return len(value) >= 20 and _changes_case(value) >= 6
    letters = [run for run in re.split(r"[^A-Za-z]+", value) if run]
    words = sum(len(run) >= 4 and (run.islower() or run.isupper() or run.istitle()) for run in letters)
    return words * 7 <= len(value) and digits + _changes_case(value) >= 3


def _changes_case(value: str) -> int:
    return sum(a.isalpha() and b.isalpha() and a.isupper() != b.isupper() for a, b in itertools.pairwise(value))


def _random(found: re.Match[str], secret: str) -> bool:
    return _is_random(secret)


def _bearer(found: re.Match[str], secret: str) -> bool:
    return any("0" <= c <= "9" for c in secret) or secret.endswith("=") or _changes_case(secret) >= 3


def _assigned(found: re.Match[str], secret: str) -> bool:
    """Whether the value behind a secret-ish name is one: not a type, a call, a reference, a number of tokens."""
    name = _whole_name(found)
    lowered = name.lower()
    is_password = any(word in lowered for word in ("passw", "pwd", "passphrase"))
    secret = secret.rstrip(")]};,.…")  # what closes the code or the sentence around it
    if len(secret) < 4 or re.fullmatch(_PLACEHOLDER, secret):
        return False
    if found["quote"]:
        if " " in secret:
            return "passphrase" in lowered or (is_password and _classes(secret) >= 3 and secret.count(" ") <= 2)
        return is_password or len(secret) >= 8
    if re.fullmatch(_REFERENCE, secret) and not (name.isupper() and _classes(secret) >= 3):
        return False
    if secret.lower() == lowered or (secret.isdigit() and not is_password):
        return False
    if name.isupper() and "=" in found["sign"]:  # DB_PASSWORD=letmein: a variable of a shell or an env file
        return True
    return _classes(secret) >= (2 if is_password else 3) or _is_random(secret) or _is_hex(secret)


def _whole_name(found: re.Match[str]) -> str:
    """The identifier around the secret-ish word. Looked up backwards: a pattern for it would cost every character."""
    text, start = found.string, found.start("word")
    first = start
    while first > 0 and start - first < 64 and (text[first - 1].isalnum() or text[first - 1] in "_-"):
        first -= 1
    return text[first : found.end("word")].lstrip("-")


def _is_hex(value: str) -> bool:
    return len(value) >= 20 and re.fullmatch(r"[0-9a-fA-F]+", value) is not None


def _near_word(found: re.Match[str], secret: str) -> bool:
    """A random string behind a secret-ish word in prose; hex, as commits and digests are, only right behind it."""
    if re.fullmatch(_UUID, secret):
        return False
    if _is_hex(secret):
        return re.fullmatch(r"(?:\s{0,2}(?:is|was|are|=|:|,|->|`|\"|'))*\s{0,2}[`\"']?", found["gap"]) is not None
    return _classes(secret) >= 3 and _is_random(secret)


def _said_password(found: re.Match[str], secret: str) -> bool:
    return not re.fullmatch(_PLACEHOLDER, secret) and _classes(secret.rstrip(".,!?")) >= 2 and not secret.istitle()


def _basic(found: re.Match[str], secret: str) -> bool:
    return secret.endswith("=") or any("0" <= c <= "9" for c in secret)


# Rules, in the order in which they run --------------------------------------------------------------------------------

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_START = r"(?<![A-Za-z0-9_-])"  # a token starts once in a run of its characters
_WORDS = (
    r"(?P<word>(?i:passwords?|passwd|passphrase|passwort|pwd|client[_-]?secret|secret[_-]?access[_-]?key|secrets?|token"
    r"|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|auth[_-]?key|signing[_-]?key|encryption[_-]?key"
    r"|account[_-]?key|shared[_-]?key|master[_-]?key|credentials?))"
)
_WORD_TRIGGERS = ("passw", "pwd", "passphrase", "secret", "token", "key", "credential")
_PATH_CHARS = r"[^\s\"'`<>|:;,()\[\]{}*?\\]"

_ALNUM, _DASHED = r"[A-Za-z0-9]", r"[A-Za-z0-9_-]"
# Keys that say what they are: kind, prefix, what follows; `_random` where words may follow the prefix as well.
_PREFIXED = tuple(
    _Rule(kind, (prefix.lower(),), f"{_START}{re.escape(prefix)}{rest}", accept)
    for kind, prefix, rest, accept in (
        ("anthropic_key", "sk-ant-", _DASHED + "{16,}+", None),
        ("openai_key", "sk-", _DASHED + "{20,}+", _random),
        *(("github_token", f"gh{letter}_", _ALNUM + "{20,}+", None) for letter in "pousr"),
        ("github_token", "github_pat_", r"[A-Za-z0-9_]{20,}+", None),
        ("gitlab_token", "gl", r"(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_.-]{16,}+", None),
        ("slack_token", "xox", r"[abceprs]-[A-Za-z0-9-]{10,}+", None),
        ("slack_token", "xapp-", r"[A-Za-z0-9-]{10,}+", None),
        ("google_key", "AIza", _DASHED + "{30,}+", None),
        ("google_key", "ya29.", _DASHED + "{20,}+", None),
        ("google_key", "GOCSPX-", _DASHED + "{20,}+", None),
        ("google_key", "1//0", _DASHED + "{30,}+", None),
        *(("stripe_key", f"{letter}k_", r"(?:live|test)_[A-Za-z0-9]{10,}+", None) for letter in "srp"),
        ("stripe_key", "whsec_", r"[A-Za-z0-9+/=]{20,}+", None),
        ("npm_token", "npm_", _ALNUM + "{30,}+", None),
        ("pypi_token", "pypi-", _DASHED + "{30,}+", _random),
        ("huggingface_token", "hf_", _ALNUM + "{20,}+", None),
        *(
            ("provider_key", prefix, r"[A-Za-z0-9_=+/-]{20,}+", _random)
            for prefix in ("gsk_", "r8_", "lin_api_", "ntn_", "figd_", "sntrys_", "sntryu_", "dckr_pat_", "glsa_")
        ),
        *(("provider_key", prefix, r"[A-Za-z0-9-]{20,}+", _random) for prefix in ("xai-", "pplx-", "PMAK-", "NRAK-")),
        ("provider_key", "SG.", r"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+", None),
        ("provider_key", "hvs.", _DASHED + "{20,}+", None),
        ("provider_key", "key-", r"[0-9a-f]{32}(?![A-Za-z0-9])", None),
        ("provider_key", "SK", r"[0-9a-f]{32}(?![A-Za-z0-9])", None),
        ("provider_key", "do", r"[opr]_v1_[0-9a-f]{64}", None),
        ("provider_key", "shp", r"(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", None),
        ("provider_key", "dapi", r"[0-9a-f]{32}", None),
        ("provider_key", "rubygems_", r"[0-9a-f]{32,}+", None),
        ("provider_key", "dp.pt.", _ALNUM + "{40,}+", None),
        ("provider_key", "EAA", _ALNUM + "{80,}+", None),
    )
)

_RULES = (
    _Rule(
        "private_key",
        ("private key",),
        r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----(?:"
        r"(?:[^-]|-(?!----)){0,16384}+-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
        # unterminated: what looks like the body of a key, up to prose or the end
        r"|(?:(?:\s|\\[rn]|[>|\"'+,])*+(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash):[^\n]{0,200}+"
        r"|[A-Za-z0-9+/=]{20,}+|[A-Za-z0-9+/=]{1,19}+(?=\s*+\Z)))*+)",
    ),
    _Rule("age_key", ("age-secret-key-",), r"(?i)AGE-SECRET-KEY-1[0-9A-Z]{20,}+"),
    *_PREFIXED,
    _Rule("jwt", ("eyj",), r"(?<![A-Za-z0-9_.-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+(?:\.[A-Za-z0-9_-]*+){0,3}"),
    _Rule("aws_key", ("akia", "asia"), r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _Rule(
        "aws_secret",
        ("akia", "asia", "aws"),
        r"(?:\[redacted:aws_key\]|(?i:aws)).{0,80}?(?<![A-Za-z0-9/+])(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        lambda found, secret: _is_random(secret) and not _is_hex(secret),
    ),
    _Rule("slack_webhook", ("hooks.slack.com",), r"hooks\.slack\.com/services/(?P<secret>[A-Za-z0-9/]{20,}+)"),
    _Rule("discord_webhook", ("api/webhooks/",), r"api/webhooks/(?P<secret>\d{15,22}/[A-Za-z0-9_-]{40,}+)"),
    _Rule(
        "discord_token",
        ("discord", "bot", "token"),
        _START + r"[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}(?![A-Za-z0-9_-])",
    ),
    _Rule(
        "url_password",
        ("://",),
        r"://[^\s:/?#\"'<>@\[]{0,256}:(?!\d{1,5}[/?#])(?P<secret>[^\s\"'<>@]{1,256}+(?:@[^\s\"'<>@]{1,256}+(?=@)){0,4})@",
    ),
    _Rule("url_password", ("://",), r"://(?P<secret>[A-Za-z0-9_.~%-]{20,256})@", _random),
    _Rule("telegram_token", (":a",), r"(?<![A-Za-z0-9])\d{8,10}:AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])"),
    _Rule(
        "authorization",
        ("authorization",),
        r"(?i:authorization)\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?:(?i:bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256)\s{1,3})?"
        r"(?P<secret>[^\s\"',;\\<>${}]{8,4096}+)",
        _bearer,
    ),
    _Rule("authorization", ("bearer",), r"\b(?i:bearer)\s{1,3}(?P<secret>[A-Za-z0-9._~+/=-]{12,4096}+)", _bearer),
    _Rule(
        "authorization", ("basic",), r"\b(?i:basic)\s{1,3}(?P<secret>[A-Za-z0-9+/]{10,1024}+={0,2})(?![\w.-])", _basic
    ),
    _Rule(
        "cookie",
        ("cookie",),
        r"\b(?i:(?:set-)?cookie)\s{0,2}:\s{0,2}(?P<secret>[A-Za-z0-9_.-]{1,64}=[^\s\"'][^\n\"']{3,4096})",
    ),
    _Rule(
        "password",
        ("curl", "wget"),
        r"\b(?:curl|wget)\b[^\n]{0,512}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,128}:(?P<secret>[^\s\"']{1,256}+)",
    ),
    _Rule(
        "secret",
        _WORD_TRIGGERS,
        _WORDS
        + r"(?:[_-]?(?:\d{1,3}|value|prod|dev|test|live|raw|base64))?\\?[\"'\]]{0,2}\s{0,4}(?P<sign>=>|:=|[:=])\s{0,4}"
        r"(?:\\?(?P<quote>[\"'`])(?P<quoted>(?:(?!\\?(?P=quote))[^\n]){4,512}+)|(?P<bare>[^\s\"'`,;<>]{4,512}+))",
        _assigned,
    ),
    _Rule("secret", _WORD_TRIGGERS, _WORDS + r">(?P<secret>[^<>\s]{4,512}+)</"),
    _Rule(
        "secret",
        ("--",),
        r"--(?:[A-Za-z0-9]{1,32}-)?(?:password|passwd|passphrase|token|secret|api-?key|access-key|secret-key|client-secret)"
        r"[ =]\\?[\"']?(?P<secret>[^\s\"'`<>$\[{-][^\s\"'`<>]{3,512}+)",
        lambda found, secret: not re.fullmatch(_PLACEHOLDER, secret) and _classes(secret) >= 2,
    ),
    _Rule(
        "password",
        ("passw", "passphrase", "pwd"),
        r"\b(?i:password|passphrase|passwort|pwd)(?i:\s{1,3}(?:for\s\S{1,64}\s)?(?:is|was|ist|to)\s{0,2}:?)\s{1,3}[\"'`]?"
        r"(?P<secret>[^\s\"'`<>]{4,128}+)",
        _said_password,
    ),
    _Rule(
        "secret",
        (
            "secret",
            "token",
            "credential",
            "passw",
            "api key",
            "api-key",
            "api_key",
            "apikey",
            "access key",
            "access-key",
            "private key",
        ),
        r"\b(?i:(?:api|access|private|secret|signing|encryption)[ _-]?keys?|secrets?|tokens?|credentials?|passwords?)\b"
        r"(?P<gap>[^\n]{0,32}?)(?<![A-Za-z0-9+/_=.-])(?P<secret>[A-Za-z0-9+/_=-]{20,256}+)",
        _near_word,
    ),
    _Rule(
        "path",
        ("users",),
        r"(?i)(?<![A-Za-z0-9])(?:[A-Za-z]:|\\\\[\w.$-]{1,64}(?:\\[\w.$-]{1,64})?)[\\/]{1,2}Users[\\/]{1,2}"
        r"(?:[^\s\\/\"'`<>|:*?]{1,64}(?: [^\s\\/\"'`<>|:*?]{1,64}){1,3}(?=[\\/])|[^\s\\/\"'`<>|:*?]{1,64})"
        r"(?:[\\/]{1,2}[^\s\\/\"'`<>|:*?,;()]{0,255})*+",
    ),
    _Rule(
        "path",
        ("appdata%", "userprofile%"),
        r"(?i)%(?:LOCAL)?APPDATA%[^\s\"'`<>|:*?,;()]{0,512}+|%USERPROFILE%[^\s\"'`<>|:*?,;()]{0,512}+",
    ),
    _Rule("path", ("file://",), r"\b(?i:file)://[^\s\"'`<>)\]]{1,1024}+"),
    _Rule(
        "path",
        ("/home/", "/users/", "/root", "/tmp/", "/var/folders/", "/private/", "/volumes/"),  # noqa: S108 (to be found)
        r"(?<![\w.~:/%-])(?:(?:/mnt)?/[a-z])?(?:/(?:home|Users)/" + _PATH_CHARS + r"{1,1024}+"
        r"|/root(?![\w.-])" + _PATH_CHARS + r"{0,1024}+"
        r"|/(?:tmp|var/folders|private/(?:var|tmp)|Volumes)/" + _PATH_CHARS + r"{1,1024}+)",
    ),
    _Rule(
        "path", ("~/", "~\\"), r"(?<![\w~/.])~[\\/](?:[\w.@+-]|[\\/](?=[\w.]))" + r"[^\s\"'`<>|:;,()\[\]{}*?]{0,1024}+"
    ),
)

KINDS = tuple(sorted({rule.kind for rule in _RULES}))
