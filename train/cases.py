"""Draws the cases the model is judged on and grades its function bodies.

Invariant: cases depend only on the held-out documents and a fixed seed, never on a model; packages
take turns, so that a large one does not fill the sample.
"""

import ast
import random
from dataclasses import dataclass

SEED = 20
COMPLETION_TOKENS = 256
CONTEXT_CHARACTERS = 5000
BODY_LINES = (2, 15)
LINE_CONTEXT = (2600, 1600)  # characters before and after a hole


@dataclass
class FunctionCase:
    """A file's text up to and with a function's signature and docstring."""
    prompt: str
    indent: int      # columns of the line with `def`
    expected: str
    where: str


@dataclass
class LineCase:
    """A line taken out of a file, without its indentation and line end."""
    before: str
    middle: str
    after: str


def shuffled(documents):
    random.Random(SEED).shuffle(documents)
    return documents


def in_turn(documents, draw, count):
    """Calls draw(document, rng) over packages in turn until count cases were found."""
    rng = random.Random(SEED)
    packages = {}
    for d in documents:
        if d.language == "python":
            packages.setdefault(d.package, []).append(d)
    found, names, misses = [], sorted(packages), 0
    while len(found) < count and names and misses < 200 * count:
        name = names[(len(found) + misses) % len(names)]
        case = draw(rng.choice(packages[name]), rng)
        if case and case not in found:
            found.append(case)
        else:
            misses += 1
    return found


def context_start(tree, text, offsets, at):
    """Offset of the earliest top-level statement within CONTEXT_CHARACTERS of `at`, or None."""
    starts = [offsets[node.lineno - 1] for node in tree.body]
    starts += [offsets[node.decorator_list[0].lineno - 1] for node in tree.body
               if getattr(node, "decorator_list", None)]
    inside = [s for s in sorted(starts) if at - CONTEXT_CHARACTERS <= s <= at]
    return inside[0] if inside else None


def draw_function(document, rng):
    """Returns a FunctionCase from a random function of the document, or None."""
    text = document.text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not nodes or not text.isascii():
        return None
    node = rng.choice(nodes)
    lines = text.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body or body[0].lineno == node.lineno:
        return None
    length = body[-1].end_lineno - body[0].lineno + 1
    cut = offsets[(body[0].lineno if body is node.body else node.body[0].end_lineno + 1) - 1]
    start = context_start(tree, text, offsets, cut)
    if not BODY_LINES[0] <= length <= BODY_LINES[1] or start is None:
        return None
    if any(isinstance(s, ast.Pass) for s in body):
        return None
    return FunctionCase(text[start:cut], node.col_offset,
                        text[cut:offsets[body[-1].end_lineno]],
                        f"{document.package}:{document.path}:{node.name}")


def prose_lines(tree):
    """Indices of the lines of docstrings and of other strings that span lines."""
    spans = [(n.lineno - 1, n.end_lineno) for n in ast.walk(tree)
             if isinstance(n, ast.Constant) and isinstance(n.value, str)
             and n.end_lineno > n.lineno]
    spans += [(n.lineno - 1, n.end_lineno) for n in ast.walk(tree)
              if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return {line for span in spans for line in range(*span)}


def draw_line(document, rng):
    """Returns a LineCase from a random code line of the document, or None."""
    lines = document.text.split("\n")
    at = rng.randrange(len(lines))
    middle = lines[at].strip()
    if not 5 <= len(middle) <= 120 or middle.startswith("#"):
        return None
    try:
        if at in prose_lines(ast.parse(document.text)):
            return None
    except (SyntaxError, ValueError):
        return None
    indent = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
    before = "\n".join(lines[:at] + [indent])
    after = "\n".join([""] + lines[at + 1:])
    behind, ahead = LINE_CONTEXT
    before = before[-behind:].split("\n", 1)[-1] if len(before) > behind else before
    after = after[:ahead].rsplit("\n", 1)[0] if len(after) > ahead else after
    return LineCase(before, middle, after)


def function_cases(documents, count):
    return in_turn(documents, draw_function, count)


def line_cases(documents, count):
    return in_turn(documents, draw_line, count)


def looping(lines):
    """True if one line, or a block of two or three, is repeated four times in a row."""
    solid = [s.strip() for s in lines if s.strip()]
    for size in (1, 2, 3):
        for at in range(len(solid) - 4 * size + 1):
            block = solid[at:at + size]
            if all(solid[at + i * size:at + (i + 1) * size] == block for i in range(4)):
                return True
    return False


def grade(case, text, tokens):
    """Grades one continuation: cut at the first line that leaves the function, then parsed."""
    kept, left = [], False
    lines = text.split("\n")
    for number, line in enumerate(lines):
        solid = line.strip()
        if solid and len(line) - len(line.lstrip()) <= case.indent:
            left = True
            break
        kept.append(line)
    body = "\n".join(kept).rstrip() + "\n"
    reason = "good"
    if not left and tokens >= COMPLETION_TOKENS:
        reason = "limit"
    elif looping(kept):
        reason = "loop"
    elif not body.strip():
        reason = "empty"
    else:
        try:
            tree = ast.parse(case.prompt + body)
            node = max((n for n in ast.walk(tree)
                        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
                        and n.col_offset == case.indent), key=lambda n: n.lineno)
            real = [s for s in node.body if not isinstance(s, ast.Pass)
                    and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            reason = "good" if real else "pass"
        except (SyntaxError, ValueError, IndexError):
            reason = "syntax"
    solid = [s for s in kept if s.strip()]
    return {"where": case.where, "good": reason == "good", "reason": reason,
            "lines": len(solid), "characters": len(body.strip()), "body": body,
            "expected": case.expected}
