"""The successors of a state: the hot path of every search.

Messages that can never be handled are removed from the network: those that their target ignores, and those to a process
that is down and cannot restart. They are removed after each step that may have made them so.
"""

from __future__ import annotations

from itertools import product

from trunkline.check.actions import Action
from trunkline.check.budgets import Budget, Budgets
from trunkline.check.moves import Handled, Local, LocalMoves, Move
from trunkline.check.network import Network
from trunkline.check.scenario import Scenario
from trunkline.check.verdicts import Verdicts

State = tuple[int, ...]
Expansion = list[tuple[int, State]]


class Successors:
    """Lists successors in a fixed order: first steps that are not faults, then faults.

    A state holds the process with index ``place`` at ``place`` and its inbox at ``count + place``.
    """

    def __init__(
        self,
        scenario: Scenario,
        network: Network,
        budgets: Budgets,
        verdicts: Verdicts,
        moves: LocalMoves,
    ) -> None:
        places = {spec.name: place for place, spec in enumerate(scenario.processes)}
        self._scenario = scenario
        self._network = network
        self._budgets = budgets
        self._verdicts = verdicts
        self._moves = moves
        self._count = len(places)
        self._crashable = tuple(sorted(places[name] for name in scenario.crashable))
        self._stays_down = frozenset(places[name] for name in scenario.stays_down)
        self._starts_up = frozenset(places[spec.name] for spec in scenario.processes if spec.up)
        self._lossy = frozenset(scenario.lossy)
        self._power_places = tuple(places[name] for name in scenario.power_domain)
        self._losses: dict[int, int] = {}  # by message: the number of its action
        self._drops: dict[int, tuple[int, ...]] = {}  # by message: indexes of matching Scenario.drops
        self._gated = any(each.after for spec in scenario.processes for each in spec.operations)

    def expand(self, state: State) -> Expansion:
        if state[-1] in self._verdicts.findings:
            return []
        budget = self._budgets.ready(state[-2])
        found: Expansion = []
        self._deliver(state, budget, found)
        self._wait(state, found)
        idle = not found
        if idle:
            self._fire(state, found)
        elif budget.free_timers:
            self._fire_free(state, budget, found)
        if budget.restart is not None:
            self._start_again(state, budget.restart, found)
        if budget.healed is not None:
            found.append((self._moves.action(Action("heal")), (*state[:-2], budget.healed, state[-1])))
        if budget.faulty:
            self._fault(state, budget, found, idle=idle)
        return found

    def begin(self, state: State, place: int) -> State:
        """The state after the first start of a process; unchanged if that start has several outcomes.

        Such a process starts by a ``restart`` that costs nothing.
        """
        moves = self._moves.restart(self._moves.locals[state[place]]).moves
        return self._after(state, place, moves[0], state[-2]) if len(moves) == 1 else state

    def settled(self, state: State) -> State:
        """The state without messages that can never be handled."""
        after = list(state)
        for place in range(self._count):
            after[self._count + place] = self._kept(place, state[place], state[self._count + place], state[-2])
        return tuple(after)

    # Steps that are not faults

    def _deliver(self, state: State, budget: Budget, found: Expansion) -> None:
        """All deliveries. ``_after`` is inlined here, where a search spends most of its time."""
        count, local, add = self._count, self._moves.locals, self._network.add
        bundles, verdicts, cut, env = self._network.bundles, self._verdicts, budget.cut_now, state[-2]
        for place in range(count):
            inbox = state[count + place]
            if not inbox:
                continue
            here = local[state[place]]
            if not here.up:
                continue
            deliveries = here.deliveries.get((inbox, cut))
            if deliveries is None:
                deliveries = self._moves.deliveries(here, inbox, budget)
            for action, process, rest, bundle, notices in deliveries:
                after = list(state)
                after[place] = process
                after[count + place] = rest
                if bundle:
                    for target, parcel in bundles[bundle]:
                        kept = add(after[count + target], parcel)
                        if local[state[target]].attention:
                            kept = self._kept(target, state[target], kept, env)
                        after[count + target] = kept
                if notices:
                    after[-1] = verdicts.after(after[-1], notices)
                found.append((action, tuple(after)))

    def _wait(self, state: State, found: Expansion) -> None:
        """Steps that processes can take by themselves without time passing."""
        moves = self._moves
        for place in range(self._count):
            here = moves.locals[state[place]]
            waiting = here.waiting
            for handled in moves.waiting(here) if waiting is None else waiting:
                self._take(state, place, handled.moves, state[-2], found)
            if self._gated:
                for handled in self._let_in(state, here):
                    self._take(state, place, handled.moves, state[-2], found)
            if not here.up and self._never_started(place, here):
                self._take(state, place, moves.restart(here).moves, state[-2], found)

    def _fire(self, state: State, found: Expansion) -> None:
        moves = self._moves
        for place in range(self._count):
            here = moves.locals[state[place]]
            for handled in moves.timers(here):
                self._take(state, place, handled.moves, state[-2], found)

    def _fire_free(self, state: State, budget: Budget, found: Expansion) -> None:
        moves = self._moves
        for place in range(self._count):
            for places, handled in moves.free_timers(moves.locals[state[place]]):
                left = next((budget.free_timers[each] for each in places if each in budget.free_timers), None)
                if left is not None:
                    self._take(state, place, handled.moves, left.fired, found)

    def _let_in(self, state: State, here: Local) -> tuple[Handled, ...]:
        """The next operation of a process, if those that it waits for have ended."""
        gated = self._moves.gated(here)
        return gated if gated and self._verdicts.have_ended(state[-1], self._moves.gate(here)) else ()

    def _start_again(self, state: State, env: int, found: Expansion) -> None:
        for place, here in self._down(state):
            if not self._never_started(place, here):
                moves = self._moves.restart(here).moves
                self._take(state, place, moves, env, found, everywhere=True)

    def _down(self, state: State) -> list[tuple[int, Local]]:
        """Processes that are down and may restart."""
        local = self._moves.locals
        down = [(place, local[state[place]]) for place in range(self._count) if not local[state[place]].up]
        return [(place, here) for place, here in down if place not in self._stays_down]

    def _never_started(self, place: int, here: Local) -> bool:
        """It is up from the beginning, and its first start is still to come."""
        return not here.process.start and place in self._starts_up

    # Faults

    def _fault(self, state: State, budget: Budget, found: Expansion, *, idle: bool) -> None:
        if budget.early_timer is not None and not idle:
            self._fire_early(state, budget.early_timer, found)
        if budget.loss is not None:
            self._lose(state, budget.loss, found)
        if budget.drops:
            self._drop(state, budget, found)
        if budget.duplicate is not None:
            self._double(state, budget, budget.duplicate, found)
        if budget.crash is not None:
            self._crash(state, budget, budget.crash, found, idle=idle)
        if budget.wipe is not None:
            self._wipe(state, budget.wipe, found)
        if budget.power_cut is not None:
            self._cut_power(state, budget.power_cut, found)
        if budget.rot is not None:
            self._rot(state, budget, budget.rot, found)
        if budget.cut is not None:
            for index, cut in enumerate(self._scenario.cuts):
                action = self._moves.action(Action("cut", "", cut.name))
                found.append((action, (*state[:-2], self._budgets.cut(budget.cut, index), state[-1])))

    def _fire_early(self, state: State, env: int, found: Expansion) -> None:
        moves = self._moves
        for place in range(self._count):
            here = moves.locals[state[place]]
            for handled in moves.early_timers(here):
                self._take(state, place, handled.moves, env, found)

    def _lose(self, state: State, env: int, found: Expansion) -> None:
        for place in range(self._count, 2 * self._count):
            for message, rest in self._network.flights(state[place]):
                if self._is_lossy(message):
                    action = self._losses.get(message)
                    if action is None:
                        action = self._losses[message] = self._loss(message, "lose")
                    after = list(state)
                    after[place] = rest
                    after[-2] = env
                    found.append((action, tuple(after)))

    def _loss(self, message: int, kind: str) -> int:
        lost = Action(kind, self._network.channels[message][1], self._network.texts[message])
        return self._moves.action(lost)

    def _drop(self, state: State, budget: Budget, found: Expansion) -> None:
        """A sender's host drops a message. Dropping it while it is in flight is equivalent."""
        for place in range(self._count, 2 * self._count):
            for message, rest in self._network.flights(state[place]):
                env = next((budget.drops[each] for each in self._droppable(message) if each in budget.drops), None)
                if env is not None:
                    after = list(state)
                    after[place] = rest
                    after[-2] = env
                    found.append((self._loss(message, "drop"), tuple(after)))

    def _droppable(self, message: int) -> tuple[int, ...]:
        places = self._drops.get(message)
        if places is None:
            channel = self._network.channels[message]
            kind = type(self._network.messages.values[message].message).__name__
            entries = enumerate(self._scenario.drops)
            places = self._drops[message] = tuple(place for place, each in entries if each.matches(*channel, kind))
        return places

    def _double(self, state: State, budget: Budget, env: int, found: Expansion) -> None:
        for place in range(self._count):
            here = self._moves.locals[state[place]]
            for message, _ in self._arriving(state, place, here, budget):
                if self._is_lossy(message):
                    self._take(state, place, self._moves.doubled(here, message), env, found)

    def _arriving(self, state: State, place: int, here: Local, budget: Budget) -> list[tuple[int, int]]:
        """The messages that can be delivered to one process now, each with the remaining inbox."""
        if not here.up:
            return []
        channels, blocked = self._network.channels, budget.blocked
        flights = self._network.flights(state[self._count + place])
        return [(message, rest) for message, rest in flights if channels[message] not in blocked]

    def _is_lossy(self, message: int) -> bool:
        return not self._lossy or not self._lossy.isdisjoint(self._network.channels[message])

    def _crash(self, state: State, budget: Budget, env: int, found: Expansion, *, idle: bool) -> None:
        """Crashes between steps, then crashes inside the possible next steps."""
        moves = self._moves
        for place in self._crashable:
            here = moves.locals[state[place]]
            if not here.up:
                continue
            self._take(state, place, moves.crash(here), env, found)
            for message, rest in self._arriving(state, place, here, budget):
                self._take(state, place, moves.arrival(here, message).crashes, env, found, inbox=rest)
            self._break_off(state, place, moves.waiting(here), env, found)
            if self._gated:
                self._break_off(state, place, self._let_in(state, here), env, found)
            if idle:
                self._break_off(state, place, moves.timers(here), env, found)
                continue
            if budget.early_crash is not None:
                self._break_off(state, place, moves.early_timers(here), budget.early_crash, found)
            if budget.free_timers:
                self._break_off_free(state, place, here, budget, found)
        if budget.restart_crash is not None:
            for place, here in self._down(state):
                if place in self._crashable and not self._never_started(place, here):
                    crashes = moves.restart(here).crashes
                    self._take(state, place, crashes, budget.restart_crash, found, everywhere=True)

    def _break_off(self, state: State, place: int, causes: tuple[Handled, ...], env: int, found: Expansion) -> None:
        for handled in causes:
            self._take(state, place, handled.crashes, env, found)

    def _break_off_free(self, state: State, place: int, here: Local, budget: Budget, found: Expansion) -> None:
        for places, handled in self._moves.free_timers(here):
            left = next((budget.free_timers[each] for each in places if each in budget.free_timers), None)
            if left is not None and left.crashed is not None:
                self._take(state, place, handled.crashes, left.crashed, found)

    def _wipe(self, state: State, env: int, found: Expansion) -> None:
        for place, here in self._down(state):
            if here.process.start:
                moves = self._moves.wipe(here).moves
                self._take(state, place, moves, env, found, everywhere=True)

    def _rot(self, state: State, budget: Budget, env: int, found: Expansion) -> None:
        for place, here in self._down(state):
            if self._may_return(place, here, budget):
                self._take(state, place, self._moves.rot(here), env, found)

    def _cut_power(self, state: State, env: int, found: Expansion) -> None:
        """All processes of the domain end at once; each disk keeps one of its possible images."""
        places, moves, names = self._power_places, self._moves, self._scenario.power_domain
        local = [moves.locals[state[place]] for place in places]
        for images in product(*(moves.power_cut(here) for here in local)):
            after = list(state)
            after[-2] = env
            for place, image in zip(places, images, strict=True):
                after[place] = image.process
                after[-1] = self._verdicts.after(after[-1], image.notices)
            if after[: self._count] != list(state[: self._count]):
                labels = "; ".join(f"{name}: {image.label}" for name, image in zip(names, images, strict=True))
                found.append((moves.action(Action("power_cut", "", labels)), self.settled(tuple(after))))

    # The state after a move

    def _take(
        self,
        state: State,
        place: int,
        moves: tuple[Move, ...],
        env: int,
        found: Expansion,
        *,
        inbox: int | None = None,
        everywhere: bool = False,
    ) -> None:
        """Add the state after each move. ``everywhere``: the move may decide which processes can restart."""
        for move in moves:
            after = self._after(state, place, move, env, inbox)
            found.append((move.action, self.settled(after) if everywhere else after))

    def _after(self, state: State, place: int, move: Move, env: int, inbox: int | None = None) -> State:
        """``inbox``: what remains of the process's inbox, if the move takes a message out of it."""
        count = self._count
        after = list(state)
        after[place] = move.process
        own = state[count + place] if inbox is None else inbox
        after[count + place] = self._kept(place, move.process, own, env)
        for target, parcel in self._network.bundles[move.bundle]:
            grown = self._network.add(after[count + target], parcel)
            after[count + target] = self._kept(target, state[target], grown, env)
        if move.notices:
            after[-1] = self._verdicts.after(state[-1], move.notices)
        after[-2] = env
        return tuple(after)

    def _kept(self, place: int, process: int, inbox: int, env: int) -> int:
        """The inbox of a process without messages that it can never handle."""
        here = self._moves.locals[process]
        if not inbox or not here.attention:
            return inbox
        if here.up:
            return self._moves.kept(process, inbox)
        return inbox if self._may_return(place, here, self._budgets.ready(env)) else Network.EMPTY

    def _may_return(self, place: int, here: Local, budget: Budget) -> bool:
        if place in self._stays_down:
            return False
        if self._never_started(place, here):
            return True
        return budget.restart is not None or (budget.wipe is not None and here.process.start > 0)
