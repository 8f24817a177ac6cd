"""Which name was meant?

The question is what to suggest for a name that is not known. The rule: the nearest known one, by how much of
both is the same (Ratcliff and Obershelp, as difflib counts it), and at least 0.6 of it; where nothing is
near, what there is. To compare costs some 10 us a name, so of many names only those are compared that begin
alike: most misspelt names begin well. Refused: edit distance, which finds `rde` as far from `red` as from
`ad`.
"""

from collections.abc import Iterable
from difflib import get_close_matches

COMPARED_MAX = 500
SHOWN_MAX = 12
NEAR = 0.6


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest known word or, when nothing is near, what there is."""
    names = sorted(set(known))
    near = get_close_matches(word, names, n=1, cutoff=NEAR)
    if near:
        return f"Did you mean: {near[0]}"
    return (
        f"There is: {', '.join(names[:SHOWN_MAX])}{', ...' if len(names) > SHOWN_MAX else ''}"
        if names
        else ""
    )


def worth_comparing(word: str, known: Iterable[str]) -> list[str]:
    """Of many names those that begin as it does."""
    names = list(known)
    for length in (2, 1):
        if len(names) > COMPARED_MAX:
            names = [name for name in names if name[:length] == word[:length]] or names
    return names[:COMPARED_MAX]
