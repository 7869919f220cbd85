"""Print precision and recall of `producer.redaction` on both halves of the labelled set, by kind.

A secret counts as found when none of it is left: no run of eight of its characters (or all of them, where there are
fewer). A redaction counts as right when it lies on a secret. `python -m tests.redaction_figures [--missed]`
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass, field

from producer import redaction
from tests import redaction_cases

_PLACEHOLDER = re.compile(r"\[redacted:([a-z_]+)\]")


@dataclass(frozen=True, kw_only=True)
class Figures:
    half: str
    cases: int = 0
    secrets: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    redactions: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    missed: list[redaction_cases.Case] = field(default_factory=list)
    wrong: list[redaction_cases.Case] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)  # characters: of secrets ("secret"), of anything ("all")

    @property
    def recall(self) -> float:
        return self.found.total() / self.secrets.total()

    @property
    def precision(self) -> float:
        return self.right.total() / max(1, self.redactions.total())


def measure(half: str) -> Figures:
    cases = redaction_cases.cases(half)
    figures = Figures(half=half, cases=len(cases))
    for case in cases:
        redacted, _ = redaction.redact(case.text)
        places = spans(case.text, redacted)
        left = False
        for start, end, kind in case.secrets:
            figures.secrets[kind] += 1
            gone = not leaked(case.text[start:end], redacted)
            figures.found[kind] += gone
            left |= not gone
        false = False
        for start, end, kind in places:
            right = any(start < stop and begin < end for begin, stop, _ in case.secrets)
            figures.redactions[kind] += 1
            figures.right[kind] += right
            false |= not right
            figures.covered["all"] += end - start
            figures.covered["secret"] += sum(
                max(0, min(end, stop) - max(start, begin)) for begin, stop, _ in case.secrets
            )
        if left:
            figures.missed.append(case)
        if false:
            figures.wrong.append(case)
    return figures


def leaked(secret: str, redacted: str) -> bool:
    rest = _PLACEHOLDER.sub("\n", redacted)
    size = min(8, len(secret))
    return any(
        secret[at : at + size] in rest
        for at in range(len(secret) - size + 1)
        if "-----" not in secret[at : at + size] and "PRIVATE" not in secret[at : at + size]
    )


def spans(text: str, redacted: str) -> list[tuple[int, int, str]]:
    """Where in the text the placeholders stand for what."""
    pieces = _PLACEHOLDER.split(redacted)
    literal = [re.escape(piece) for piece in pieces[::2]]
    found = re.fullmatch("(.+?)".join(literal), text, re.DOTALL)
    if found is None:  # hidden characters were taken out first
        text = redaction.unhidden(text)
        found = re.fullmatch("(.+?)".join(literal), text, re.DOTALL)
        assert found is not None, redacted
    return [
        (*found.span(number), kind)
        for number, kind in enumerate(pieces[1::2], 1)
        if not _PLACEHOLDER.fullmatch(found[number])  # it stood in the text
    ]


def show(figures: Figures) -> str:
    lines = [f"{figures.half}: {figures.cases} texts, {figures.secrets.total()} secrets", ""]
    lines += ["| kind | secrets | found | recall | redactions | right | precision |", "|---|--:|--:|--:|--:|--:|--:|"]
    for kind in sorted({*figures.secrets, *figures.redactions}):
        row = (figures.secrets[kind], figures.found[kind], figures.redactions[kind], figures.right[kind])
        lines.append(_row(kind, *row))
    totals = (counter.total() for counter in (figures.secrets, figures.found, figures.redactions, figures.right))
    lines += [
        _row("**all**", *totals),
        "",
        f"Of the redacted characters {figures.covered['secret'] / max(1, figures.covered['all']):.3f} were secret.",
    ]
    return "\n".join(lines)


def _row(kind: str, secrets: int, found: int, redactions: int, right: int) -> str:
    recall = f"{found / secrets:.3f}" if secrets else ""
    precision = f"{right / redactions:.3f}" if redactions else ""
    return f"| {kind} | {secrets} | {found} | {recall} | {redactions} | {right} | {precision} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missed", action="store_true", help="also print what was missed, and what was no secret")
    parser.add_argument("halves", nargs="*", default=["development", "held_out"])
    given = parser.parse_args()
    for half in given.halves:
        figures = measure(half)
        print(show(figures), end="\n\n")
        if given.missed:
            for what, cases in (("missed", figures.missed), ("wrong", figures.wrong)):
                for case in cases:
                    print(f"{what}: {case.text!r}\n    {redaction.redact(case.text)[0]!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
