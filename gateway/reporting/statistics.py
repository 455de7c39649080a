"""The interval of a share, and evidence that stays valid however often it is looked at."""

from collections.abc import Sequence
from math import exp, fsum, log, log1p, sqrt
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)  # half width of a 95 % interval in standard deviations
Drawn = tuple[bool, float, bool]  # given or not, with which probability, a good result or not
_BETS = ((0.12, 0.15), (0.25, 0.85))  # for effects of about 12 and 25 points; capital to begin with
_MOST_STAKED = 0.9
_MOST_LOG = 20.0  # of a capital that is stored


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """The 95 % score interval of a share. Source: Wilson, JASA 22 (1927)."""
    rate = successes / trials
    centre = rate + Z * Z / (2 * trials)
    spread = Z * sqrt(max(0.0, rate * (1 - rate)) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def e_values(
    seen: Sequence[Drawn], above: float, bets: Sequence[tuple[float, float]] = _BETS
) -> list[float]:
    """Returns, after each decision, the evidence that giving raises the rate of good results by
    more than `above`: the capital of bets against the opposite, each placed before its draw. It
    begins at 1. If giving does not help and the draws are random, it ever exceeds 1 / a with
    probability a at most; results may depend on each other and change with time."""
    logs = [log(capital) for _, capital in bets]
    good = 0.5
    values = [1.0]
    for number, (given, share, result) in enumerate(seen, start=1):
        middle = good / number  # rate before this one: the smaller the surprise, the surer the bet
        weight = 4.0 * (1.0 - share if given else -share)
        # In units of 4 s (1 - s), which keeps decisions with a rare arm from deciding alone.
        gain = weight * (result - middle) - above * 4.0 * share * (1.0 - share)
        worst = 4.0 * max(share, 1.0 - share) * max(middle, 1.0 - middle) + max(above, 0.0)
        for index, (bet, _) in enumerate(bets):
            stake = bet / max(4.0 * middle * (1.0 - middle), 0.1)  # more where results vary less
            logs[index] += log1p(min(stake, _MOST_STAKED / worst) * gain)
        good += result
        values.append(fsum(exp(min(value, _MOST_LOG)) for value in logs))
    return values
