"""What a value looks like: made by a generator, chosen by a person, or no secret at all. Compiles nothing on import."""

from __future__ import annotations

import re

__all__ = [
    "assigned",
    "changes_case",
    "classes",
    "holds",
    "is_hex",
    "is_placeholder",
    "is_random",
    "is_reference",
    "is_uuid",
    "said",
    "words_of",
]

_PLACEHOLDER = (
    r"(?i)<.*>?|\[.*\]?|\{.*\}*|[^\w\s]*\$[\w({].*|%[\w.]*%?|%\(.*|x{3,}.*|\*{2,}.*|\.{3,}.*|…|-+|_+|#.*|@\w+\W*|:\w+"
    r"|(?:my|your|the|some|an?|new|old|insert|enter|put|replace|add)[ _-].*|/\*.*|//.*"
    r"|(?:null|none|nil|undefined|true|false|yes|no|on|off|str|string|bytes|int|bool|boolean|number|any|object|optional"
    r"|required|missing|redacted|empty|example|password|passwd|secret|token|key|value|todo|tbd|n/a|unknown|unset|default"
    r"|pending|done|failed|invalid|valid|expired|disabled|enabled|hidden|masked|basic|bearer|reset|admin)[\])};:,.!?]*"
)
_REFERENCE = (
    r"(?:self|this|os|process|env|environ|config|settings|args|options|opts|props|ctx|req|request|response|params|await"
    r"|new|lambda|return|typeof|import|from|not|if)[.\[( ].*"
    r"|[A-Za-z_&*][\w.:]*[(\[{].*|[A-Za-z_$]\w*(?:(?:\.|->|::|\?\.)[A-Za-z_]\w*)+[\W]*|[A-Za-z_]\w*(?:\[.*\])?\|.*"
)
_VARIABLE = (
    r"[A-Za-z_]*(?:pass|pw|secret|token|cred|auth|user|default|conf|key|value|data|mode|arg|opt)[a-z]*(?:_[A-Za-z]+)*"
)
# The last word of a name that tells something about a secret, not the secret.
_ABOUT = (
    r"count|counts|length|len|min|max|size|type|types|name|names|id|ids|url|uri|path|file|files|field|fields"
    r"|ttl|expiry|expires|expiration|seconds|minutes|hours|days|limit|budget|policy|hint|label|placeholder"
    r"|regex|prefix|suffix|format|version|algorithm|alg|status|input|ref|refs|arn|index|usage|rate|enabled"
    r"|disabled|required|provider|manager|store|class|error|errors|reset|change|changed|strength|rotation"
    r"|validator|rules|rule|text|title|message|list|dir|parallelism|address|issuer|audience|scope|scopes"
    r"|endpoint|host|port|user|username|email|time|date|at|on"
)
_PERSONAL = (
    r"passw(?:or(?:ds?|t|te|d1|d2))?(?:$|_)|passwd|passphrase|passcode|(?:^|_)(?:pwd?|pass|pw|kennwort)\d?(?:$|_)|pwd$"
)
_CALLED_KEY = (
    r"(?:^|_)(?:secrets?|tokens?|credentials?|creds?|salt|pat|bearer|jwt|otp_?seed)\d?(?:$|_)"
    r"|(?:secret|token|credential|apikey|accesskey|secretkey|privatekey|signingkey|encryptionkey|accountkey|authkey"
    r"|masterkey|sharedkey|tokens)(?:$|_)"
    r"|(?:^|_)(?:api|access|private|secret|auth|signing|encryption|encrypt|account|shared|master|session|webhook|jwt"
    r"|licen[sc]e|storage|deploy|ssh|host|subscription|admin|service|client|consumer|application|app|integration|ingest"
    r"|server|cookie|hmac|aes|crypt|crypto|openai|datadog|user|pre_?shared|security|functions?)_?key(?:$|_)"
)
_WEAK_NAME = r"(?:^|_)(?:auth|session|sessionid|sessid|sess|phpsessid|jsessionid|csrf|xsrf)(?:$|_id$|_key$|_token$)"
_NO_SECRET_KEY = r"(?:^|_)(?:primary|foreign|cache|sort|public|partition|index|routing|hot|row|map|max|min|num)_key"  # noqa: S105
_SAID_WORDS = (
    r"(?i)(?:base|utf|sha|md|aes|argon|oauth|http|ipv|win|x)-?\d{1,3}(?:id)?(?:[-_ ].*)?"
    r"|\d+[-+]?(?:char|bit|digit|day|hour|min|letter|fa).*"
    r"|[a-z]+'[a-z]+|.*[(\[{].*[)\]}]|[^@:]+://.*|.*\.(?:py|js|ts|md|txt|json|ya?ml|html?)"
)


