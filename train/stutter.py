"""Repeats in plain code that a model learns to leave, without learning to make them.

A small model that decodes greedily falls into loops: a line that stood there twice is likely a
third time. A stutter copies a line, a block or a few tokens up to eight times behind itself. The
copies are MUTED: as targets they count nothing. What follows the last copy is the document's own
next token and counts in full, so the only thing taught is to go on.
Invariant: without its muted ids a stuttered document is the document.
"""

MUTED = 0x8000         # added to an id of a row (uint16) whose loss is not counted
DOCUMENT_SHARE = 0.6   # of plain documents
TOKENS_BETWEEN = 350   # mean distance of two stutters
LONGEST_UNIT = 96      # tokens
COPIES = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)


def line_end_ids(vocabulary):
    """Ids of the tokens that end a line; byte-level vocabularies write a line feed as U+010A."""
    return frozenset(i for token, i in vocabulary.items() if token.endswith("\u010a"))


def unit_before(ids, at, line_ends, rng):
    """First index of what is to be copied in front of `at`: one to three lines, or some tokens."""
    if ids[at - 1] not in line_ends:
        return max(0, at - rng.randint(1, 8))
    lines, start = rng.choice((1, 1, 1, 2, 3)), at - 1
    while start > 0 and lines > 0 and at - start <= LONGEST_UNIT:
        start -= 1
        lines -= ids[start] in line_ends
    return start + 1 if lines == 0 else start


def stutter(ids, line_ends, rng):
    """Returns ids with muted copies; three of four stand at a line's end."""
    out, done, at = [], 0, 0
    while True:
        at += 1 + int(rng.expovariate(1 / TOKENS_BETWEEN))
        if rng.random() < 0.75:
            while at < len(ids) and ids[at - 1] not in line_ends:
                at += 1
        if at >= len(ids):
            return out + ids[done:]
        start = unit_before(ids, at, line_ends, rng)
        out += ids[done:at]
        if at - start <= LONGEST_UNIT:
            out += [i | MUTED for i in ids[start:at]] * rng.choice(COPIES)
        done = at
