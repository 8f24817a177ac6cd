"""Finds secrets that were committed: `python tools/secrets_scan.py` (tracked files), `--history` (every
version of every file that was ever committed; a minute).

A secret in a file that is deleted later is still in every clone, so both are looked at; the first is quick
enough for each change. It looks for what has a known shape: private keys, tokens of clouds, forges and
package indexes, our own tokens, passwords in URLs, and long random text after a word such as `secret`.
Random text without such a word was refused: hashes, fixtures and lock files would be most of what it finds.

What only looks like one is named in ALLOWED with a reason, or its line ends with the comment `not a secret`.
Exit status 1: something was found. The secret itself is not printed.
"""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SIZE_MAX = 2 << 20
SHOWN = 6  # characters of what was found
RANDOM_BITS = 3.5  # a character, of what is long and not words
MARK = "not a secret"

RULES: dict[str, re.Pattern[str]] = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/]{20}"),
    "AWS access key": re.compile(r"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    "GitHub token": re.compile(r"\b((?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{36,})\b"),
    "GitLab token": re.compile(r"\b(glpat-[A-Za-z0-9_-]{20,})\b"),
    "PyPI token": re.compile(r"\b(pypi-[A-Za-z0-9_-]{50,})"),
    "Slack token": re.compile(r"\b(xox[abprs]-[A-Za-z0-9-]{20,})\b"),
    "OpenAI or Anthropic key": re.compile(r"\b(sk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,})\b"),
    "Hugging Face token": re.compile(r"\b(hf_[A-Za-z]{34})\b"),
    "Google key": re.compile(r"\b(AIza[A-Za-z0-9_-]{35})\b"),
    "holdfast token": re.compile(r"\b(hf[jl]?_[A-Za-z0-9_-]{43,})"),
    "web token": re.compile(r"\b(eyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{15,})"),
    "password in a URL": re.compile(
        r"\b[a-z][a-z0-9+.-]{2,}://[^\s:/@\"'{}<>$]+:([^\s:/@\"'{}<>$]{6,})@[\w.-]+"
    ),
    "assigned secret": re.compile(
        r"(?i)(?:secret|passw(?:or)?d|passphrase|api_?key|access_?key|auth_?token)\w*[\"']?\s*[:=]\s*"
        r"[\"']?([A-Za-z0-9+/_=-]{24,})(?=[\"'\s,;]|$)"
    ),
}
WEIGHED = {"assigned secret"}  # found only if it looks random
ALLOWED: dict[str, str] = {  # in small letters; why it is none
    "akiaiosfodnn7example": "of Amazon's own documentation",
    "password": "stands for one, in an example",
    "secret": "the same",
}


class Found(NamedTuple):
    where: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.rule}: {self.text[:SHOWN]}... ({len(self.text)} characters)"


def scan(where: str, text: str) -> Iterator[Found]:
    for rule, pattern in RULES.items():
        for match in pattern.finditer(text):
            secret = match[match.lastindex or 0]
            if _is_allowed(secret, _line_of(text, match)) or (rule in WEIGHED and not is_random(secret)):
                continue
            yield Found(where, text.count("\n", 0, match.start()) + 1, rule, secret)


def is_random(text: str) -> bool:
    """Letters and digits, and each character as surprising as in text that was drawn."""
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    return bits >= RANDOM_BITS and any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


def _line_of(text: str, match: re.Match[str]) -> str:
    end = text.find("\n", match.end())
    return text[text.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else len(text)]


def _is_allowed(secret: str, line: str) -> bool:
    return MARK in line or secret.lower() in ALLOWED


def tracked(root: Path) -> Iterator[tuple[str, str]]:
    for name in _git(root, "ls-files", "-z").split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink() and path.stat().st_size <= SIZE_MAX:
            yield name, path.read_text(encoding="utf-8", errors="replace")


def committed(root: Path) -> Iterator[tuple[str, str]]:
    """Every version of every file, each once."""
    rows = _git(root, "rev-list", "--objects", "--all").splitlines()
    names = dict(row.split(" ", 1) for row in rows if " " in row)
    with subprocess.Popen(
        ["git", "cat-file", "--batch"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as git:
        assert git.stdin is not None
        assert git.stdout is not None
        for number, name in names.items():
            git.stdin.write(f"{number}\n".encode())
            git.stdin.flush()
            _, kind, size = git.stdout.readline().split()
            body = git.stdout.read(int(size))
            git.stdout.read(1)
            if kind == b"blob" and len(body) <= SIZE_MAX:
                yield f"{number[:10]} {name}", body.decode("utf-8", "replace")
        git.stdin.close()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def main(words: list[str]) -> int:
    source = committed if "--history" in words else tracked
    count, found = 0, list[Found]()
    for where, text in source(ROOT):
        count += 1
        found += scan(where, text)
    for each in found:
        print(each)
    print(f"{count:,} files, {len(found)} of what looks like a secret", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
