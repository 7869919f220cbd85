"""What is looked for: rules, each with the literal texts that must stand where it may find something.

A rule is asked only at those literals (`anchors`; a C-speed search), and looks a bounded way around them, so its cost
is bounded by their number. Patterns are compiled by `re` at first use and begin at the anchor; what stands before it
is looked up backwards, by hand. Rules run in the order of `RULES`: what says what it is before what stands where
secrets stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from producer.redaction import values

__all__ = ["RULES", "Rule"]

Found = tuple[int, int, str]  # start, end, kind
Look = Callable[[str, int, str], "Found | None"]


class Rule:
    """Where to look, and how. A plain class: a named tuple takes longer to make than all rules together."""

    __slots__ = ("anchors", "exact", "kinds", "look")

    def __init__(
        self, anchors: tuple[str, ...], look: Look, *, exact: bool = False, kinds: tuple[str, ...] = ()
    ) -> None:
        self.anchors = anchors
        self.look = look  # given the text, where an anchor stands in it, and the anchor
        self.exact = (
            exact  # the anchor is looked for as it stands, and only in words of some length: a prefix of tokens
        )
        self.kinds = kinds


def _pattern(kind: str, pattern: str, accept: Callable[[str], bool] | None = None, *, back: int = 0) -> Look:
    """Match at the anchor, or up to `back` characters before it; the group `secret`, or all of it, is the secret."""

    def look(text: str, at: int, anchor: str) -> Found | None:
        compiled = re.compile(pattern)
        for start in range(max(0, at - back), at + 1):
            found = compiled.match(text, start)
            if found:
                break
        else:
            return None
        if start < at and not _starts(text, start, loosely=False):
            return None
        group = "secret" if "secret" in compiled.groupindex else 0
        if accept and not accept(found[group]):
            return None
        return (*found.span(group), kind)

    return look


def _standing(kind: str, pattern: str, accept: Callable[[str], bool] | None = None) -> Look:
    """As `_pattern`, but not within a word."""
    look = _pattern(kind, pattern, accept)
    return lambda text, at, anchor: look(text, at, anchor) if _starts(text, at, loosely=False) else None


def _starts(text: str, at: int, *, loosely: bool = True) -> bool:
    """Whether a token may start here: not within a word. An escape (`\\n`, `%3D`, `\\u0026`) before it is no word."""
    if at == 0:
        return True
    before = text[at - 1]
    if before in "_-":
        return loosely
    if not (before.isascii() and before.isalnum()):
        return True
    if text[at - 2 : at] in ("\\n", "\\r", "\\t"):
        return True
    return values.holds(r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\x1b\[[0-9;]{0,12}m)\Z", text[max(0, at - 16) : at])


# Tokens that say what they are ----------------------------------------------------------------------------------------

_RUNS = {
    "A": r"[A-Za-z0-9]*+",
    "w": r"[A-Za-z0-9_-]*+",
    "b": r"[A-Za-z0-9+/_=-]*+",
    "h": r"[0-9a-fA-F]*+",
    ".": r"[A-Za-z0-9_.=-]*+",
    "U": r"[A-Z0-9]*+",
}
_BREAK = r"(?:=?\r?\n|\\n|\\\r?\n)[ \t>|]{0,16}"  # a line wrapped by a terminal, a mail program, a quote
_LEAST_CUT = 6


def _prefixed(kind: str, prefixes: str, alphabet: str, least: int, size: int = 0, *, random: bool = False) -> Rule:
    """The rule for tokens of one of `prefixes` and `least` or more characters of an alphabet. `size`: as many as all
    has, where all have the same number; a broken line is joined up to it. `random`: names and words begin so, too."""

    def look(text: str, at: int, anchor: str) -> Found | None:
        if not _starts(text, at, loosely=len(anchor) > 3 and not random):
            return None
        body = at + len(anchor)
        end, length = _joined(text, body, re.compile(_RUNS[alphabet]), size)
        value = text[body:end]
        is_cut = length >= _LEAST_CUT and len(text) - end <= 4 and text[end:].strip() in ("", "…", "...")
        if length < least and not (is_cut and any("0" <= c <= "9" for c in value)):
            return None
        if random:
            known = values.is_hex(value) or (values.is_random(value) and (length >= least or length >= 12))
        else:
            known = len(set(value)) >= 4 or value.upper() == value
        return (at, end, kind) if known else None

    return Rule(tuple(prefixes.split()), look, exact=True, kinds=(kind,))


def _joined(text: str, body: int, run: re.Pattern[str], size: int) -> tuple[int, int]:
    """Where a run of characters ends that begins here, and its length: over broken lines up to `size`."""
    end = run.match(text, body).end()  # type: ignore[union-attr] # an empty run matches
    length = end - body
    while 4 <= length < size and end < len(text) and text[end] in "=\r\n\\":
        broken = re.compile(_BREAK).match(text, end)
        if not broken:
            break
        rest = run.match(text, broken.end()).end()  # type: ignore[union-attr]
        more = rest - broken.end()
        if not 0 < more <= size - length or (more < size - length and more < 16):
            break
        if more > 3 and not _mixed(text[broken.end() : rest]):
            break
        end, length = rest, length + more
    return end, length


def _mixed(value: str) -> bool:
    return any("0" <= c <= "9" for c in value) or values.changes_case(value) >= 2


_PREFIXES = (
    _prefixed("anthropic_key", "sk-ant-", "w", 16, 101),
    _prefixed("openai_key", "sk-proj- sk-svcacct- sk-admin-", "w", 16),
    _prefixed("openai_key", "sk-", "w", 20, 48, random=True),
    _prefixed("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", "A", 20, 36),
    _prefixed("github_token", "github_pat_", "w", 20, 82),
    _prefixed(
        "gitlab_token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- gloas- glimt- glffct- glrtr- GR1348941",
        ".",
        16,
        20,
    ),
    _prefixed("slack_token", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", "w", 10),
    _prefixed("slack_token", "xoxe.xox", "w", 20),
    _prefixed("google_key", "AIza", "w", 30, 35),
    _prefixed("google_key", "ya29.", "w", 20),
    _prefixed("google_key", "GOCSPX-", "w", 20, 28),
    _prefixed("google_key", "1//0", "w", 30),
    _prefixed("stripe_key", "sk_live_ rk_live_ sk_test_ rk_test_ sk_prod_ rk_prod_", "A", 10),
    _prefixed("stripe_key", "whsec_", "b", 20, 32),
    _prefixed("npm_token", "npm_", "A", 30, 36),
    _prefixed("pypi_token", "pypi-", "w", 30, random=True),
    _prefixed("huggingface_token", "hf_", "A", 20, 34),
    _prefixed("huggingface_token", "api_org_", "A", 30, 34),
    _prefixed("aws_key", "AKIA ASIA ABIA ACCA", "U", 16, 16),
    _prefixed(
        "provider_key",
        "gsk_ r8_ lin_api_ ntn_ figd_ figo_ sntrys_ sntryu_ glc_ glsa_ ATATT3x ATCTT3x ATBB ABSK"
        " fo1_ fm1r_ fm1a_ fm2_ sbp_ sb_secret_ rdme_ vcp_ vci_ vca_ vcr_ vck_ cfut_ cfat_ cfk_ pnu_ pcsk_ tfp_ sgp_"
        " tgp_v1_ ops_eyJ nvapi- bkua_ CCIPAT_ CCIPRJ_ CFPAT- lsv2_ pscale_tkn_ pscale_pw_ pscale_oauth_ shippo_live_"
        " shippo_test_ xkeysib- xsmtpsib- AKCp EZAK EZTK HRKU-AA rubygems_ hvs. hvb. hvr. dp.pt."
        " dp.st. pul- tskey- xai- pplx- PMAK- duffel_live_ rzp_live_ sm_aat_ sm_pat_ p8e- ico- jina_ e2b_"
        " sk-lf- pat-na1- pat-eu1- squ_ sqp_",
        "b",
        20,
        random=True,
    ),
    _prefixed("provider_key", "LTAI", "A", 12),
    _prefixed("provider_key", "dckr_pat_ dckr_oat_ sq0atp- sq0csp- NRAK- NRII-", "w", 20),
    _prefixed("provider_key", "SG.", ".", 40, 66),
    _prefixed("provider_key", "dt0c01.", ".", 60, 89),
    _prefixed("provider_key", "sk.eyJ", ".", 40),
    _prefixed("provider_key", "dop_v1_ doo_v1_ dor_v1_", "h", 40, 64),
    _prefixed("provider_key", "shpat_ shpca_ shppa_ shpss_ shptka_", "h", 24, 32),
    _prefixed("provider_key", "dapi", "h", 32, 32),
    _prefixed("provider_key", "EAA", "A", 60, random=True),
    _prefixed("provider_key", "access-production- access-development-", "w", 36, 36),
    _prefixed("provider_key", "FLWSECK- SWMTKN-1- fio-u-", "w", 20),
    _prefixed("provider_key", "phx_ rnd_", "A", 28, random=True),
    _prefixed("provider_key", "lin_oauth_", "h", 40, 64),
)


def _rushdb(text: str, at: int, anchor: str) -> Found | None:
    if not _starts(text, at, loosely=False):
        return None
    return _pattern("rushdb_token", r"(?:in|ex|ff)_[01]{4}\d{0,8}_[A-Za-z0-9+/=_-]{24,}+")(text, at, anchor)


def _made(secret: str) -> bool:
    return (values.is_random(secret) or values.is_hex(secret)) and not values.is_reference(secret)


_HEX32 = r"[0-9a-f]{32}(?![A-Za-z0-9])"
_B64 = r"[A-Za-z0-9_-]"

_TOKENS = (
    *_PREFIXES,
    Rule(("in_", "ex_", "ff_"), _rushdb, exact=True, kinds=("rushdb_token",)),
    Rule(("key-",), _standing("provider_key", "key-" + _HEX32), exact=True, kinds=("provider_key",)),
    Rule(("pat",), _standing("provider_key", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"), exact=True),
    Rule(("re_",), _standing("provider_key", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}+"), exact=True),
    Rule(("fw_",), _standing("provider_key", r"fw_[A-Za-z0-9]{24}(?![A-Za-z0-9_])"), exact=True),
    Rule(("SK",), _standing("provider_key", "SK" + _HEX32), exact=True),
    Rule(("v1.0-",), _standing("provider_key", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}+"), exact=True),
    Rule(("A3-",), _standing("provider_key", r"A3-[A-Z0-9]{6}-[A-Z0-9]{6,11}(?:-[A-Z0-9]{5}){3,4}"), exact=True),
    Rule(("secret_",), _standing("provider_key", r"secret_[A-Za-z0-9]{43}(?![A-Za-z0-9_])"), exact=True),
    Rule(("oy2",), _standing("provider_key", r"oy2[a-z0-9]{43}(?![A-Za-z0-9_])"), exact=True),
    Rule(("cio",), _standing("provider_key", r"cio[A-Za-z0-9]{32}(?![A-Za-z0-9_])", _made), exact=True),
    Rule(("v1.",), _standing("provider_key", r"v1\.[0-9a-f]{40}(?![A-Za-z0-9_])"), exact=True),
    Rule(("mfa.",), _standing("provider_key", r"mfa\.[A-Za-z0-9_-]{60,}+"), exact=True),
    Rule(("K10",), _standing("provider_key", r"K10[0-9a-f]{64}::[a-z]{1,32}:[0-9a-zA-Z]{16,}+"), exact=True),
    Rule(
        ("v1.local.", "v2.local.", "v3.local.", "v4.local."),
        _standing("provider_key", r"v[1-4]\.local\.[A-Za-z0-9_-]{40,}+(?:\.[A-Za-z0-9_-]*+)?"),
        exact=True,
    ),
    Rule(
        ("xprv", "yprv", "zprv", "tprv"),
        _standing("private_key", r"[xyzt]prv[1-9A-HJ-NP-Za-km-z]{90,120}+"),
        exact=True,
    ),
    Rule(("AGE-SECRET-KEY-",), _pattern("age_key", r"AGE-SECRET-KEY-1[0-9A-Z]{20,}+"), exact=True, kinds=("age_key",)),
    Rule(
        ("Q~",),
        _pattern("provider_key", r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}", back=4),
        exact=True,
    ),
    Rule(
        (".atlasv1.",), _pattern("provider_key", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{50,}+", back=14), exact=True
    ),
    Rule(("-us",), _pattern("provider_key", r"[0-9a-f]{32}-us\d{1,2}(?![A-Za-z0-9_])", back=32), exact=True),
    Rule(
        (":AA",),
        _pattern("telegram_token", r"\d{8,10}:AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])", back=10),
        exact=True,
        kinds=("telegram_token",),
    ),
    Rule(
        ("MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"),
        _standing("discord_token", _B64 + r"{23,28}\." + _B64 + r"{6}\." + _B64 + r"{27,45}(?![A-Za-z0-9_-])"),
        exact=True,
        kinds=("discord_token",),
    ),
)


def _jwt(text: str, at: int, anchor: str) -> Found | None:
    """Also one that is broken into lines, or cut off at the end of the text. JSON in base64 alone is no token."""
    if not _starts(text, at):
        return None
    found = re.compile(r"eyJ[A-Za-z0-9_-]{8,}+").match(text, at)
    if not found:
        return None
    end, dots = found.end(), 0
    part = re.compile(r"\.[A-Za-z0-9_-]*+")
    line = re.compile(_BREAK + r"(?=[A-Za-z0-9_.-]{16})(?P<rest>[A-Za-z0-9_-]*+)")
    while True:
        more = part.match(text, end) if dots < 4 else None
        if more:
            dots += 1
        else:
            more = line.match(text, end) if end - at >= 40 else None
            if not more or (more["rest"] and not values.is_random(more["rest"])):
                break
        end = more.end()
    if dots == 0:
        return (at, end, "jwt") if len(text) - end <= 4 and end - at >= 16 and not text[end:].strip(" .…\n") else None
    return (at, end, "jwt") if end - at >= 24 else None


# Private keys ---------------------------------------------------------------------------------------------------------

_PEM_NAME = r"[A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?"
_PEM = (
    r"-{4,5} ?BEGIN " + _PEM_NAME + r" ?-{4,5}(?:"
    r"(?:[^-]|-(?!---)){0,32768}+-{4,5} ?END " + _PEM_NAME + r" ?-{4,5}"
    # unterminated: what looks like the body of a key, up to prose or the end
    r"|(?:(?:\s|\\[rn]|[>|\"'+,])*+(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Subject):[^\n]{0,200}+"
    r"|[A-Za-z0-9+/=]{20,}+|[A-Za-z0-9+/=]{1,19}+(?=\s*+(?:…|\.\.\.)?\Z)))++)"
)


def _end_of_key(text: str, at: int, anchor: str) -> Found | None:
    """The rest of a private key whose beginning was cut off."""
    if not re.compile(r"-{5}END " + _PEM_NAME + "-{5}").match(text, at):
        return None
    start = at
    while at - start < 16384:
        body = text[:start][-4:].rstrip("\r\n \t") if start < 4 else text[start - 4 : start].rstrip("\r\n \t")
        begin = start - (min(4, start) - len(body))
        first = begin
        while (
            first > 0
            and begin - first < 128
            and (text[first - 1].isalnum() or text[first - 1] in "+/=")
            and text[first - 1].isascii()
        ):
            first -= 1
        if begin - first < 16:
            break
        start = first
        if first == 0 or text[first - 1] not in "\r\n \t":
            break
    if at - start < 16:
        return None
    end = re.compile(r"-{5}END " + _PEM_NAME + "-{5}").match(text, at)
    return (start, end.end(), "private_key") if end else None


# Where secrets stand: addresses, headers, cookies ---------------------------------------------------------------------


def _known(secret: str) -> bool:
    return not values.is_placeholder(secret)


def _bearer(secret: str) -> bool:
    if values.is_placeholder(secret):
        return False
    return any("0" <= c <= "9" for c in secret) or secret.endswith("=") or values.changes_case(secret) >= 3


def _basic(secret: str) -> bool:
    return secret.endswith(("=", "%3D")) or any("0" <= c <= "9" for c in secret)


_ADDRESSES = (
    Rule(
        ("://",),
        _pattern(
            "url_password",
            r"://[^\s:/?#\"'<>@\[]{0,256}:(?!\d{1,5}[/?#])"
            r"(?P<secret>[^\s\"'<>@]{1,256}+(?:@[^\s\"'<>@]{1,256}+(?=@)){0,4})@",
            _known,
        ),
        kinds=("url_password",),
    ),
    Rule(("://",), _pattern("url_password", r"://(?P<secret>[A-Za-z0-9_.~%-]{20,256})@", _made)),
    Rule(
        ("%3a%2f%2f",),
        _pattern(
            "url_password",
            r"(?i)%3a%2f%2f(?:(?!%3a|%2f|%40)[^\s\"'<>&]){0,128}%3a(?P<secret>(?:(?!%40)[^\s\"'<>&]){1,128})%40",
        ),
    ),
    Rule(
        ("hooks.slack.com",),
        _pattern(
            "slack_webhook",
            r"(?i:hooks\.slack\.com)(?:/|%2[fF])(?:services|workflows|triggers)(?:/|%2[fF])"
            r"(?P<secret>[A-Za-z0-9/%]{20,}+)",
        ),
        kinds=("slack_webhook",),
    ),
    Rule(
        ("api/webhooks/",),
        _pattern("discord_webhook", r"(?i:api/webhooks)/(?P<secret>\d{15,22}/[A-Za-z0-9_-]{40,}+)"),
        kinds=("discord_webhook",),
    ),
    Rule(
        ("webhook.office.com",),
        _pattern("webhook", r"(?i:webhook\.office\.com)/webhookb2/(?P<secret>[\w@/-]{32,}+)"),
        kinds=("webhook",),
    ),
    Rule(
        ("sig=", "signature="),
        _standing("secret", r"(?i:sig|signature)=(?P<secret>[A-Za-z0-9%+/_-]{20,512}+=*)", _made),
    ),
    Rule(("otpauth://",), _pattern("secret", r"(?i)otpauth://[^\s\"'<>]{0,256}?[?&]secret=(?P<secret>[A-Z2-7=]{8,})")),
)

_HEADERS = (
    Rule(
        ("authorization",),
        _pattern(
            "authorization",
            r"(?i:authorization)\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?"
            r"(?:(?i:bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256)(?:\s{1,3}|%20|\+))?"
            r"(?P<secret>[^\s\"',;\\<>${}]{8,4096}+)",
            _bearer,
        ),
        kinds=("authorization",),
    ),
    Rule(
        ("bearer",),
        _standing("authorization", r"(?i:bearer)(?:\s{1,3}|%20)(?P<secret>[A-Za-z0-9._~+/=-]{12,4096}+)", _bearer),
    ),
    Rule(
        ("basic",),
        _standing(
            "authorization",
            r"(?i:basic)(?:\s{1,3}|%20)(?P<secret>[A-Za-z0-9+/]{10,1024}+(?:=|%3D){0,2})(?![\w.-])",
            _basic,
        ),
    ),
    Rule(
        ("cookie",),
        _pattern(
            "cookie",
            r"(?i:cookie)\s{0,2}:\s{0,2}(?P<secret>[A-Za-z0-9_.-]{1,64}=[^\s\"'][^\n\"']{3,4096})",
        ),
        kinds=("cookie",),
    ),
    Rule(
        ("curl", "wget"),
        _pattern(
            "cookie",
            r"(?i:curl|wget)\b[^\n]{0,512}?\s(?:-b|--cookie)[ =]?[\"']?"
            r"(?P<secret>[A-Za-z0-9_.-]{1,64}=[^\s\"']{8,1024}+)",
        ),
    ),
    Rule(
        ("sess", "connect.sid"),
        _pattern(
            "cookie",
            r"(?i:sess(?:ion)?[_ ]?(?:id)?|connect\.sid)\\?[\"']?\s{0,2}(?:[:=]|%3[dD])\s{0,2}\\?[\"']?"
            r"(?P<secret>[A-Za-z0-9%._-]{16,512}+)",
            _made,
        ),
    ),
)


def _aws_secret(text: str, at: int, anchor: str) -> Found | None:
    return _pattern(
        "aws_secret",
        r".{0,96}?(?<![A-Za-z0-9/+=])(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        lambda secret: values.is_random(secret) and not values.is_hex(secret),
    )(text, at, anchor)


# Command lines --------------------------------------------------------------------------------------------------------

_ARG = r"[\"']?(?P<secret>[^\s\"'`<>|;$-][^\s\"'`<>|;]{2,256}+)"
_OPTION = r"(?:pass(?:word|wd|phrase)?|token|secret|api-?key|access-key|secret-key|client-secret|auth-?token|pat)"

_COMMANDS = (
    Rule(
        ("curl", "wget"),
        _pattern(
            "password",
            r"(?i:curl|wget)\b[^\n]{0,512}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"'$]{1,128}:"
            r"(?P<secret>[^\s\"'$][^\s\"']{0,256}+)",
            _known,
        ),
    ),
    Rule(("sshpass",), _pattern("password", r"(?i:sshpass)\s{1,3}-p\s{0,3}" + _ARG, _known)),
    Rule(("mysql", "mariadb"), _pattern("password", r"(?i:mysql|mariadb)\w{0,8}\b[^\n|;]{0,200}?\s-p" + _ARG, _known)),
    Rule(("redis-cli",), _pattern("password", r"(?i:redis-cli)\b[^\n|;]{0,200}?\s(?:-a|--pass)\s{1,3}" + _ARG, _known)),
    Rule(
        (" login ", " upload "),
        _pattern(
            "password",
            r"\s(?:login|upload)\s[^\n|;]{0,200}?\s?-p[ =]" + _ARG,
            lambda secret: _known(secret) and not secret.isdigit(),
        ),
    ),
    Rule(("zip ",), _pattern("password", r"zip\s[^\n|;]{0,100}?-P\s{0,2}" + _ARG, _known)),
    Rule(
        ("pass pass:", "passin pass:", "passout pass:"), _pattern("password", r"pass(?:in|out)?\spass:" + _ARG, _known)
    ),
    Rule(
        ("net user ",),
        _pattern(
            "password", r"(?i:net user)\s{1,3}\S{1,64}\s{1,3}(?P<secret>[^\s/*\"][^\s\"]{3,128}+)\s{1,3}/", _known
        ),
    ),
    Rule(
        ("convertto-securestring",),
        _pattern(
            "password", r"(?i:convertto-securestring)\s{1,3}(?:-String\s{1,3})?[\"'](?P<secret>[^\"'\n$]{3,256})[\"']"
        ),
    ),
    Rule(
        ("echo ",),
        _pattern(
            "password",
            r"(?i:echo)\s{1,3}[\"']?(?P<secret>[^\s\"'|$]{3,128}+)[\"']?\s{0,3}\|\s{0,3}sudo\s[^\n|]{0,32}?-\w{0,3}S",
            _known,
        ),
    ),
    Rule(
        ("htpasswd",),
        _pattern(
            "password", r"htpasswd\s{1,3}-\w{0,4}b\w{0,4}\s{1,3}(?:\S{1,128}\s{1,3})?\S{1,128}\s{1,3}" + _ARG, _known
        ),
    ),
    Rule(
        ("requirepass ", "masterauth ", "bindpw "),
        _pattern("password", r"(?i:requirepass|masterauth|bindpw)\s{1,8}" + _ARG, values.said),
    ),
    Rule(("wpa_passphrase ",), _pattern("password", r"wpa_passphrase\s{1,3}\S{1,64}\s{1,3}" + _ARG, _known)),
    Rule(("psk=",), _standing("password", r"psk=\s{0,2}\"(?P<secret>[^\"\n]{8,63})\"", _known)),
    Rule(("openssl enc",), _pattern("password", r"openssl enc\s[^\n|;]{0,200}?\s-k\s{1,3}" + _ARG, values.said)),
    Rule(
        ("identified ",),
        _pattern(
            "password",
            r"(?i:identified)\s{1,3}(?i:with\s{1,3}\S{1,64}\s{1,3})?(?i:by|as)\s{1,3}(?i:password\s{1,3})?[\"']"
            r"(?P<secret>[^\"'\n]{1,256}+)[\"']",
            _known,
        ),
    ),
    Rule(
        ("password '", 'password "'),
        _pattern("password", r"(?i:password)\s[\"'](?P<secret>[^\"'\n]{3,256}+)[\"']", _known),
    ),
    Rule(
        ("login ",),
        _pattern(
            "password",
            r"(?i:login)\s{1,8}\S{1,128}\s{1,8}(?:account\s{1,8}\S{1,64}\s{1,8})?password\s{1,8}(?P<secret>\S{3,256}+)",
            _known,
        ),
    ),
    Rule(
        ("/pass",),
        _pattern(
            "password",
            r"(?i)/pass(?:word)?\s{0,2}[:=]\s{0,2}[^\s/]{1,64}\s{0,2}/\s{0,2}(?P<secret>\S{3,128}+)",
            values.said,
        ),
    ),
    Rule(
        (":5432:", ":3306:"),
        _pattern("password", r":(?:5432|3306):[^:\s]{1,64}:[^:\s]{1,64}:(?P<secret>[^\s\"']{3,256}+)", _known),
    ),
    Rule(
        ("$6$", "$5$", "$1$", "$y$", "$2a$", "$2b$", "$2y$", "$argon2"),
        _pattern("password", r"\$(?:[156y]|2[aby]|argon2\w{1,2})\$[A-Za-z0-9./=,$+]{20,256}+"),
    ),
    Rule(
        ("_authtoken", "heroku"),
        _pattern(
            "secret",
            r"(?i:_authtoken|heroku)[^\n]{0,40}?(?P<secret>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})",
        ),
    ),
    Rule(
        ("--",),
        _pattern(
            "secret",
            r"--(?:[A-Za-z0-9]{1,32}-)?" + _OPTION + r"[ =]\\?[\"']?(?P<secret>[^\s\"'`<>$\[{-][^\s\"'`<>]{3,512}+)",
            lambda secret: _known(secret) and values.classes(secret) >= 2,
        ),
        kinds=("secret",),
    ),
    Rule(
        ("with-token", "password-stdin"),
        _pattern("secret", r"(?i:with-token|password-stdin)\s{0,3}<<<\s{0,3}" + _ARG, _known),
    ),
)

# Names with values, and what sentences say ----------------------------------------------------------------------------

_AFTER_NAME = (
    r"(?P<tail>[A-Za-z0-9_.-]{0,64}+)(?:\\?[\"'\]*`]|&quot;|%22|\s{1,2}value(?==)){0,4}\s{0,4}"
    r"(?P<sign>=>|→|:=|\?=|::|<-|[:=：＝](?!=)|%3[AaDd]|&#58;|&#61;|>|\|(?=\s))[\s*`]{0,8}"
)
_VALUE = (
    r"(?:[bBrRuU]?(?:\\{0,3}(?P<quote>[\"'`])|(?P<entity>&quot;|&#39;))(?P<quoted>(?:(?!\\{0,3}(?P=quote)|&quot;|&#39;)[^\n]){3,256}+)"
    r"|(?P<bare>(?:[^\s\"'`,;<>|&%\\]|&(?![\w.]{1,40}=|quot;|lt;|#)|%(?!26|22|3[BbDd]?26)|\\(?![nrt\"'])){3,256}+))"
)
_MARK = "[redacted:"  # what it names is no name of a value
_IN_NAME = frozenset("_-.")
_SIGNS = ":=：＝%|>&-→"
_NAMES = ("pass", "pwd", "secret", "token", "key", "credential", "creds", "auth", "salt", "_pat", "pw")


def _assignment(text: str, at: int, anchor: str) -> Found | None:
    sign_at = at
    while sign_at - at < 64 and (text[sign_at : sign_at + 1].isalnum() or text[sign_at : sign_at + 1] in _IN_NAME):
        sign_at += 1
    if not any(sign in text[sign_at : sign_at + 12] for sign in _SIGNS):  # most names: nothing is compiled for them
        return None
    after = re.compile(_AFTER_NAME).match(text, at)
    if not after:
        return None
    first = at
    while first > 0 and at - first < 64 and (text[first - 1].isalnum() or text[first - 1] in "_-."):
        first -= 1
    if text.startswith(_MARK, first - len(_MARK)):
        return None
    name = text[first : after.end("tail")].lstrip("-.").rstrip(".-")
    sign = after["sign"]
    if (sign == ">" and text[max(0, first - 1) : first] != "<") or (
        sign == "|" and "|" not in text[max(0, first - 3) : first]
    ):
        return None
    found = re.compile(_VALUE).match(text, after.end())
    if not found:
        return None
    if sign == ">" and not text.startswith("</", found.end()):
        return None
    group = "bare" if found["bare"] is not None else "quoted"
    value = found[group]
    if value.startswith("[redacted:") or (values.is_uuid(value) and not name.isupper()):
        return None
    if first > 1 and text[first - 2 : first] in ("${", "{{"):
        return None
    if text[max(0, first - 1) : first] in ("$", "%") and not (sign == "=" and group == "quoted"):  # `$pw = 'x'` says it
        return None
    if text[found.end() : found.end() + 1] == "(" and group == "bare":
        return None
    kind = values.assigned(name, sign, "quoted" if group == "quoted" else "", value)
    if kind is None:
        return None
    start, end = found.span(group)
    if group == "bare":  # the sentence or the code around it goes on
        end -= len(value) - len(value.rstrip(")]},.…" if sign in ":=" else "…"))
    return start, end, kind


_NAMED = r"(?i:name)[\"']?\s{0,3}:\s{0,3}[\"']?(?P<name>[A-Za-z0-9_.-]{2,128})[\"']?\s{0,3},?\s{0,64}[\"']?\Z"


def _named_value(text: str, at: int, anchor: str) -> Found | None:
    """`name: DB_PASSWORD` and then `value: …`, as lists of variables have them."""
    named = next(re.compile(_NAMED).finditer(text, max(0, at - 224), at), None)
    found = re.compile(r"(?i:value)[\"']?\s{0,3}:\s{0,3}" + _VALUE).match(text, at) if named else None
    if not named or not found:
        return None
    group = "bare" if found["bare"] is not None else "quoted"
    kind = values.assigned(named["name"], "=", "quoted" if group == "quoted" else "", found[group])
    return (*found.span(group), kind) if kind and not found[group].startswith(_MARK) else None


def _docker_env(text: str, at: int, anchor: str) -> Found | None:
    """`ENV DB_PASSWORD value`, the older form of a Dockerfile."""
    found = re.compile(r"(?:ENV|ARG)\s{1,3}(?P<name>[A-Z][A-Z0-9_]{1,63})\s{1,3}(?P<secret>[^\s=\"'$]{3,256}+)").match(
        text, at
    )
    kind = values.assigned(found["name"], "=", "", found["secret"]) if found else None
    return (*found.span("secret"), kind) if found and kind else None


_SAID = (
    r"(?i:pass(?:word|wd|phrase|code|wort)|pwd|pw)(?:\s(?:for|of|on|to)\s\S{1,64}(?:\s\S{1,32})??)??"
    r"(?:\s{1,3}(?i:is|was|ist|lautet|will be|to|should be|now|è|é))\s{0,2}:?\s{0,3}[\"'`*]{0,3}"
    r"(?P<secret>[^\s\"'`<>]{4,128}+)"
)
_FOREIGN = (
    r"(?<![A-Za-z])(?i:contrase[nñ]a|clave|mot de passe|passphrase|passwort|kennwort"
    r"|password|senha|wachtwoord|has[lł]o|parola|lösenord|salasana|[sş]ifre"
    r"|пароль|пароля|密[码碼]|口令|パスワード|비밀번호|암호|كلمة المرور|كلمة السر|סיסמה|पासवर्ड|mật khẩu)(?![A-Za-z])"
    r"(?:(?:\s\S{1,24}){0,3}?\s{1,2}(?:es|é|è|est|ist|lautet|jest|is|är|это|है|هي)(?=[\s:])|は|是|为|為|는|은|가)?"
    r"\s{0,3}(?P<sign>[:=：＝]?)\s{0,3}[\"'`*「『“]{0,3}(?P<secret>[!#-&(-;=?-_a-~]{4,128}+)"
)
_FOREIGN_WORDS = (
    *(
        "contrase",
        "clave",
        "mot de passe",
        "passphrase",
        "passwort",
        "kennwort",
        "senha",
        "wachtwoord",
        "haslo",
        "hasło",
    ),
    *(
        "parola",
        "lösenord",
        "salasana",
        "sifre",
        "şifre",
        "la password",
        "пароль",
        "密码",
        "密碼",
        "口令",
        "パスワード",
    ),
    *("비밀번호", "암호", "كلمة المرور", "كلمة السر", "סיסמה", "पासवर्ड", "mật khẩu"),
)


_VERBS = (" is", " IS", " Is", " was", " will", " to", " should", " now", " ist", " lautet", " è", " é")


def _foreign(text: str, at: int, anchor: str) -> Found | None:
    if text.startswith("la ", at):
        at += 3
    found = re.compile(_FOREIGN).match(text, at)
    if not found or not values.said(found["secret"]) or found["secret"].startswith("[redacted:"):
        return None
    start, end = found.span("secret")
    return start, end - (len(found["secret"]) - len(found["secret"].rstrip(".,;:)"))), "password"


def _said(text: str, at: int, anchor: str) -> Found | None:
    if not any(verb in text[at : at + 128] for verb in _VERBS):
        return None
    found = re.compile(_SAID).match(text, at)
    if not found or not _starts(text, at, loosely=False):
        return None
    secret = found["secret"]
    if secret.startswith("[redacted:") or not values.said(secret):
        return None
    start, end = found.span("secret")
    return start, end - (len(secret) - len(secret.rstrip(".,;:)"))), "password"


_NEAR = (
    r"(?i:keys?|secrets?|tokens?|credentials?|passwords?)\b(?P<gap>[^\n]{0,32}?)"
    r"(?<![A-Za-z0-9+/_=.-])(?P<secret>[A-Za-z0-9+/_=-]{20,256}+)"
)
_KEY_BEFORE = (
    r"(?i)(?:api|access|private|secret|signing|encryption|auth|master|licen[sc]e|deploy|account|webhook|are)[ _-]\Z"
)


def _near(text: str, at: int, anchor: str) -> Found | None:
    """A random string behind a secret-ish word in prose; hex, as commits and digests are, only right behind it."""
    if all(len(word) < 20 for word in text[at : at + 72].split()):
        return None
    found = re.compile(_NEAR).match(text, at)
    if not found or text.startswith(_MARK, at - len(_MARK)) or not _starts(text, at):
        return None
    if text[at] in "kK" and not values.holds(_KEY_BEFORE, text[max(0, at - 12) : at]):
        return None
    secret = found["secret"]
    if values.is_uuid(secret):
        return None
    if values.is_hex(secret.removeprefix("0x")):
        good = (
            re.fullmatch(
                r"(?:\s(?:for|of|on|to)\s\S{1,24})?(?:\s{0,2}(?:is|was|are|=|:|,|->|`|\"|'))*\s{0,2}[`\"']?",
                found["gap"],
            )
            is not None
        )
    else:
        good = values.classes(secret) >= 3 and values.is_random(secret)
    return (*found.span("secret"), "secret") if good else None


_NO_SEED_WORDS = r"(?:the|and|for|are|was|were|with|have|your|from|not|but|can|which|has|its|never|into|our|been)"


def _seed(text: str, at: int, anchor: str) -> Found | None:
    found = re.compile(
        r"(?i:seed phrase|recovery phrase|seed words|secret phrase|mnemonic)[^\n:=\"]{0,32}[\s:=\"'`]{1,6}"
        r"(?P<secret>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})(?![a-z])"
    ).match(text, at)
    if not found or values.holds(rf"\b{_NO_SEED_WORDS}\b", found["secret"]):
        return None
    return (*found.span("secret"), "seed_phrase")


# Local paths ----------------------------------------------------------------------------------------------------------

_PATH_CHARS = r"[^\s\"'`<>|:;,()\[\]{}*?\\]"
_PATH = (
    r"/(?:(?:home|Users)/" + _PATH_CHARS + r"{1,1024}+|root(?![\w.-])" + _PATH_CHARS + r"{0,1024}+"
    r"|(?:tmp|var/folders|private/(?:var|tmp)|Volumes|media)/" + _PATH_CHARS + r"{1,1024}+)"
)
_BEFORE_PATH = r"(?:/(?:var|export|usr|srv|run|host|rootfs|System/Volumes/Data)|(?:/mnt|/cygdrive)?/[A-Za-z])\Z"


def _posix(text: str, at: int, anchor: str) -> Found | None:
    found = re.compile(_PATH).match(text, at)
    if not found:
        return None
    above = next(re.finditer(_BEFORE_PATH, text[max(0, at - 24) : at]), None)
    start = at - len(above[0]) if above else at
    before = text[start - 1 : start]
    if before and (before.isalnum() or before in "_.~/%-") and not _is_option(text, start):
        return None
    if before == " " and values.holds(
        r"\b(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) \Z", text[max(0, start - 9) : start]
    ):
        return None
    return start, found.end(), "path"


def _is_option(text: str, at: int) -> bool:
    """`-I/home/…`, `\\n/home/…` in an escaped text."""
    return text[at - 2 : at] in ("\\n", "\\t", "\\r") or values.holds(r"(?:^|\s)-[A-Za-z]\Z", text[max(0, at - 3) : at])


_WINDOWS = (
    r"(?i)(?:[A-Z]:|\\\\[\w.$-]{1,64}(?:\\[\w.$-]{1,64})?)[\\/]{1,4}(?:Users|Documents and Settings)[\\/]{1,4}"
    r"(?:[^\s\\/\"'`<>|:*?]{1,64}(?: [^\s\\/\"'`<>|:*?]{1,64}){1,3}(?=[\\/])|[^\s\\/\"'`<>|:*?]{1,64})"
    r"(?:[\\/]{1,4}[^\s\\/\"'`<>|:*?,;()]{0,255})*+"
)
_UNC = (
    r"(?:\\{4}[\w.$-]{2,64}\\\\|\\\\[\w.$-]{2,64}\\)"
    r"(?P<rest>[\w.$-]{1,64}(?:\\{1,2}[\w.$@+ -]{0,63}[\w.$@+-])*+)(?![{}])"
)


def _windows(text: str, at: int, anchor: str) -> Found | None:
    found = next(re.compile(_WINDOWS).finditer(text, max(0, at - 136), at + 2048), None)
    if not found or found.start() > at or found.end() <= at:
        return None
    start = found.start()
    return None if start and text[start - 1].isascii() and text[start - 1].isalnum() else (*found.span(), "path")


def _unc(text: str, at: int, anchor: str) -> Found | None:
    if at and (text[at - 1] == "\\" or text[at - 1].isalnum()):
        return None
    found = re.compile(_UNC).match(text, at)
    if not found or "{" in found[0]:
        return None
    host = found[0].lstrip("\\").split("\\", 1)[0]
    share = found["rest"].split("\\", 1)[0]
    if any(c.isdigit() or c in "-.$" for c in host) or share.endswith("$"):
        return (*found.span(), "path")
    return None


_PATHS = (
    Rule(("file:/",), _pattern("path", r"(?i:file):/{1,3}[^\s\"'`<>)\]:/][^\s\"'`<>)\]]{0,1024}+"), kinds=("path",)),
    Rule(("users\\", "users/", "settings\\"), _windows),
    Rule(("\\\\",), _unc),
    Rule(
        ("appdata%", "userprofile%"),
        _pattern("path", r"(?i)%(?:(?:LOCAL)?APPDATA|USERPROFILE)%[^\s\"'`<>|:*?,;()]{0,512}+", back=6),
    ),
    Rule(
        ("/home/", "/users/", "/root", "/tmp/", "/var/folders/", "/private/", "/volumes/", "/media/"),  # noqa: S108 (to be found)
        _posix,
    ),
    Rule(("%2fhome%2f", "%2fusers%2f"), _pattern("path", r"(?i)%2f(?:home|Users)%2f[\w.+%@-]{1,1024}+")),
    Rule(
        ("~/", "~\\"),
        _pattern("path", r"(?<![\w~/.])~[\\/](?:[\w.@+-]|[\\/](?=[\w.]))[^\s\"'`<>|:;,()\[\]{}*?$]{0,1024}+"),
    ),
)

RULES = (
    Rule(("---- begin", "-----begin"), _pattern("private_key", _PEM), kinds=("private_key",)),
    Rule(("-----end",), _end_of_key),
    Rule(
        ("b3BlbnNzaC1rZXktdjE",),  # the beginning of every OpenSSH key, where its first line is left out
        _pattern("private_key", r"b3BlbnNzaC1rZXktdjE(?:[A-Za-z0-9+/=]{1,76}+\s{0,3}){1,400}+(?<=[A-Za-z0-9+/=\n])"),
        exact=True,
    ),
    Rule(
        ("private-lines:",),
        _pattern(
            "private_key",
            r"(?i:private-lines:)\s{0,3}\d{1,4}\s{1,3}"
            r"(?P<secret>(?:[A-Za-z0-9+/=]{4,256}+\s{0,3}){1,400}+)(?<=[A-Za-z0-9+/=\n])",
        ),
    ),
    *_TOKENS,
    Rule(("eyJ",), _jwt, exact=True, kinds=("jwt",)),
    Rule(("aws", "secretaccesskey", "secret_key", "secret_access_key"), _aws_secret, kinds=("aws_secret",)),
    *_ADDRESSES,
    *_HEADERS,
    *_COMMANDS,
    Rule(_NAMES, _assignment, kinds=("password", "secret")),
    Rule(("value:", 'value":', "value':"), _named_value),
    Rule(("env ", "arg "), _docker_env),
    Rule(("pass", "pwd", "pw"), _said),
    Rule(_FOREIGN_WORDS, _foreign),
    Rule(("key", "secret", "token", "credential", "passw"), _near),
    Rule(("seed phrase", "recovery phrase", "secret phrase", "seed words", "mnemonic"), _seed, kinds=("seed_phrase",)),
    *_PATHS,
)
