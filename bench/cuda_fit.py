"""Costs of Hopper's plans, fitted to what `python -m bench.cuda_tune measure` found.

A plan is expected to take the sum of its terms, as `hopper/host/costs.mojo` has them, times its
family's costs. Two fits, both from the times alone, and the same each time:

    MXFP4 weights    the costs whose relative errors are least, of each family: slow plans count
                     less. Shapes for which they choose a plan that was not the fastest one are
                     exceptions, which name it
    eight bits       from such costs on, those of all families of a pair by whose choices least time
                     is lost: a plan is taken as the more likely, the less it is expected to take.
                     That has a gradient. There are no exceptions

Costs of eight bits that stand in the table stay, unless fitted ones choose better by more than what
is noise: those there now are also from times of an H100 that are not in the repository
(2026-11-26), beside those of the H200 that are (2026-11-28), and a search looked for them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import minimize, nnls

from bench.cuda_tune import (
    EIGHT_BITS,
    KEPT,
    MXFP4,
    REPOSITORY,
    Pair,
    Plan,
    Shape,
    Times,
    fastest,
    plans,
)

TABLE = REPOSITORY / "mojo_kernels" / "hopper" / "host" / "measured.mojo"
NOISE = 1.01
"""Plans whose times are closer than this are equally fast."""
SPREADS = (0.05, 0.02)
"""Differences, of what plans are expected to take, that make one e times as likely; in turn."""
STEEP = 30
"""How much more a loss counts for its square: a large one is worse than many small ones."""
CLOSE = 0.1
"""How much relative errors count beside time that is lost: costs are to stay what they are for."""
MAX_STEPS = 100
"""Of the descent, for each spread."""

TEMPLATE = '''"""What an H200 took, as `python -m bench.cuda_tune table` writes it.

A line of `COSTS` has the cost of each term of `costs`, in microseconds, for a family of plans. For
shapes in `EXCEPTIONS`, costs choose a plan that was not the fastest. The times are those of
bench/results/cuda_tune.csv; `bench.cuda_fit` says how costs come from them.
"""


@fieldwise_init
struct Fastest(TrivialRegisterPassable):
    """A shape, and its fastest plans: of MXFP4 activations, and of bfloat16 ones that are kept."""

    var m: Int
    var n: Int
    var k: Int
    var mxfp4: StaticString
    var kept: StaticString


# fmt: off
comptime COSTS = [
{costs}
]
comptime EXCEPTIONS = [
{exceptions}
]
# fmt: on
'''

Costs = dict[int, np.ndarray]
"""Those of each family."""


def rounded(costs: Iterable[float]) -> np.ndarray:
    """Returns costs as the table writes them."""
    return np.array([float(f"{cost:.4g}") for cost in costs])


class Samples:
    """Times of products of a pair of formats, and the terms of their plans."""

    def __init__(self, pair: Pair, times: Times):
        self.pair, self.times = pair, times
        # A measurement that is older than a plan does not have it.
        self.plans = {
            shape: [plan for plan in plans(shape, pair) if plan.name in of_shape]
            for shape, of_shape in times.items()
        }
        rows, self._shapes = defaultdict(list), defaultdict(list)
        for shape, of_shape in self.plans.items():
            best = times[shape][fastest(times[shape])]
            for plan in of_shape:
                us = times[shape][plan.name]
                # Relative errors, and those of slow plans count less.
                weight = best / us**2
                rows[plan.family].append([*(weight * term for term in plan.terms), weight * us])
                self._shapes[plan.family].append(shape)
        self._rows = {family: np.array(of_family) for family, of_family in rows.items()}

    def families(self) -> dict[int, str]:
        """Returns a plan of each family, without what its ranks differ in."""
        return {
            plan.family: re.sub(r" splitK\d", "", plan.name)
            for of_shape in self.plans.values()
            for plan in of_shape
        }

    def closest(self, counts: Callable[[Shape], bool] = lambda _: True) -> Costs:
        """Returns the costs that come closest to the times of the shapes that count."""
        counted = {shape for shape in self.plans if counts(shape)}
        fitted = {}
        for family, rows in sorted(self._rows.items()):
            kept = [shape in counted for shape in self._shapes[family]]
            fitted[family] = nnls(rows[kept, :-1], rows[kept, -1])[0]
        return fitted

    def cheapest(self, shape: Shape, costs: Costs, among: Iterable[Plan] | None = None) -> str:
        """Returns the plan with the least cost, of those measured or given."""
        open_ = among or self.plans[shape]
        return min(open_, key=lambda plan: costs[plan.family] @ plan.terms).name

    def behind(self, costs: Costs) -> tuple[float, float]:
        """Returns how much longer choices take than the fastest plans: the mean and the most."""
        ratios = [
            of_shape[self.cheapest(shape, costs)] / of_shape[fastest(of_shape)]
            for shape, of_shape in self.times.items()
        ]
        return float(np.exp(np.mean(np.log(ratios)))), max(ratios)

    def best_choosing(self) -> Costs:
        """Returns the costs by whose choices least time is lost."""
        start = self.closest()
        families = list(start)
        shapes, terms, us, least = [], [], [], []
        for idx, (shape, of_shape) in enumerate(self.plans.items()):
            for plan in of_shape:
                row = np.zeros((len(families), len(plan.terms)))
                row[families.index(plan.family)] = plan.terms
                terms.append(row.ravel())
                shapes.append(idx)
                us.append(self.times[shape][plan.name])
                least.append(self.times[shape][fastest(self.times[shape])])
        terms, us, least = np.array(terms), np.array(us), np.array(least)
        is_of = np.arange(len(self.plans))[:, None] == np.array(shapes)
        lost = us / least - 1
        lost += STEEP * lost**2
        weights = least / us

        def loss(costs: np.ndarray, spread: float) -> tuple[float, np.ndarray]:
            """Returns what costs lose, and its gradient."""
            expected = np.maximum(terms @ costs, 1e-9)
            logs = np.log(expected)
            first = np.where(is_of, logs, np.inf).min(axis=1)
            likely = np.exp((first[shapes] - logs) / spread)
            likely /= (is_of @ likely)[shapes]
            mean = is_of @ (likely * lost)
            errors = weights * (expected / us - 1)
            of_logs = likely * (mean[shapes] - lost) / (spread * len(mean))
            of_errors = 2 * CLOSE * errors * weights / (us * len(us))
            gradient = terms.T @ (of_logs / expected + of_errors)
            return mean.mean() + CLOSE * (errors**2).mean(), gradient

        costs = np.concatenate(list(start.values()))
        for spread in SPREADS:
            costs = minimize(
                loss, costs, args=(spread,), jac=True, method="L-BFGS-B",
                bounds=[(0, None)] * len(costs), options={"maxiter": MAX_STEPS},
            ).x  # fmt: skip
        return dict(zip(families, costs.reshape(len(families), -1), strict=True))


def standing() -> Costs:
    """Returns the costs of the table as it is."""
    lines = re.findall(r"^    \[(.*)\],", TABLE.read_text(), re.MULTILINE)
    return {
        family: np.array([float(cost) for cost in line.split(",")])
        for family, line in enumerate(lines)
    }


def eight_bits(samples: Samples, stands: Costs) -> tuple[Costs, str]:
    """Returns the costs of a pair of formats, and how good their choices are, and others'."""
    stands = {family: stands[family] for family in samples.families() if family in stands}
    fitted = {family: rounded(costs) for family, costs in samples.best_choosing().items()}
    mean, most = samples.behind(fitted)
    said = f"{' x '.join(samples.pair)}: fitted costs {mean:.4f} | {most:.3f}"
    if stands.keys() != fitted.keys():
        return fitted, said
    stands_mean, stands_most = samples.behind(stands)
    is_better = mean * NOISE < stands_mean
    said += f", those that stand {stands_mean:.4f} | {stands_most:.3f}, which "
    return (fitted, said + "go") if is_better else (stands, said + "stay")


