"""Conversations made from documented Python functions.

Invariant: every sentence of a conversation is either one of the fixed phrasings below or comes
from the function itself; plans inside think tags name only calls, loops and returns that occur.
Functions are found by their indentation, not by parsing, so a broken file costs nothing.
"""

import re
import textwrap
from dataclasses import dataclass

HEAD = re.compile(r"^([ \t]*)(?:async )?def (\w+)\(", re.M)
COLON = re.compile(r":[ \t]*(#[^\n]*)?\n")
DOCSTRING = re.compile(r'\s*[rRuU]?("""|\'\'\')(.*?)\1[ \t]*\n?', re.S)
CALL = re.compile(r"\b([A-Za-z_][\w.]*)\(")
NOT_CALLS = {"def", "if", "elif", "while", "for", "return", "and", "or", "not", "in", "is",
             "print", "super", "isinstance", "len", "str", "int", "float", "list", "dict",
             "tuple", "set", "range", "enumerate", "zip", "lambda", "assert", "with", "yield"}

WRITE = ["Write a Python function `{name}`. {doc}",
         "Write a Python function with this signature:\n\n```python\n{head}\n```\n\n{doc}",
         "Implement `{name}` in Python.\n\n{doc}",
         "I need a function `{head}` that does this: {doc}",
         "Complete this function:\n\n```python\n{head}\n    \"\"\"{doc}\"\"\"\n```"]
EXPLAIN = ["Explain what this function does.\n\n```python\n{code}\n```",
           "What does `{name}` do?\n\n```python\n{code}\n```",
           "Write a docstring for this function.\n\n```python\n{code}\n```"]
SYSTEM = ["You are a coding assistant.", "You are a helpful assistant that writes Python.",
          "Answer briefly."]


@dataclass
class Function:
    """A function found in a file; body_start and body_end are offsets into that file."""
    name: str
    head: str
    docstring: str
    code: str        # dedented, without its docstring
    body_start: int
    body_end: int


def functions(text, limit=60):
    """Returns up to `limit` Functions of at most about 60 lines, in file order."""
    found = []
    for match in HEAD.finditer(text):
        indent = match.group(1)
        colon = COLON.search(text, match.end())
        if not colon or colon.start() - match.start() > 500:
            continue
        body_start = colon.end()
        inner = re.compile(r"(?:[ \t]*\n)*(" + re.escape(indent) + r"[ \t]+)\S").match(
            text, body_start)
        if not inner:
            continue
        stop = re.compile(r"^(?!" + re.escape(inner.group(1)) + r")[ \t]*\S", re.M).search(
            text, inner.end())
        end = stop.start() if stop else len(text)
        body = text[body_start:end].rstrip()
        if not body or len(body) > 3000:
            continue
        body_end = body_start + len(body)
        doc = DOCSTRING.match(text, body_start, body_end)
        rest = text[doc.end():body_end] if doc else body
        head = textwrap.dedent(text[match.start():colon.start() + 1])
        code = textwrap.dedent(text[match.start():colon.end()] + rest.rstrip())
        paragraph = clean(doc.group(2)) if doc and rest.strip() else ""
        found.append(Function(match.group(2), head, paragraph, code, body_start, body_end))
        if len(found) == limit:
            break
    return found


def clean(docstring):
    """Returns the first paragraph of a docstring as one line, or "" if it says too little."""
    first = textwrap.dedent(docstring).strip().split("\n\n")[0]
    first = " ".join(first.split())
    return first if 12 <= len(first) <= 400 and first[0].isalpha() else ""


def plan(function):
    """Returns a short plan of the function's body, from its own loops, calls and returns."""
    lines = function.code.split("\n")[1:]
    arguments = re.findall(r"(\w+)\s*(?:[:=][^,]*)?(?:,|\)|$)",
                           function.head.split("(", 1)[1].rsplit(")", 1)[0] + ")")
    arguments = [a for a in arguments if a not in ("self", "cls", "None", "True", "False")][:4]
    steps = []
    if arguments:
        steps.append("It takes " + ", ".join(f"`{a}`" for a in arguments) + ".")
    calls = []
    for line in lines:
        s = line.strip()
        if s.startswith("for ") and s.endswith(":"):
            steps.append(f"Loop: {s[:-1]}.")
        elif s.startswith("while ") and s.endswith(":"):
            steps.append(f"Repeat while {s[6:-1]}.")
        elif s.startswith("if ") and s.endswith(":") and len(steps) < 6:
            steps.append(f"Check {s[3:-1]}.")
        elif s.startswith("raise "):
            steps.append(f"Raise {s[6:].split('(')[0]} if that fails.")
        elif s.startswith("return ") and len(s) < 90:
            steps.append(f"Return {s[7:]}.")
        for name in CALL.findall(s):
            if name not in NOT_CALLS and name not in calls:
                calls.append(name)
    if calls:
        at = 1 if arguments else 0
        steps.insert(at, "Use " + ", ".join(f"`{c}`" for c in calls[:5]) + ".")
    return "\n".join(steps[:7]) or "A short body is enough."


def conversation(function, rng):
    """Returns (messages, thinking) for a function that has a docstring."""
    thinking = rng.random() < 0.4
    write = rng.random() < 0.6
    fields = {"name": function.name, "head": function.head, "doc": function.docstring,
              "code": function.code}
    turns = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.2 else []
    reason = plan(function) if thinking else ""
    code = f"```python\n{function.code}\n```"
    if write:
        turns.append({"role": "user", "content": rng.choice(WRITE).format(**fields)})
        turns.append({"role": "assistant", "content": code, "reasoning_content": reason})
        if rng.random() < 0.2:
            turns.append({"role": "user", "content": "Explain what it does."})
            turns.append({"role": "assistant", "content": function.docstring,
                          "reasoning_content": reason})
    else:
        turns.append({"role": "user", "content": rng.choice(EXPLAIN).format(**fields)})
        turns.append({"role": "assistant", "content": function.docstring,
                      "reasoning_content": reason})
    return turns, thinking
