"""What a compiled program computes in its loops."""

import re


def in_loops(program: str) -> str:
    """Return the text of all computations of a compiled program that are reached from the body of a loop."""
    pattern = r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}"
    bodies = dict(re.findall(pattern, program, re.MULTILINE | re.DOTALL))
    todo = re.findall(r"body=%?([\w.\-]+)", program)
    reached: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in bodies and name not in reached:
            reached[name] = bodies[name]
            todo += re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)", bodies[name])
    return "\n".join(reached.values())


def sums_of(program: str) -> list[str]:
    """Return the lines of a compiled program that add up over devices."""
    return [line.strip() for line in program.splitlines() if re.search(r" (?:all-reduce|reduce-scatter)(?:-start)?\(", line)]