def exceptions_of(samples: dict[Pair, Samples], costs: Costs) -> list[tuple]:
    """Returns the shapes of MXFP4 weights whose fastest plans costs do not choose, and these."""
    found = []
    for shape in samples[MXFP4].times:
        wanted, is_behind = [], False
        for pair in (MXFP4, KEPT):
            times = samples[pair].times[shape]
            chosen, best = samples[pair].cheapest(shape, costs, plans(shape, pair)), fastest(times)
            # What was not measured is not known to be faster.
            is_behind |= times.get(chosen, np.inf) > NOISE * times[best]
            wanted.append(best)
        if is_behind:
            found.append((*shape, *wanted))
    return found


def table(found: dict[Pair, Times]) -> tuple[str, str]:
    """Returns the text of the Mojo file that has costs and exceptions, and how good choices are."""
    samples = {pair: Samples(pair, found[pair]) for pair in (MXFP4, KEPT, *EIGHT_BITS)}
    costs, said, names = {}, [], {}
    for pair in EIGHT_BITS:
        of_pair = samples[pair].families().items()
        names |= {family: f"{plan}, {' x '.join(pair)}" for family, plan in of_pair}
    for pair in (KEPT, MXFP4):
        names |= samples[pair].families()
        costs |= {family: rounded(line) for family, line in samples[pair].closest().items()}
    for pair in (MXFP4, KEPT):
        mean, most = samples[pair].behind(costs)
        said.append(f"{' x '.join(pair)}: costs {mean:.4f} | {most:.3f}, exceptions beside them")
    for pair in EIGHT_BITS:
        of_pair, line = eight_bits(samples[pair], standing())
        costs |= of_pair
        said.append(line)
    lines = [
        f"    [{', '.join(map(str, map(float, line)))}],  # {names[family]}"
        for family, line in sorted(costs.items())
    ]
    exceptions = [
        f'    Fastest({m}, {n}, {k}, "{of_mxfp4}", "{of_kept}"),'
        for m, n, k, of_mxfp4, of_kept in exceptions_of(samples, costs)
    ]
    text = TEMPLATE.format(costs="\n".join(lines), exceptions="\n".join(exceptions))
    return text, "\n".join(["mean and most that choices take of the fastest plans' times", *said])
