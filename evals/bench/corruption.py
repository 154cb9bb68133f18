"""What the corruption check proves, and what its detectors see: `python -m evals.bench.corruption`.

First, how often the stated bounds hold over simulated campaigns, and how many sessions it takes to catch a share.
Second, how many mutated transcripts the probe's own detectors find, by kind, and how many good ones they accuse. They
are handed what a client is handed: the request and the bytes of the answer. Half of the kinds are held out
(`mutations.py`); `--held-out` prints them too, for a report.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from evals.bench.coverage import Rules, campaigns, coverage
from evals.bench.mutations import Mutation, halves
from evals.bench.transcripts import Scene, calls, texts, verdict
from policies.load import load

SHARES = (0.0, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.05, 0.15)
"""True shares of bad sessions; 15 % is what a race in captured decode did to one worker."""


class Recall(NamedTuple):
    """What was found of one kind."""

    mutation: Mutation
    made: int
    """Transcripts that were mutated in this way."""
    found: int
    """Those that the detectors call wrong."""
    named: str
    """What they call it most often."""


def rules(name: str) -> Rules:
    """The corruption rule of a shipped policy."""
    policy = load(name)
    criterion = next(one for one in policy.criteria if one.metric == "corrupted_sessions")
    return Rules(name, criterion, policy.checks.sessions.count)


async def recall(mutations: Iterable[Mutation], scenes: Sequence[Scene], each: int, seed: int) -> list[Recall]:
    """Mutate `each` transcripts in every way, and ask the detectors.

    Args:
        mutations: The ways.
        scenes: Good transcripts to take them from; a scene that offers no such mistake is passed over.
        each: Mutated transcripts of each kind.
        seed: Draws scenes and mistakes.
    """
    rows = []
    for mutation in mutations:
        chance = Random(f"{seed}:{mutation.name}")
        fitting = [scene for scene in scenes if scene.kind == mutation.kind]
        made, said = 0, Counter[str]()
        for _ in range(20 * each):
            scene = chance.choice(fitting)
            wrong = mutation.change(scene, chance)
            if wrong is None or wrong == scene.good:
                continue
            made += 1
            said[verdict(wrong, scene) or ""] += 1
            if made == each:
                break
        found = made - said.pop("", 0)
        rows.append(Recall(mutation, made, found, said.most_common(1)[0][0] if said else "-"))
    return rows


async def false_alarms(scenes: Iterable[Scene]) -> list[str]:
    """What the detectors say of good transcripts; none: nothing, as it should be."""
    return [said for scene in scenes if (said := verdict(scene.good, scene)) is not None]


def bounds_table(count: int, seed: int) -> list[str]:
    """What the rules decide, and how often their bounds hold."""
    lines = [
        f"{count} simulated campaigns for each row; shares in %",
        f"{'policy':9} {'true share':>10} {'kept':>7} {'rolled back':>12} {'deferred':>9} "
        f"{'sessions':>9} {'to catch':>9}",
    ]
    for rule in (rules("decode"), rules("practice")):
        test = rule.criterion.sequential
        for share in SHARES:
            seen = campaigns(rule, share, count, Random(f"{seed} {rule.name} {share}"))
            kept, back, deferred = (100 * seen.decisions[what] / count for what in ("kept", "rolled_back", "deferred"))
            catch = "-" if seen.sessions_to_catch is None else f"{seen.sessions_to_catch:.0f}"
            wrong = "  the claim is false here" if test and share >= test.bad else ""
            lines.append(
                f"{rule.name:9} {100 * share:10.2f} {kept:7.2f} {back:12.2f} {deferred:9.2f} {seen.sessions:9.0f} "
                f"{catch:>9}{wrong}"
            )
    lines += ["", f"{'fixed sample':>12} {'true share':>10} {'95 % upper bound holds':>23} {'lower':>7}"]
    for n in (299, 473, 628):
        for share in (0.001, 0.003, 0.0099, 0.03, 0.15):
            held = coverage(n, share, 0.95, count, Random(f"{seed} {n} {share}"))
            lines.append(f"{n:12} {100 * share:10.2f} {100 * held.upper:23.2f} {100 * held.lower:7.2f}")
    return lines


def recall_table(each: int, good: int, seed: int, *, held_out: bool) -> list[str]:
    """What the detectors find, by kind, and what they say of good transcripts."""
    scenes = [*calls(seed, max(good // 3, 4)), *texts(seed, max(good // 10, 4))]
    alarms = asyncio.run(false_alarms(scenes))
    lines = [f"good transcripts: {len(alarms)} of {len(scenes)} accused {dict(Counter(alarms)) or ''}".rstrip()]
    seen, held = halves()
    for title, kinds in (("seen", seen), ("held out", held if held_out else ())):
        rows = asyncio.run(recall(kinds, scenes, each, seed))
        for kind in ("call", "text"):
            some = [row for row in rows if row.mutation.kind == kind]
            if some:
                made, found = sum(row.made for row in some), sum(row.found for row in some)
                lines += ["", f"{title}, {kind}s: {found} of {made} found, {found / made:.1%}, of {len(some)} kinds"]
                lines += [
                    f"  {row.mutation.name:42} {row.found:5} of {row.made:<5} {row.named.replace('_', ' ')}"
                    for row in sorted(some, key=lambda row: row.found / max(row.made, 1))
                ]
    if not held_out:
        lines += ["", f"{len(held)} kinds are held out; --held-out reports them"]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m evals.bench.corruption", description=about)
    parser.add_argument("--campaigns", type=int, default=10_000, help="simulated campaigns for each row")
    parser.add_argument("--each", type=int, default=100, help="mutated transcripts of each kind")
    parser.add_argument("--good", type=int, default=3000, help="good transcripts")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything")
    parser.add_argument("--held-out", action="store_true", help="report the held-out kinds too")
    parser.add_argument("--quick", action="store_true", help="a small table")
    wanted = parser.parse_args(arguments)
    count, each, good = (500, 10, 120) if wanted.quick else (wanted.campaigns, wanted.each, wanted.good)
    for line in (*bounds_table(count, wanted.seed), ""):
        print(line, flush=True)
    for line in recall_table(each, good, wanted.seed, held_out=wanted.held_out):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
