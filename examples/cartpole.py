"""Reinforcement learning on a ring of workers: balance a pole, by evolution strategies.

A policy of four weights is moved towards those of its random neighbours that balance longest.
Workers share the episodes, and only returns travel: everyone can draw the same neighbours from the
seed. So the result depends neither on the number of workers nor on the engine.

python examples/cartpole.py --engine local --workers 2 --picture curve.png
"""

import argparse
import time

import gymnasium
import numpy as np
import torch
import torch.distributed as dist

import farandole

PAIRS = 16  # neighbours on both sides of the policy
SIGMA = 0.5  # how far away they are
RATE = 0.3  # how far the policy is moved
EPISODES = 100  # in a test of the policy
SOLVED = 475.0  # the mean return that Gymnasium asks for; 500 is the most


def play(env, weights, seed):
    """The return of one episode: for how many steps the pole stood."""
    state, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        state, reward, fallen, out_of_time, _ = env.step(int(weights @ state > 0))
        total, over = total + reward, fallen or out_of_time
    return total


def shared_returns(env, jobs):
    """The returns of all episodes, of which this worker plays its share."""
    world = farandole.current_world()
    returns = torch.zeros(len(jobs), dtype=torch.float64)
    for number in range(world.rank, len(jobs), world.size):
        returns[number] = play(env, *jobs[number])
    dist.all_reduce(returns)  # each has one summand that isn't zero: the sum is exact
    return returns.numpy()


def evolve(seed, iterations):
    """What every worker does alike; gives the policy, and its mean return after each iteration."""
    env = gymnasium.make("CartPole-v1")
    weights, curve = np.zeros(4), []
    for iteration in range(iterations + 1):
        test = [(weights, episode) for episode in range(EPISODES)]
        curve.append(float(shared_returns(env, test).mean()))
        if farandole.current_world().rank == 0:
            print(f"iteration {iteration:2}: {'#' * int(curve[-1] / 10):50} {curve[-1]:5.1f}")
        if curve[-1] >= SOLVED or iteration == iterations:
            break
        random = np.random.default_rng([seed, iteration])
        noise = random.standard_normal((PAIRS, 4))
        neighbours = np.concatenate([weights + SIGMA * noise, weights - SIGMA * noise])
        episodes = np.tile(random.integers(1 << 31, size=PAIRS), 2)  # both of a pair start alike
        returns = shared_returns(env, list(zip(neighbours, episodes.tolist(), strict=True)))
        # Ranks, from -0.5 to 0.5: how much longer a pole stood doesn't matter.
        scores = returns.argsort(kind="stable").argsort(kind="stable") / (2 * PAIRS - 1) - 0.5
        weights = weights + RATE * (scores[:PAIRS] - scores[PAIRS:]) @ noise / (PAIRS * SIGMA)
    env.close()
    return weights, curve


def draw(curve, path):
    """The learning curve as a picture."""
    from matplotlib.figure import Figure

    axes = (figure := Figure((6, 3.2), layout="constrained")).subplots()
    axes.plot(curve, marker="o")
    axes.axhline(SOLVED, linestyle="--", color="gray", label=f"solved: {SOLVED:g}")
    axes.set(xlabel="iteration", ylabel=f"mean return, {EPISODES} episodes", ylim=(0, 510))
    axes.legend(loc="lower right")
    figure.savefig(path)


options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--engine", choices=["local", "spark", "ray"], default="local")
options.add_argument("--workers", type=int, default=2)
options.add_argument("--seed", type=int, default=0)
options.add_argument("--iterations", type=int, default=50, help="the most there may be")
options.add_argument("--picture", help="a file for the learning curve")
chosen = options.parse_args()

if chosen.engine == "spark":
    from pyspark.sql import SparkSession

    SparkSession.builder.master(f"local[{chosen.workers}]").getOrCreate()

start = time.perf_counter()
results = farandole.run(
    evolve, (chosen.seed, chosen.iterations), num_workers=chosen.workers, engine=chosen.engine
)
policy, curve = results[0]
seconds = time.perf_counter() - start
solved = curve[-1] >= SOLVED
print(
    f"{'solved' if solved else 'not solved'} after {len(curve) - 1} iterations, {seconds:.1f} s: "
    f"mean return {curve[-1]:.1f} over {EPISODES} episodes. The policy: {policy.round(2)}"
)
if chosen.picture:
    draw(curve, chosen.picture)
