"""Draws the loss curves and writes the measured figures into the model card.

Invariant: every number of the card between the `figures` marks comes from eval.json, log.jsonl or
summary.json of the run; a figure that misses its aim says so in its row.
"""

import argparse
import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def plot(log, out):
    """Loss against tokens: next token, drafts, held-out; and the spread of expert use."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), dpi=90)
    tokens = [e["tokens"] / 1e6 for e in log]
    for key, label in (("next", "next token"), ("draft1", "draft 1"), ("draft2", "draft 2"),
                       ("draft3", "draft 3")):
        points = [(t, e[key]) for t, e in zip(tokens, log) if key in e]
        left.plot(*zip(*points), lw=0.7, label=label)
    points = [(t, e["held_out"]) for t, e in zip(tokens, log) if "held_out" in e]
    left.plot(*zip(*points), lw=1.6, color="black", label="next token, held-out packages")
    left.set(xlabel="million tokens", ylabel="nats per token", ylim=(1.0, 3.2),
             title="loss (the mix of plain code, fill-in-the-middle, chat)")
    left.legend(fontsize=8)
    names = [f"layer {i}" for i in range(len(log[-1]["cv"]) - 1)] + ["MTP"]
    for i, name in enumerate(names):
        right.plot(tokens, [e["cv"][i] for e in log], lw=0.6, label=name)
    right.set(xlabel="million tokens", ylabel="coefficient of variation", ylim=(0, 0.8),
              title="expert use in training")
    right.legend(fontsize=7, ncol=2)
    fig.tight_layout()
    fig.savefig(out, pil_kwargs={"optimize": True})


def verdict(met):
    return "met" if met else "**missed**"


def figures(results, summary, log):
    """Returns the card's table of figures as Markdown."""
    text, experts = results["bits_per_byte"], results["experts"]
    code, fim = results["completions"], results["fim_single_line"]
    kept = results["completions_penalised"]
    mtp, fp8, fixed = results["mtp"], results["fp8_cost"], results["fixed_text"]
    spread = experts["worst_cv"] <= 0.5 and experts["worst_least_over_mean"] >= 0.2
    rows = [
        ("bits per byte, whole files, first token included",
         f"**{text['all']:.4f}** over {text['files']} files, {text['bytes'] / 1e6:.1f} MB",
         "<= 1.0", text["all"] <= 1.0),
        ("the same files under `xz -9`, each alone", f"{results['xz9']['all']:.3f}", "", None),
        ("greedy function bodies that parse and end",
         f"**{code['good_percent']:.1f} %** of {code['cases']}, "
         f"{code['mean_body_lines']:.1f} lines each", ">= 80 %", code["good_percent"] >= 80),
        (f"the same with the repetition penalty of {kept['repetition_penalty']} that ships in "
         "`generation_config.json`",
         f"**{kept['good_percent']:.1f} %** of {kept['cases']}, "
         f"{kept['mean_body_lines']:.1f} lines each", ">= 80 %", kept["good_percent"] >= 80),
        ("single-line fill-in-the-middle, exact match",
         f"**{fim['exact_match_percent']:.1f} %** of {fim['cases']}; the first line alone "
         f"{fim['first_line_match_percent']:.1f} %", ">= 25 %",
         fim["exact_match_percent"] >= 25),
        ("MTP drafts 1, 2, 3 accepted (each given those before it)",
         f"{mtp['draft1_percent']:.1f} %, {mtp['draft2_percent']:.1f} %, "
         f"{mtp['draft3_percent']:.1f} % over {mtp['positions']} positions; "
         f"{mtp['mean_accepted']:.2f} of 3 a step", "", None),
        ("expert use: worst layer's coefficient of variation / least used over mean",
         f"{experts['worst_cv']:.3f} / {experts['worst_least_over_mean']:.3f}",
         "<= 0.5 / >= 0.2", spread),
        ("expert use: worst layer's standard deviation of shares",
         f"{experts['worst_share_deviation_points']:.2f} points", "< 5",
         experts["worst_share_deviation_points"] < 5),
        ("FP8 against BF16: KL, top-1 agreement",
         f"{fp8['kl_nats']:.5f} nats, {fp8['top1_same_percent']:.2f} %", "", None),
        ("FP8 against BF16: bits per byte",
         f"{fp8['bits_per_byte_fp8']:.5f} against {fp8['bits_per_byte_bf16']:.5f}", "", None),
        ("bits per byte of `tests/data/held_out_code.txt`, which `moray eval` is checked on",
         f"{fixed['bits_per_byte']:.5f} ({fixed['tokens']} tokens)", "", None),
    ]
    lines = ["| figure | measured | aim | |", "|---|---|---|---|"]
    lines += [f"| {n} | {v} | {a} | {'' if met is None else verdict(met)} |"
              for n, v, a, met in rows]
    return "\n".join(lines) + "\n\n" + breakdown(
        text, results["xz9"], experts, code, kept) + "\n" + run_of(summary, log)


def outcomes(completions):
    return ", ".join(f"{k} {v}" for k, v in sorted(completions["reasons"].items()))


def breakdown(text, xz, experts, code, kept):
    """Bits per byte by language and package, experts by layer, why completions failed."""
    lines = ["| held-out | files | bits per byte | xz -9 |", "|---|---|---|---|"]
    for kind in ("language", "package"):
        lines += [f"| {name} | {v['files']} | {v['bits_per_byte']:.3f} | {xz[name]:.3f} |"
                  for name, v in text[kind].items()]
    lines += ["", "| layer | CV | least / mean | most / mean | deviation of shares, points |",
              "|---|---|---|---|---|"]
    lines += [f"| {i} | {x['cv']:.3f} | {x['least_over_mean']:.3f} | "
              f"{x['most_over_mean']:.3f} | "
              f"{x['share_deviation_points']:.2f} |" for i, x in enumerate(experts["layers"])]
    return "\n".join(lines) + (f"\n\nFunction bodies by outcome: {outcomes(code)}; with the "
                              f"penalty {outcomes(kept)}.\n")


def run_of(summary, log):
    """A sentence on the run itself."""
    return ("Training, export and every figure above but those with the penalty come from one run on "
            f"{summary['world']} H200: {summary['tokens'] / 1e6:.0f} M tokens in {summary['steps']} "
            f"steps and {summary['seconds']:.0f} s. Last training loss {log[-1]['next']:.3f} nats per "
            "token of the mix.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder with log.jsonl, summary.json, eval*.json")
    parser.add_argument("model", type=Path, help="model folder whose README.md has the marks")
    args = parser.parse_args()
    log = [json.loads(line) for line in (args.run / "log.jsonl").read_text().splitlines()]
    results = {}
    for path in sorted(args.run.glob("eval*.json")):
        results |= json.loads(path.read_text())
    summary = json.loads((args.run / "summary.json").read_text())
    plot(log, args.model / "loss.png")
    card = args.model / "README.md"
    filled = re.sub(r"(<!-- figures -->\n).*?(<!-- end of figures -->)",
                    lambda m: m.group(1) + figures(results, summary, log) + m.group(2),
                    card.read_text(), flags=re.S)
    card.write_text(filled)


if __name__ == "__main__":
    main()
