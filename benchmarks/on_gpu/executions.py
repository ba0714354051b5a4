"""Prints the time of a step of ``fit`` with several ``steps_per_execution``, for the CNN, whose steps are the shortest."""

import statistics
import time

import _cases_here as here

ROUNDS = 2 if here.DRY else 7


def main() -> None:
    """Train rounds by turns."""
    here.contender()
    args, strategy, models = here.arguments("cnn_bf16"), here.strategy(), here.models()
    numbers = sorted({1, min(10, args.steps), args.steps})
    rounds, found = {}, {number: [] for number in numbers}
    for number in numbers:
        with strategy.scope():
            model = models.make_model(args.case)
        rounds[number] = models.fit_rounds(args.case, model, args.steps, steps_per_execution=number)
    for turn in range(-2, ROUNDS):  # the first two compile
        for number, train in rounds.items():
            began = time.perf_counter()
            train()
            if turn >= 0:
                found[number].append((time.perf_counter() - began) / args.steps * 1e3)
    print(f"{args.case.title}, {ROUNDS} rounds of {args.steps} steps\n\n| steps_per_execution | ms/step | least |\n|---|---|---|")
    for number, times in found.items():
        print(f"| {number} | {statistics.median(times):.3g} | {min(times):.3g} |")


if __name__ == "__main__":
    main()
