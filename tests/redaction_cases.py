"""The labelled set of `tests/data/redaction_labelled.json`, made whole: texts, and where in them which secret stands.

The file holds texts and no credential of any known form: `«shape»` stands for a value of that shape (`SHAPES`), made
here with a seed, so that no scanner finds a token in this repository. `⟦value⟧` marks a secret that is written out, of
the kind of its case. `{}` in a surrounding takes each shape in turn.

The `development` half was there while the rules were tuned. The `held_out` half was written before them, from other
surroundings and other sentences, and no rule was changed for what it showed.
"""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "data" / "redaction_labelled.json"

_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_ALPHABETS = {
    "A": _LOWER + _UPPER + _DIGITS,
    "U": _UPPER + "234567",
    "h": _DIGITS + "abcdef",
    "d": _DIGITS,
    "l": _LOWER + _UPPER,
    "a": _LOWER + _DIGITS,
    "w": _LOWER + _UPPER + _DIGITS + "_-",
    "b": _LOWER + _UPPER + _DIGITS + "+/",
    "B": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}
# name: (kind, shape); `{A36}` is 36 characters of the alphabet A.
SHAPES = {
    "aws_id": ("aws_key", "AKIA{U16}"),
    "aws_session_id": ("aws_key", "ASIA{U16}"),
    "bedrock": ("provider_key", "ABSK{b120}="),
    "google_api": ("google_key", "AIza{w35}"),
    "google_access": ("google_key", "ya29.{w90}"),
    "google_secret": ("google_key", "GOCSPX-{w28}"),
    "azure_client": ("provider_key", "{A3}8Q~{w34}"),
    "github_classic": ("github_token", "ghp_{A36}"),
    "github_oauth": ("github_token", "gho_{A36}"),
    "github_server": ("github_token", "ghs_{A36}"),
    "github_fine": ("github_token", "github_pat_{A22}_{A59}"),
    "gitlab": ("gitlab_token", "glpat-{w20}"),
    "gitlab_runner": ("gitlab_token", "glrt-{w20}"),
    "gitlab_trigger": ("gitlab_token", "glptt-{h40}"),
    "slack_bot": ("slack_token", "xoxb-{d12}-{d13}-{A24}"),
    "slack_user": ("slack_token", "xoxp-{d12}-{d12}-{d13}-{h32}"),
    "slack_app": ("slack_token", "xapp-1-A{U10}-{d13}-{h64}"),
    "stripe_live": ("stripe_key", "sk_live_{A24}"),
    "stripe_restricted": ("stripe_key", "rk_live_{A99}"),
    "stripe_hook": ("stripe_key", "whsec_{A32}"),
    "openai_old": ("openai_key", "sk-{A20}T3BlbkFJ{A20}"),
    "openai_project": ("openai_key", "sk-proj-{w74}T3BlbkFJ{w74}"),
    "openrouter": ("openai_key", "sk-or-v1-{h64}"),
    "anthropic": ("anthropic_key", "sk-ant-api03-{w93}AA"),
    "huggingface": ("huggingface_token", "hf_{l34}"),
    "npm": ("npm_token", "npm_{A36}"),
    "pypi": ("pypi_token", "pypi-AgEIcHlwaS5vcmc{w90}"),
    "docker": ("provider_key", "dckr_pat_{w27}"),
    "twilio": ("provider_key", "SK{h32}"),
    "sendgrid": ("provider_key", "SG.{w22}.{w43}"),
    "mailgun": ("provider_key", "key-{h32}"),
    "mailchimp": ("provider_key", "{h32}-us12"),
    "brevo": ("provider_key", "xkeysib-{h64}-{A16}"),
    "telegram": ("telegram_token", "{d10}:AA{w33}"),
    "digitalocean": ("provider_key", "dop_v1_{h64}"),
    "heroku": ("provider_key", "HRKU-AA{w58}"),
    "shopify": ("provider_key", "shpat_{h32}"),
    "square": ("provider_key", "sq0atp-{w22}"),
    "square_secret": ("provider_key", "sq0csp-{w43}"),
    "databricks": ("provider_key", "dapi{h32}"),
    "linear": ("provider_key", "lin_api_{A40}"),
    "notion": ("provider_key", "ntn_{d11}{A35}"),
    "atlassian": ("provider_key", "ATATT3xFfGF0{w172}={U8}"),
    "bitbucket": ("provider_key", "ATBB{A32}"),
    "vault": ("provider_key", "hvs.{w95}"),
    "terraform": ("provider_key", "{A14}.atlasv1.{w67}"),
    "cloudflare": ("provider_key", "cfut_{A40}{h8}"),
    "cloudflare_origin": ("provider_key", "v1.0-{h24}-{h146}"),
    "fly": ("provider_key", "fo1_{w43}"),
    "fly_macaroon": ("provider_key", "fm2_{b160}"),
    "vercel": ("provider_key", "vcp_{A56}"),
    "supabase": ("provider_key", "sbp_{h40}"),
    "supabase_secret": ("provider_key", "sb_secret_{w31}"),
    "sentry_user": ("provider_key", "sntryu_{h64}"),
    "grafana": ("provider_key", "glsa_{A32}_{h8}"),
    "grafana_cloud": ("provider_key", "glc_{b120}="),
    "new_relic": ("provider_key", "NRAK-{U27}"),
    "age": ("age_key", "AGE-SECRET-KEY-1{B58}"),
    "tailscale": ("provider_key", "tskey-auth-{A17}-{A32}"),
    "groq": ("provider_key", "gsk_{A52}"),
    "replicate": ("provider_key", "r8_{A37}"),
    "figma": ("provider_key", "figd_{w40}"),
    "perplexity": ("provider_key", "pplx-{A48}"),
    "xai": ("provider_key", "xai-{A80}"),
    "postman": ("provider_key", "PMAK-{h24}-{h34}"),
    "doppler": ("provider_key", "dp.pt.{A43}"),
    "planetscale": ("provider_key", "pscale_tkn_{w43}"),
    "pulumi": ("provider_key", "pul-{h40}"),
    "rubygems": ("provider_key", "rubygems_{h48}"),
    "airtable": ("provider_key", "pat{A14}.{h64}"),
    "dynatrace": ("provider_key", "dt0c01.{U24}.{U64}"),
    "easypost": ("provider_key", "EZAK{A54}"),
    "shippo": ("provider_key", "shippo_live_{h40}"),
    "alibaba": ("provider_key", "LTAI{A20}"),
    "artifactory": ("provider_key", "AKCp{A69}"),
    "buildkite": ("provider_key", "bkua_{h40}"),
    "circleci": ("provider_key", "CCIPAT_{A22}_{h40}"),
    "contentful": ("provider_key", "CFPAT-{w43}"),
    "nvidia": ("provider_key", "nvapi-{w64}"),
    "langsmith": ("provider_key", "lsv2_pt_{h32}_{h10}"),
    "pinecone": ("provider_key", "pcsk_{A6}_{A63}"),
    "resend": ("provider_key", "re_{A8}_{A24}"),
    "onepassword": ("provider_key", "ops_eyJ{b250}"),
    "sourcegraph": ("provider_key", "sgp_{h16}_{h40}"),
    "typeform": ("provider_key", "tfp_{w44}_{A14}"),
    "readme": ("provider_key", "rdme_{a70}"),
    "prefect": ("provider_key", "pnu_{A36}"),
    "rushdb": ("rushdb_token", "in_1010_{h32}{b64}=="),
    "mapbox": ("provider_key", "sk.eyJ{A80}.{w22}"),
    "plaid": ("provider_key", "access-production-{h8}-{h4}-{h4}-{h4}-{h12}"),
    "facebook": ("provider_key", "EAAC{A160}"),
    "jwt": ("jwt", "jwt"),
    "jwe": ("jwt", "jwe"),
}
# Shapes that only a marked text uses: alone they say nothing of what they are.
PARTS = {
    "alnum16": "{A16}",
    "alnum20": "{A20}",
    "alnum24": "{A24}",
    "alnum32": "{A32}",
    "alnum40": "{A40}",
    "hex32": "{h32}",
    "hex40": "{h40}",
    "hex64": "{h64}",
    "base64_40": "{b40}",
    "base64_44": "{b43}=",
    "base64_88": "{b86}==",
    "words32": "{w32}",
    "digits6": "{d6}",
    "uuid": "{h8}-{h4}-4{h3}-a{h3}-{h12}",
    "ulid": "01J{U23}",
    "pem_rsa": "RSA PRIVATE KEY",
    "pem_pkcs8": "PRIVATE KEY",
    "pem_encrypted": "ENCRYPTED PRIVATE KEY",
    "pem_ec": "EC PRIVATE KEY",
    "pem_openssh": "OPENSSH PRIVATE KEY",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    text: str
    secrets: tuple[tuple[int, int, str], ...]  # start, end, kind


def cases(half: str) -> list[Case]:
    """All cases of `development` or `held_out`: the same ones in every run."""
    made = random.Random(f"redaction {half}")
    data = json.loads(FILE.read_text("utf-8"))[half]
    found = []
    for number, (name, (kind, _)) in enumerate(SHAPES.items()):
        for turn in range(2):
            surrounding = data["surroundings"][(2 * number + turn) % len(data["surroundings"])]
            found.append(_case(surrounding.replace("{}", f"«{name}»"), kind, made))
    for kind, texts in data["secrets"].items():
        found += [_case(text, kind, made) for text in texts]
    return found + [_case(text, "", made) for text in data["ordinary"]]


def value(name: str, made: random.Random) -> str:
    shape = SHAPES[name][1] if name in SHAPES else PARTS[name]
    if name in ("jwt", "jwe"):
        header = '{"alg":"dir","enc":"A256GCM"}' if name == "jwe" else '{"alg":"HS256","typ":"JWT"}'
        claims = f'{{"sub":"{made.randrange(10**9)}","exp":{made.randrange(10**9, 2 * 10**9)}}}'
        rest = ["", fill("{w16}", made), fill("{w80}", made), fill("{w22}", made)]
        return ".".join([_base64url(header), *(rest if name == "jwe" else (_base64url(claims), fill("{w43}", made)))])
    if name.startswith("pem_"):
        body = "\n".join(fill("{b64}", made) for _ in range(made.randrange(3, 12)))
        return f"-----BEGIN {shape}-----\n{body}\n{fill('{b30}', made)}==\n-----END {shape}-----"
    return fill(shape, made)


def fill(shape: str, made: random.Random) -> str:
    def some(found: re.Match[str]) -> str:
        while True:
            text = "".join(made.choices(_ALPHABETS[found[1]], k=int(found[2])))
            if len(text) < 16 or found[1] in "dh" or len(set(text)) > 8:
                return text

    return re.sub(r"\{(\w)(\d+)\}", some, shape)


def _base64url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _case(marked: str, kind: str, made: random.Random) -> Case:
    """Marks taken out. `⟦…⟧` is a secret; `«shape»` is one of its own unless it stands within `⟦…⟧` or is a part."""
    text, secrets, opened = "", [], None
    for piece in re.split(r"(«\w+»|[⟦⟧])", marked):
        if piece == "⟦":
            opened = len(text)
        elif piece == "⟧":
            assert opened is not None
            secrets.append((opened, len(text), kind))
            opened = None
        elif piece.startswith("«"):
            name, start = piece[1:-1], len(text)
            text += value(name, made)
            if opened is None and name in SHAPES:
                secrets.append((start, len(text), SHAPES[name][0]))
        else:
            text += piece
    return Case(text=text, secrets=tuple(secrets))
