"""Evidence that grows with each decision, and may be looked at after every one."""

import math
from collections.abc import Sequence

Drawn = tuple[bool, float, bool]  # given or not, with which probability, a good result or not
_BETS = ((0.12, 0.15), (0.25, 0.85))  # for effects of about 12 and 25 points; capital to begin with
_MOST_STAKED = 0.9
_MOST_LOG = 20.0  # of a capital that is stored


def e_values(
    seen: Sequence[Drawn], above: float, bets: Sequence[tuple[float, float]] = _BETS
) -> list[float]:
    """The evidence after each decision that giving raises the rate of good results by more than
    `above`: the capital of bets against the opposite, each chosen before the draw that it is about.
    It begins with 1 and is ever above 1 / a with probability a at most if the draws are random;
    results may depend on each other and change with time. `bets`: effects, with capital for each,
    in all 1."""
    logs = [math.log(capital) for _, capital in bets]
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
            logs[index] += math.log1p(min(stake, _MOST_STAKED / worst) * gain)
        good += result
        values.append(math.fsum(math.exp(min(value, _MOST_LOG)) for value in logs))
    return values
