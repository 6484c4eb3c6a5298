"""Runs of the agent whose processes are killed by SIGKILL, and the verdict on each run."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from benchmarks.crashes.agent import STEPS, Task, operations
from benchmarks.crashes.receiver import Receiver, World

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 12
"""Different scripts."""
MOST_KILLS: Final = 3
"""Of one run."""
MOST_LIVES: Final = 12
"""Processes of one run; one that needs more will never end."""
LONGEST_LIFE: Final = 90.0
"""Seconds; a process that takes longer hangs."""
STRIKES: Final = ("request lost", "answer lost")
FROM_THE_START: Final = 0.2
"""Share of the kills at a random time that may also come before the agent has begun."""


@dataclass(frozen=True, slots=True)
class Row:
    """A way to resume.

    Attributes:
        name: what its workers are told.
        label: in the table.
        is_idempotent: whether the receiver carries out a write once for each key.
        command: starts a worker; the task is added.
        is_over: whether a run whose process was killed had ended before, by the files in a folder.
    """

    name: str
    label: str
    is_idempotent: bool = False
    command: tuple[str, ...] = (sys.executable, "-m", "benchmarks.crashes.worker")
    is_over: Callable[[Path, str], bool] = lambda folder, run: False


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process is killed.

    Attributes:
        moment: a step, a strike of the receiver, or `"at a random time"`.
        operation: of the step or strike.
        delay: seconds.
        is_from_start: whether the delay counts from the start of the process; else from the beginning of the agent.
    """

    moment: str
    operation: str = ""
    delay: float = 0.0
    is_from_start: bool = False


@dataclass
class Life:
    """What one process has said.

    Attributes:
        ended: `"killed"`, `"ended"`, `"in doubt"`, `"failed"` or `"hung"`.
        content: the result, or what was said of the error.
        result: of the agent, if it came to one.
        returned: the calls that have returned to the agent.
        notices: the writes of which the agent was told that they are in doubt.
        began: seconds from the start of the process until the agent began.
        seconds: from then to the end.
    """

    ended: str = "killed"
    content: Any = None
    result: Any = None
    returned: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0