def holds(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return any(True for _ in re.finditer(pattern, text))


def classes(value: str) -> int:
    """How many of lower case, upper case, digits and other characters the value has."""
    return (
        any("a" <= c <= "z" for c in value)
        + any("A" <= c <= "Z" for c in value)
        + any("0" <= c <= "9" for c in value)
        + any(not c.isalnum() for c in value)
    )


def changes_case(value: str) -> int:
    """How often a letter is followed by one of the other case."""
    changes, before = 0, ""
    for c in value:
        changes += before.isalpha() and c.isalpha() and before.isupper() != c.isupper()
        before = c
    return changes


def is_random(value: str) -> bool:
    """Whether a key generator may have made it: letters and digits mixed, with no word-like structure."""
    digits = sum("0" <= c <= "9" for c in value)
    if digits == 0:
        return len(value) >= 20 and changes_case(value) * 3 >= len(value)  # and not CamelCase
    letters = [run for run in re.split(r"[^A-Za-z]+", value) if run]
    words = sum(len(run) >= 4 and (run.islower() or run.isupper() or run.istitle()) for run in letters)
    return words * 7 <= len(value) and digits + changes_case(value) >= 3


def is_hex(value: str) -> bool:
    """Twenty or more hexadecimal digits: a key, a commit or a digest."""
    return len(value) >= 20 and re.fullmatch(r"[0-9a-fA-F]+", value) is not None


def is_reference(value: str) -> bool:
    """Whether code takes the value from elsewhere: `config.token`, `get_token()`, `os.environ[...]`."""
    return re.fullmatch(_REFERENCE, value, re.DOTALL) is not None


def is_uuid(value: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", value) is not None


def is_placeholder(value: str) -> bool:
    """Whether the value stands for another: `<token>`, `$TOKEN`, `****`, `your-key`, `null`."""
    return re.fullmatch(_PLACEHOLDER, value, re.DOTALL) is not None


def words_of(name: str) -> str:
    """`accessKeyID`, `ACCESS-KEY-ID`, `access.key.id` as `access_key_id`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[.\-/ ]+", "_", name)
    return re.sub(r"_+", "_", parted).lower().strip("_")


def assigned(name: str, sign: str, quote: str, value: str) -> str | None:
    """The kind of secret that `name sign value` holds: `password` or `secret`; None for a type, a call, a reference,
    a number of tokens, a placeholder, or a name that means no secret."""
    words = words_of(name)
    last = words.rsplit("_", 1)[-1]
    is_password = holds(_PERSONAL, words)
    if sign == "|" and not said(value):  # a row of a table, or types
        return None
    is_weak = False
    if not is_password and not holds(_CALLED_KEY, words):
        is_loud_key = name.isupper() and last == "key" and words != "key"
        is_weak = is_loud_key or holds(_WEAK_NAME, words)
        if not is_weak or holds(_NO_SECRET_KEY, words):
            return None
    if re.fullmatch(_ABOUT, last) and not (last == "id" and is_weak):
        return None
    kind = "password" if is_password else "secret"
    bare = value.rstrip(")]};,.…")  # what closes the code or the sentence around it
    if len(bare) < (3 if is_password else 6) or is_placeholder(value) or is_placeholder(bare):
        return None
    if bare.endswith(("[", "(", "{")) or bare.startswith(("(", "&")) or re.fullmatch(r"0x[0-9a-fA-F]{1,16}", bare):
        return None
    if "::" in value or "->" in value or re.fullmatch(r"[A-Z]+(?:_[A-Z0-9]+)+", bare):
        return None
    if is_weak:
        return kind if _is_made(bare) and not is_reference(value) else None
    if last == "pass" and not name.isupper() and not said(value):  # tests pass, too
        return None
    if name in ("PWD", "OLDPWD") or bare.startswith(("/", "./", "../", "http://", "https://", "==")):
        return None
    if quote:
        return kind if _is_quoted_secret(words, is_password or (name.isupper() and "=" in sign), value) else None
    if is_reference(value) and not (name.isupper() and classes(bare) >= 3 and any("0" <= c <= "9" for c in bare)):
        return None
    if words.endswith(words_of(bare)) or re.fullmatch(_VARIABLE, bare) or (bare.isdigit() and not is_password):
        return None
    if name.isupper() and "=" in sign:  # DB_PASSWORD=letmein: a variable of a shell or an env file
        return kind if not bare.replace(".", "").isdigit() or is_password else None
    if is_password:
        has_mark = any(not c.isalnum() and c not in "-_'" for c in bare) and bare.isascii()
        if "passphrase" in words and bare.count("-") >= 2:  # of words
            return kind
        ok = any(c.isdigit() for c in bare) or (has_mark and len(bare) >= 5) or (classes(bare) >= 2 and "=" in sign)
        return kind if ok and not (last == "length" or re.fullmatch(_SAID_WORDS, bare)) else None
    return (
        kind if _is_made(bare) or (classes(bare) >= 3 and not re.fullmatch(r"[A-Z]?[a-z]+(?:[ -/].*)?", bare)) else None
    )


def _is_quoted_secret(words: str, is_password: bool, value: str) -> bool:
    if " " in value:
        return "passphrase" in words or (is_password and classes(value) >= 3 and value.count(" ") <= 2)
    if value[0] in ",;) ":  # the quote closed a text
        return False
    if is_password:
        return words_of(value) != words and not value.endswith(("=", ":", "("))
    return len(value) >= 8 and (classes(value) >= 2 or len(value) >= 16) and words_of(value) != words


def _is_made(value: str) -> bool:
    """Made by a generator, or the base64 form of something."""
    if not any(c.isalpha() for c in value):
        return False
    if len(value) >= 16 and is_hex(value.ljust(20, "0")):
        return True
    if len(value) >= 12 and re.fullmatch(r"[A-Za-z0-9+/_-]+={1,2}", value):
        return True
    return len(value) >= 8 and is_random(value) and not value.startswith(("http", "/"))


def said(value: str) -> bool:
    """Whether what a sentence calls a password is one: "is Marzi-77", not "is too short" or "is base64-encoded"."""
    bare = value.strip("\"'`*.,!?;:)]}…")
    if len(bare) < 4 or is_placeholder(bare) or re.fullmatch(_SAID_WORDS, bare):
        return False
    if any(c.isdigit() for c in bare) and any(c.isalpha() for c in bare):
        return True
    return len(bare) >= 5 and any(not c.isalnum() and c not in "-'./_’,&():" for c in bare)
