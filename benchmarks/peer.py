"""A peer that needs an environment of its own: a process that is told when it is its turn."""

import os
import subprocess


class Peer:
    """Runs `code`, which prints "ready VERSION" and then answers every line that it reads with a line of numbers."""

    def __init__(self, python: str, code: str):
        environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
        self.process = subprocess.Popen(
            [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.version = self.process.stdout.readline().split()[1]

    def seconds(self, *given: object) -> list[float]:
        self.process.stdin.write(" ".join(map(str, given)) + "\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
