"""Symmetry: states that differ only in the names of interchangeable processes are explored once.

``Scenario.symmetric`` lists sets of processes that may be swapped. A state's key is the least of its renamings. A
search keeps the state that it met first and compares by key, so runs stay real and roles never see a renamed value.

A renaming replaces whole strings everywhere: in roles, disks, messages, timers, monitors. Other dependences on a name
are not renamed: a field or a tuple index per process, a name inside a longer string, an order that follows the names. A
scenario with one is not symmetric here, and merging its states would skip behaviour. ``Audit`` detects that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

from trunkline.check.frozen import rename
from trunkline.check.moves import LocalMoves
from trunkline.check.network import Network
from trunkline.check.role_steps import RoleSteps
from trunkline.check.scenario import Scenario
from trunkline.check.verdicts import Verdicts
from trunkline.core.effects import Address

State = tuple[int, ...]


class Symmetry:
    def __init__(
        self,
        scenario: Scenario,
        network: Network,
        roles: RoleSteps,
        verdicts: Verdicts,
        moves: LocalMoves,
    ) -> None:
        named = scenario.cuts or scenario.free_timers or scenario.drops
        waits = any(each.after for spec in scenario.processes for each in spec.operations)
        if scenario.symmetric and (named or waits):
            raise ValueError(
                f"{scenario.name}: symmetry cannot be used with cuts, free timers, drops or operations that wait for "
                "others: they name processes"
            )
        places = {spec.name: place for place, spec in enumerate(scenario.processes)}
        self._renamings = [
            _Renaming(names, places, network, roles, verdicts, moves) for names in _name_maps(scenario.symmetric)
        ]

    def key(self, state: State) -> State:
        """The same for all states that differ only in names, and only for those."""
        return min((renaming.apply(state) for renaming in self._renamings), default=state)


class Audit:
    """Compares states that a search merges: they must have the same successors.

    It checks the first ``STATES_MAX`` states: a test, not a proof, but a wrong renaming shows early.
    """

    STATES_MAX = 20_000

    def __init__(self, symmetry: Symmetry, name: str, expand: Callable[[State], list[tuple[int, State]]]) -> None:
        self._symmetry = symmetry
        self._name = name
        self._expand = expand
        self._first: dict[State, State] = {}
        self._compared: set[State] = set()

    def meet(self, key: State, state: State) -> None:
        """Raises ValueError if ``state`` has the key of an earlier state, but other successors."""
        first = self._first.get(key)
        if first is None:
            if len(self._first) < self.STATES_MAX:
                self._first[key] = state
        elif state != first and state not in self._compared:
            self._compared.add(state)
            if self._future(state) != self._future(first):
                raise ValueError(
                    f"{self._name}: not symmetric: two states that differ only in names have different successors; "
                    "something depends on the index of a process, on an order, or on a part of a string"
                )

    def _future(self, state: State) -> list[State]:
        return sorted(self._symmetry.key(after) for _, after in self._expand(state))


class _Renaming:
    """One permutation of names, applied to numbers, each of them once."""

    def __init__(
        self,
        names: dict[str, str],
        places: dict[str, int],
        network: Network,
        roles: RoleSteps,
        verdicts: Verdicts,
        moves: LocalMoves,
    ) -> None:
        self._names = names
        self._target = [places[names.get(name, name)] for name in places]
        self._network = network
        self._roles = roles
        self._verdicts = verdicts
        self._moves = moves
        self._inboxes: dict[int, int] = {}
        self._messages: dict[int, int] = {}
        self._verdict_numbers: dict[int, int] = {}
        self._processes: dict[int, int] = {}

    def apply(self, state: Sequence[int]) -> State:
        renamed = list(state)
        count = len(self._target)
        for index, target in enumerate(self._target):
            renamed[target] = self._process(state[index], target)
            renamed[count + target] = self._inbox(state[count + index])
        verdict = self._verdict_numbers.get(state[-1])
        if verdict is None:
            verdict = self._verdict_numbers[state[-1]] = self._verdicts.renamed(state[-1], self._names)
        renamed[-1] = verdict
        return tuple(renamed)

    def _inbox(self, number: int) -> int:
        renamed = self._inboxes.get(number)
        if renamed is None:
            messages = [self._message(each) for each in self._network.contents(number)]
            renamed = self._inboxes[number] = self._network.inbox(messages)
        return renamed

    def _message(self, number: int) -> int:
        renamed = self._messages.get(number)
        if renamed is None:
            source, target, content = self._network.messages.values[number]
            renamed = self._network.message(self._address(source), self._address(target), rename(content, self._names))
            self._messages[number] = renamed
        return renamed

    def _address(self, address: Address) -> Address:
        return Address(self._names.get(address.process, address.process), address.role)

    def _process(self, number: int, place: int) -> int:
        renamed = self._processes.get(number)
        if renamed is None:
            process, names = self._moves.locals[number].process, self._names
            renamed = self._processes[number] = self._moves.number(
                process._replace(
                    spec_index=place,
                    image=rename(process.image, names),
                    roles=tuple((name, self._roles.renamed(role, names)) for name, role in process.roles),
                    timers=tuple(sorted((role, names.get(key, key)) for role, key in process.timers)),
                    withheld=rename(process.withheld, names),
                )
            )
        return renamed


def _name_maps(groups: tuple[tuple[str, ...], ...]) -> list[dict[str, str]]:
    """All permutations of names within their groups, the identity first."""
    ways = [[dict(zip(group, order, strict=True)) for order in permutations(group)] for group in groups]
    return [{name: to for part in parts for name, to in part.items()} for parts in product(*ways)] if groups else []
