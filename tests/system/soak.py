"""Real processes under a random schedule of faults, judged afterwards.

    .venv/bin/python tests/system/soak.py --nodes 5 --policy broadcast --minutes 10 --seed 7 --dir D

Nodes, the owner of the open segment, the coordinator and clients are killed (``kill -9``), stopped for a while
(SIGSTOP) and restarted while clients append, read, subscribe and trim. Then everything is healed, a fresh client reads
the whole log, and the histories of the clients and the recordings of all processes are judged.

The schedule is drawn from the seed; what the processes make of it is not, so a seed repeats the faults only.
Exit codes: 0 nothing is wrong, 1 something is.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has put the tests on the path already
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from system.judging import Judgement, judge
from system.processes import Failed, Processes

LOG = "orders"
SHORT_S = 18.0
SETTLE_S_MAX = 60.0
FINAL_S_MAX = 150.0
REST_S = (0.3, 3.0)  # between two faults
AWAY_S = (0.2, 6.0)  # how long a process is stopped or dead
BATCHES_PER_S = 150.0  # of all clients: what ten minutes leave can be judged in two

# What happens how often.
FAULTS = {
    "kill node": 4,
    "stop node": 3,
    "restart node": 1,
    "kill owner": 3,
    "stop owner": 2,
    "kill coordinator": 2,
    "stop coordinator": 2,
    "kill client": 2,
    "stop client": 2,
}


@dataclass(frozen=True)
class Plan:
    nodes: int
    policy: str
    seconds: float
    seed: int


class Soak:
    def __init__(self, processes: Processes, plan: Plan) -> None:
        self._processes = processes
        self._plan = plan
        self._drawn = random.Random(plan.seed)
        self._away: dict[str, float] = {}  # name: when it comes back
        self._clients: list[str] = []
        self._clients_made = 0
        self.faults: Counter[str] = Counter()
        self.segments = 0

    def run(self) -> Judgement:
        self._processes.start_cluster(nodes=self._plan.nodes)
        for _ in range(2):
            self._new_client(appends=self._plan.policy == "chain" or not self._clients)
        self._processes.wait(self._appends_go_on, "the first append")
        until = time.monotonic() + self._plan.seconds
        next_fault = time.monotonic()
        while time.monotonic() < until:
            self._bring_back(time.monotonic())
            self._look_for_the_dead()
            if time.monotonic() >= next_fault:
                self._fault()
                next_fault = time.monotonic() + self._drawn.uniform(*REST_S)
            time.sleep(0.02)
        self._heal()
        return judge(self._processes.histories, self._processes.recordings)

    # --------------------------------------------------------------------------------------------------------- clients

    def _new_client(self, *, appends: bool, takeover: bool = False) -> None:
        self._clients_made += 1
        name = f"w{self._clients_made}"
        chain = self._plan.policy == "chain"
        self._processes.add_client(
            name,
            policy=self._plan.policy,
            replicas=3,
            appenders=8 if appends else 0,
            batches_per_s=BATCHES_PER_S / 2 if chain else BATCHES_PER_S,
            takeover=takeover,
            trims=appends,
            seed=self._drawn.getrandbits(32),
        )
        self._processes.start(name)
        self._clients.insert(0, name) if appends else self._clients.append(name)

    def _appends_go_on(self) -> bool:
        paths = self._processes.histories.glob("*.history")
        return any(b'"glsn"' in path.read_bytes() for path in paths)

    # ---------------------------------------------------------------------------------------------------------- faults

    def _fault(self) -> None:
        kind = self._drawn.choices(list(FAULTS), list(FAULTS.values()))[0]
        what, whom = kind.split()
        back_at = time.monotonic() + self._drawn.uniform(*AWAY_S)
        victim = self._victim(whom)
        if victim is None:
            return
        self.faults[kind] += 1
        if whom == "client":
            self._hurt_client(what, victim, back_at)
        elif what == "kill":
            self._processes.kill(victim)
            self._away[victim] = back_at
        elif what == "stop":
            self._processes.pause(victim)
            self._away[victim] = back_at
        else:
            self._expect_orderly(self._processes.stop(victim))
            self._processes.start(victim)

    def _victim(self, whom: str) -> str | None:
        """A running process; at least one node always runs."""
        if whom == "coordinator":
            return None if "c1" in self._away else "c1"
        if whom == "client":
            here = [name for name in self._clients if name not in self._away]
            return self._drawn.choice(here) if here else None
        here = [name for name in self._processes.node_names if name not in self._away]
        if len(here) <= 1:
            return None
        if whom == "owner":
            status = self._processes.log_status(LOG) if "c1" not in self._away else None
            if status is not None:
                last = status.listed()[-1]
                wanted = last.owner if self._plan.policy == "chain" else last.groups[0][0].node
                return wanted if wanted in here else None
        return self._drawn.choice(here)

    def _hurt_client(self, what: str, victim: str, back_at: float) -> None:
        """A killed client is followed by another one. A writer's successor takes over, from a stopped one, too."""
        writes = self._plan.policy == "broadcast" and victim == self._clients[0]
        if what == "stop" and not writes:
            self._processes.pause(victim)
            self._away[victim] = back_at
            return
        if what == "stop" and self._drawn.random() < 0.5:
            self._processes.pause(victim)
            self._away[victim] = back_at
            return
        self._clients.remove(victim)
        if what == "stop":
            self._processes.pause(victim)
            self._away[victim] = back_at
            self._clients.append(victim)  # it comes back and finds itself replaced
        else:
            self._processes.kill(victim)
        self._new_client(appends=self._plan.policy == "chain" or writes, takeover=writes)

    def _bring_back(self, now: float) -> None:
        for name, at in list(self._away.items()):
            if at <= now:
                del self._away[name]
                if self._processes.is_paused(name):
                    self._processes.resume(name)
                else:
                    self._processes.start(name)
                if len(self._clients) > 3 and name == self._clients[-1]:  # a writer that was replaced has seen it
                    self._clients.remove(name)
                    self._processes.kill(name)

    def _look_for_the_dead(self) -> None:
        """No process has ended on its own."""
        names = ["c1", *self._processes.node_names, *self._clients]
        dead = {name: self._processes.ended(name) for name in names if self._processes.ended(name) is not None}
        if dead:
            raise Failed(f"ended by themselves, with exit codes: {dead}")

    # --------------------------------------------------------------------------------------------------------- healing

    def _heal(self) -> None:
        self._bring_back(float("inf"))
        self._processes.wait_live(*self._processes.node_names, within_s=SETTLE_S_MAX)
        self._processes.wait(self._settled, "all segments to be repaired and complete", SETTLE_S_MAX)
        self._look_for_the_dead()
        self._expect_orderly(self._processes.stop(*self._clients))
        self._processes.add_client("reader", policy=self._plan.policy, replicas=3, final=True)
        self._processes.start("reader")
        code = self._processes.wait_end("reader", FINAL_S_MAX)
        if code != 0:
            raise Failed(f"the final reading ended with exit code {code}")
        self._processes.stop_servers()

    def _settled(self) -> bool:
        status = self._processes.log_status(LOG)
        if status is None:
            return False
        self.segments = status.listed()[-1].index + 1
        *ended, last = status.listed()
        members = [member for segment in status.listed() for group in segment.groups for member in group]
        complete = all(len(group) == 3 for group in last.groups)
        return complete and all(each.repaired for each in ended) and not any(each.joining for each in members)

    def _expect_orderly(self, codes: dict[str, int]) -> None:
        orderly = (0, -signal.SIGTERM)  # the latter: it was stopped before it handled signals
        wrong = {name: code for name, code in codes.items() if code not in orderly}
        if wrong:
            raise Failed(f"did not shut down cleanly, exit codes: {wrong}")


def soak(directory: Path, plan: Plan) -> tuple[Judgement, Soak]:
    with Processes(directory) as processes:
        run = Soak(processes, plan)
        judgement = run.run()
        return judgement, run


def main() -> int:
    parser = argparse.ArgumentParser(description="Real processes under a random schedule of faults, judged afterwards.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--policy", choices=("chain", "broadcast"), default="chain")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_S:.0f} s of faults")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--dir", type=Path, help="of disks, recordings and histories; default: a new one under /tmp")
    given = parser.parse_args()
    directory = given.dir or Path(tempfile.mkdtemp(prefix="soak-"))
    plan = Plan(given.nodes, given.policy, SHORT_S if given.short else given.minutes * 60, given.seed)
    print(f"{plan}, in {directory}", flush=True)
    try:
        judgement, run = soak(directory, plan)
    except Failed as failure:
        print(f"FAILED: {failure}")
        return 1
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(run.faults.items())))
    print(f"segments: {run.segments}\n{judgement.text()}")
    return 1 if judgement.broken or not judgement.complete else 0


if __name__ == "__main__":
    sys.exit(main())