@dataclass
class Verdict:
    """What became of one run.

    Attributes:
        kills: moments at which its processes were killed.
        lives: how many processes it took.
        doubled: how often an operation was carried out again.
        lost: operations that were never carried out, although the run ended, or returned a receipt for them.
        paid_twice: calls of the model that were made again after they had returned to the agent.
        in_doubt: how many processes ended by `InDoubtError`.
        notices: how often the agent was told that a write is in doubt.
        is_equal: whether it ended with the result of a run that was not disturbed.
        failure: what ended it, if it did not end.
    """

    kills: list[str] = field(default_factory=list)
    lives: int = 0
    doubled: int = 0
    lost: int = 0
    paid_twice: int = 0
    in_doubt: int = 0
    notices: int = 0
    is_equal: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A run without kills: its result, how many seconds it took to begin and from then to the end, and its writes and
    calls of the model."""

    result: Any
    began: float
    seconds: float
    operations: int


class Killer:
    """Runs agents in one row and kills their processes.

    Args:
        row: how they resume.
        receiver: a running one.
        folder: for their files.
    """

    def __init__(self, row: Row, receiver: Receiver, folder: Path) -> None:
        self.row = row
        self._receiver = receiver
        self._folder = folder
        self._undisturbed: dict[int, Undisturbed] = {}
        self._runs = itertools.count()
        self._lock = threading.Lock()

    def undisturbed(self, seed: int) -> Undisturbed:
        """The run of this script without kills.

        Raises:
            RuntimeError: if it does not do what it is to do.
        """
        with self._lock:
            if seed not in self._undisturbed:
                run = f"{self.row.name}-undisturbed-{seed}"
                world = self._receiver.worlds[run] = World(is_idempotent=self.row.is_idempotent)
                life = self._live(Task(self.row.name, str(self._folder), run, seed, self._receiver.url), None, world)
                writes, asked = operations(seed)
                made = [*world.effects.elements()], [*world.asked]
                if life.ended != "ended" or sorted(made[0]) != sorted(writes) or sorted(made[1]) != sorted(asked):
                    raise RuntimeError(f"{self.row.label}: a run without kills {life.ended}: {life.content}")
                self._undisturbed[seed] = Undisturbed(life.result, life.began, life.seconds, len(writes) + len(asked))
            return self._undisturbed[seed]

    def run(self, number: int, kills: Sequence[Kill] | None = None) -> Verdict:
        """One run, whose processes are killed as given, or at moments drawn from a generator seeded by its number."""
        chance = random.Random(f"{self.row.name} {number}")
        seed = number % SEEDS
        usual = self.undisturbed(seed)
        writes, asked = operations(seed)
        wanted = chance.randint(1, MOST_KILLS) if kills is None else len(kills)
        run = f"{self.row.name}-{number}-{next(self._runs)}"  # its journal has ended with the run before
        world = self._receiver.worlds[run] = World(is_idempotent=self.row.is_idempotent)
        verdict = Verdict()
        returned: dict[str, int] = {}
        policy = self.row.name
        life = Life()
        while verdict.lives < MOST_LIVES:
            verdict.lives += 1
            kill = None
            if len(verdict.kills) < wanted:
                open_ = [name for name in (*writes, *asked) if name not in returned] or asked
                kill = _drawn(chance, open_, usual) if kills is None else kills[len(verdict.kills)]
            stop = (kill.moment, kill.operation) if kill is not None and kill.moment in STEPS else None
            task = Task(policy, str(self._folder), run, seed, self._receiver.url, verdict.lives, stop)
            life = self._live(task, kill, world)
            for operation in life.returned:
                returned.setdefault(operation, verdict.lives)
            verdict.notices += len(life.notices)
            policy = self.row.name
            if life.ended == "killed" and kill is not None:
                verdict.kills.append(kill.moment)
                if life.result is not None and self.row.is_over(self._folder, run):
                    break
            elif life.ended == "in doubt":
                verdict.in_doubt += 1
                policy = "check"  # somebody finds out, and says so
            else:
                break
        has_ended = life.result is not None
        verdict.doubled = sum(times - 1 for times in world.effects.values() if times > 1)
        verdict.lost = sum(not world.effects[name] for name in writes if has_ended or name in returned)
        verdict.paid_twice = sum(_paid_twice(lives, returned.get(name)) for name, lives in world.asked.items())
        verdict.is_equal = has_ended and life.result == usual.result
        if not has_ended:
            verdict.failure = f"{life.ended}: {life.content}"
        return verdict

    def _live(self, task: Task, kill: Kill | None, world: World) -> Life:
        """One process of a run, from its start to its end."""
        life = Life()
        started = monotonic()
        with (self._folder / f"{task.run}.stderr").open("ab") as errors:
            worker = subprocess.Popen(
                [*self.row.command, json.dumps(asdict(task))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        is_hung = threading.Event()

        def give_up() -> None:
            is_hung.set()
            worker.kill()

        with self._receiver.lock:
            world.kill = worker.kill
            world.strike = (kill.moment, kill.operation) if kill is not None and kill.moment in STRIKES else None
        timers: list[threading.Timer] = []

        def after(seconds: float, action: Callable[[], None]) -> None:
            timers.append(threading.Timer(seconds, action))
            timers[-1].start()

        after(LONGEST_LIFE, give_up)
        is_timed = kill is not None and kill.moment not in (*STEPS, *STRIKES)
        if kill is not None and is_timed and kill.is_from_start:
            after(kill.delay, worker.kill)
        assert worker.stdout is not None
        with worker, worker.stdout as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                said, content = json.loads(line)
                match said:
                    case "began":
                        life.began = monotonic() - started
                        if kill is not None and is_timed and not kill.is_from_start:
                            after(kill.delay, worker.kill)
                    case "stopped":
                        worker.kill()
                    case "returned":
                        life.returned.append(content)
                    case "notice":
                        life.notices.append(content)
                    case "result":
                        life.result = content
                    case _:
                        life.ended, life.content = said, content
            worker.wait()
        for timer in timers:
            timer.cancel()
        life.seconds = monotonic() - started - life.began
        self._receiver.wait_until_idle()
        with self._receiver.lock:
            world.strike, world.kill = None, lambda: None
        if is_hung.is_set():
            life.ended, life.content = "hung", f"for {LONGEST_LIFE} s"
        elif life.ended == "killed" and worker.returncode != -signal.SIGKILL:
            life.ended, life.content = "failed", f"exit code {worker.returncode}"
        if life.ended in {"failed", "hung"}:
            life.result = None
        return life


def _drawn(chance: random.Random, names: Sequence[str], usual: Undisturbed) -> Kill:
    """A random moment: half of them at a step or strike of one of these operations, half at a random time.

    A process that resumes a run has less to do than the whole, and is done sooner.
    """
    if chance.random() < 0.5:
        return Kill(chance.choice((*STEPS, *STRIKES)), chance.choice(names))
    left = usual.seconds * len(names) / usual.operations
    if chance.random() < FROM_THE_START:
        return Kill("at a random time", delay=chance.uniform(0, usual.began + left), is_from_start=True)
    return Kill("at a random time", delay=chance.uniform(0, left))


def _paid_twice(lives: Sequence[int], returned: int | None) -> int:
    """How often a call of the model was made after it had returned in a process.

    Args:
        lives: in which it was made.
        returned: the first one in which it returned.
    """
    if returned is None:
        return 0
    return sum(life > returned for life in lives) + max(0, lives.count(returned) - 1)
