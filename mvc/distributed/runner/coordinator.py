"""The coordinator's process: ``python -m mvc.distributed.runner.coordinator JOB``.

JOB is JSON. Events go to stdout, one JSON object a line. Every global model is committed before
any worker gets it, so whatever has been trained on is in the repository, and a coordinator that
starts again goes on from the newest version.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict

from mvc.api import Repository
from mvc.distributed import messages as m
from mvc.distributed.protocols.base import VectorLayout
from mvc.distributed.runner.connection import (
    ALIVE,
    CONTROL,
    FINAL,
    MESSAGE,
    MODEL,
    Connection,
    Frame,
)
from mvc.distributed.runner.global_models import GlobalModels, Round, alone
from mvc.distributed.runner.layout import Carried, ModelLayout, Vector
from mvc.distributed.runner.reception import GOODBYE, Reception
from mvc.distributed.runner.script import end_with_stdin
from mvc.distributed.runner.settings import BEAT, TIMEOUT, check_worker_models, checked, protocol_of
from mvc.distributed.simulator import HUB, Event
from mvc.errors import BadMessage, CannotDistribute, MvcError, WrongUsage
from mvc.repo.lookup.refs import tip
from mvc.repo.recording import announce
from mvc.system import SLICE, FileSystem, Patience
from mvc.training.pushing import Pusher

_LAST_WORDS = 10.0  # seconds that workers may take to end, at least
_RESUME = "--option resume=true goes on from the last round"

Tell = Callable[..., None]


class Seat:
    """A worker's connection. Times are of the monotonic clock.

    ``asked``: since when an answer is awaited; None if none is. ``heard``: when it last said
    something. ``word``: after how many seconds without a word the command says so.
    """

    def __init__(self, link: Connection, layout: ModelLayout, settings: Mapping[str, Any]) -> None:
        self.link, self.layout, self.settings = link, layout, settings
        self.steps = 0
        self.asked: float | None = None
        self.heard = time.monotonic()
        self.word = BEAT + 2 * SLICE


class Service:
    """Runs one training. ``tell(event, **fields)`` reports.

    It gathers the workers, begins with the newest round of the repository or with the model of
    worker 0, and then takes one event after another. A message goes to the protocol's machine; its
    answers are sent once the global model that they may lead to is committed. A worker whose
    process is gone, or that owes an answer for too long, leaves the machine and is waited for, and
    until then the workers that are done are not let go (``_held``). In the end all get the last
    model.

    ``_awaited``: the workers that may come back, and since when they are waited for. ``_gone``:
    those that are not waited for, and why; None if their part was done.
    """

    def __init__(self, job: Mapping[str, Any], tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._settings: dict[str, Any] = dict(job.get("settings", {}))
        self._workers = int(job["workers"])
        self._seats: dict[int, Seat] = {}
        self._awaited: dict[int, float] = {}
        self._gone: dict[int, str | None] = {int(w): why for w, why in job.get("gone", {}).items()}
        self._held: list[m.Message] = []
        self._log: list[Event] = []
        self._connections: list[Connection] = []
        self._running = False
        self._pusher: Pusher | None = None
        self._drifts: dict[int, m.Drift] = {}
        self._timeout = float(self._settings.get("timeout", TIMEOUT))
        self._beat = self._ping = time.monotonic()  # when the command, the workers heard of us
        if self._workers < 2:
            raise WrongUsage(
                f"{self._workers} worker: averaging needs at least two", hint="raise --workers"
            )

    def run(self) -> None:
        """Trains, from the first worker to the last global model. All workers hear of an error."""
        host, port = str(self._job.get("host", "127.0.0.1")), int(self._job.get("port", 0))
        self._reception = Reception(host, port, self._timeout)
        try:
            self._tell("listening", port=self._reception.port, pid=os.getpid())
            self._train()
        except Exception as error:
            for seat in self._seats.values():
                seat.link.say(failed=str(error))
            until = time.monotonic() + GOODBYE
            for link in self._connections:
                link.finish(max(0.0, until - time.monotonic()))
            raise
        finally:
            self._finish_pushing()
            self._reception.close()
            for link in self._connections:
                link.close()

    def _train(self) -> None:
        self._gather()
        first = self._seats[min(self._seats)]
        layout = self._layout = first.layout
        self._settings = checked({**first.settings, **self._settings})
        self._timeout = float(self._settings.get("timeout", TIMEOUT))
        self._reception.timeout = self._timeout
        protocol = self._protocol = protocol_of(self._settings)
        check_worker_models(self._settings, protocol)
        if "log" in self._settings:  # where it cannot be written, nobody trains for nothing
            _write_log(Path(self._settings["log"]), [], {})
        target, branch = self._settings.get("target", "global"), self._settings.get("branch")
        with (
            Repository.open(self._settings.get("repo", ".")) as repo,
            alone(repo, target),
            announce(repo.context, tip(repo.context, branch, new=True).branch),
        ):
            self._versions = GlobalModels(
                repo,
                target=target,
                branch=branch,
                params={"run": self._job.get("run", ""), "protocol": protocol.name},
                pusher=self._start_pushing(repo),
            )
            start = self._start(layout)
            self._carried: Carried = start.carried
            self._begun_with = start
            now = time.monotonic()
            away = set(range(self._workers)) - self._seats.keys()
            self._awaited = dict.fromkeys(away - self._gone.keys(), now)
            self._steps_committed = [*start.steps, *[0] * self._workers][: self._workers]
            kind = VectorLayout(layout.length, layout.measured, np.dtype(np.float32), layout.digest)
            machine = self._machine = protocol.coordinator(
                start.vector, range(self._workers), kind, start.memory or None
            )
            self._told_radius = machine.radius
            self._tell(
                "begins",
                protocol=protocol.name,
                threshold=protocol.describe(start.vector[: layout.measured], machine.radius),
                workers=self._workers,
                round=start.number,
            )
            for worker in away - self._awaited.keys():
                self._machine.remove(worker)
            for worker in sorted(self._seats):
                self._welcome(worker)
            while not self._machine.finished:
                self._handle_next()
            self._conclude()

    def _start_pushing(self, repo: Repository) -> Pusher | None:
        if (remote := self._settings.get("push")) is not None:
            branch = self._settings.get("branch") or repo.head().branch
            self._pusher = Pusher(
                repo, remote, branch, tell=lambda text: self._tell("not pushed", reason=text)
            )
        return self._pusher

    def _finish_pushing(self) -> None:
        """Pushes what is left; the command hears every second that it goes on."""
        if self._pusher is not None:
            for _ in self._pusher.finishing():
                self._tell("pushes")
            self._tell("pushed", **asdict(self._pusher.report))

    # -- connections ---------------------------------------------------------------------------

    def _next(self, until: float | None) -> tuple[str, Connection, Any] | None:
        """The next event; None if none comes until then."""
        while True:
            self._say_alive()
            left = SLICE if until is None else max(0.0, until - time.monotonic())
            try:
                event = self._reception.events.get(timeout=min(SLICE, left))
            except queue.Empty:
                if until is not None and left <= SLICE:
                    return None
                continue
            if not self._hears(*event):
                return event

    def _hears(self, kind: str, link: Connection, frame: Any) -> bool:
        """Notes that a worker was heard; returns whether the event says nothing else."""
        worker = self._of(link)
        if kind != "frame" or worker is None:
            return False
        self._seats[worker].heard = time.monotonic()
        return bool(frame.kind == CONTROL and frame.data == ALIVE)

    def _say_alive(self) -> None:
        """Tells the command and, less often, the workers that this process goes on."""
        now = time.monotonic()
        if now >= self._beat + SLICE:
            self._beat = now
            self._tell("alive")
            for worker, since in self._owing().items():
                seat = self._seats[worker]
                if now - since >= seat.word:
                    seat.word = 2 * (now - since)
                    self._tell("waits", what=f"worker {worker}", seconds=now - since)
        if now >= self._ping + BEAT:
            self._ping = now
            for seat in self._seats.values():
                seat.link.send(CONTROL, ALIVE)

    def _of(self, link: Connection) -> int | None:
        return next((w for w, seat in self._seats.items() if seat.link is link), None)

    # -- the beginning -------------------------------------------------------------------------

    def _gather(self) -> None:
        """Waits for all workers that can come. Raises CannotDistribute if they do not, or misfit.

        A training that has begun goes on without those that do not come in time.
        """
        wanted = set(range(self._workers)) - self._gone.keys()
        again = self._job.get("again")

        def say(seconds: float) -> None:
            self._tell("waits", what=f"{self._late(wanted)} to join", seconds=seconds)

        limit = self._timeout + float(self._job.get("start", 0.0))
        patience = Patience(limit, say)
        while not wanted <= self._seats.keys():
            event = self._next(time.monotonic() + SLICE / 2)
            if event is None:
                if not patience.look():
                    continue
                if self._seats and again:
                    late = wanted - self._seats.keys()
                    self._gone |= dict.fromkeys(late, "it did not come back")
                    break
                raise CannotDistribute(
                    f"{self._late(wanted)} did not join within {limit:g} seconds",
                    hint="does the script call mvc.distributed.join in every process?",
                )
            kind, link, said = event
            if kind == "hello":
                self._seat(link, said)
            elif (worker := self._of(link)) is not None:
                del self._seats[worker]
        if not self._seats:
            why = next(filter(None, self._gone.values()), "all have ended")
            raise CannotDistribute(f"no worker is left: {why}", hint=_RESUME)
        first, *others = sorted(self._seats)
        for worker in others:
            difference = self._seats[first].layout.difference(self._seats[worker].layout)
            if difference is not None:
                raise CannotDistribute(
                    f"worker {worker} trains another model than worker {first}: {difference}"
                )

    def _late(self, wanted: set[int]) -> str:
        late = sorted(wanted - self._seats.keys())
        return f"worker{'s' * (len(late) > 1)} {', '.join(map(str, late))}"

    def _seat(self, link: Connection, said: Mapping[str, Any]) -> int | None:
        """Takes a worker in; None if it cannot take part, and has been told so."""
        try:
            worker = int(said["hello"])
            seat = Seat(link, ModelLayout.from_json(said["layout"]), dict(said["settings"]))
        except (KeyError, TypeError, ValueError, OverflowError, BadMessage):
            link.say(failed="what this process says of itself cannot be read")
            return None
        reason = None
        if not 0 <= worker < self._workers:
            reason = f"there is no worker {worker}: they are numbered 0 to {self._workers - 1}"
        elif worker in self._seats:
            reason = f"a process takes part as worker {worker} already"
        if reason is not None:
            seat.link.say(failed=reason)
            return None
        self._seats[worker] = seat
        self._connections.append(seat.link)
        self._gone.pop(worker, None)  # one that is waited for has come when it joins
        self._tell("joined", worker=worker, pid=said.get("pid"))
        return worker

    def _start(self, layout: ModelLayout) -> Round:
        """The newest round of the repository if the training goes on, else worker 0's model."""
        again, found = self._job.get("again"), None  # None: never before; True: it had begun
        if again is not None:
            found = self._versions.newest_of(str(self._job["run"]), layout)
        if found is None and again:
            raise CannotDistribute(
                f"no round of this training is left on {self._versions.target}",
                hint="name another --target, or leave resume out",
            )
        if found is None and self._job.get("resume"):
            found = self._versions.live(layout)
        if again:
            self._log.append(Event(HUB, "lost"))
        if found is not None:
            self._tell("resumed", round=found.number)
            self._versions.resumed()
            return found
        if 0 not in self._seats:
            raise CannotDistribute(
                "worker 0, whose model all begin with, is gone", hint="start the training again"
            )
        self._seats[0].link.say(give=True)
        vector = np.frombuffer(self._given(), np.float32)
        carried = layout.unpack(self._given())
        if len(vector) != layout.length:
            raise BadMessage("the model that worker 0 sent does not have its own length")
        VectorLayout.of(vector)  # refuses numbers that are not finite
        steps = [0] * self._workers
        start = Round(number=0, vector=vector, carried=carried, steps=steps)
        self._report(start, self._versions.commit(layout, start).hex())
        self._versions.push()
        return start

    def _given(self) -> bytes:
        """The next part of the model that worker 0 was asked for."""
        until = time.monotonic() + self._timeout
        while (event := self._next(until)) is not None:
            kind, link, frame = event
            if self._of(link) == 0 and kind == "frame" and frame.kind == MODEL:
                data: bytes = frame.data
                return data
            if kind == "hello":
                self._seat(link, frame)
            elif self._of(link) == 0:
                break
            elif (worker := self._of(link)) is not None:  # it may come back
                del self._seats[worker]
        raise CannotDistribute("worker 0 has gone before the training began")

    def _welcome(self, worker: int) -> None:
        seat = self._seats[worker]
        seat.steps = self._steps_committed[worker]
        seat.asked = time.monotonic()  # it owes its Join
        seat.link.say(welcome=self._settings, steps=seat.steps)
        seat.link.send(MODEL, _packed(self._carried))

    # -- the training --------------------------------------------------------------------------

    def _handle_next(self) -> None:
        event = self._next(self._deadline())
        if event is None:
            self._overdue()
            return
        kind, link, content = event
        if kind == "hello":
            self._come_back(link, content)
        elif (worker := self._of(link)) is None:
            return  # of a connection that was given up
        elif kind == "frame":
            try:
                self._take_frame(worker, content)
            except BadMessage as error:
                self._refuse(worker, error.message)
        else:
            self._lose(worker, "its process has gone")

    def _take_frame(self, worker: int, frame: Frame) -> None:
        seat = self._seats[worker]
        if frame.kind == CONTROL:
            said = frame.json()
            if "leave" in said:
                self._refuse(worker, str(said["leave"]))
            return
        if frame.kind != MESSAGE:
            raise BadMessage(f"worker {worker} sends a model that nobody asked for")
        message = m.from_bytes(frame.data)
        if message.worker != worker:
            raise BadMessage(f"worker {worker} speaks for worker {message.worker}")
        seat.steps, seat.asked = frame.step, None
        if isinstance(message, m.Drift):
            self._drifts[worker] = message
        if isinstance(message, m.Done) and self._awaited:
            self._held.append(message)  # the training does not end without those who may come back
            return
        self._take(message)
        if isinstance(message, m.Join) and worker in self._awaited:
            del self._awaited[worker]
            self._release()

    def _take(self, message: m.Message) -> None:
        self._log.append(Event(HUB, "batch", (message.worker,)))
        before, rounds = self._machine.reference, self._machine.counts.rounds
        self._follow_up(self._machine.on_messages([message]), before, rounds)

    def _release(self) -> None:
        """If nobody is waited for any more, those who are done may be told to end."""
        if self._awaited:
            return
        held, self._held = self._held, []
        for message in held:
            if message.worker in self._seats:
                self._take(message)

    def _follow_up(self, answers: Sequence[m.Message], before: Vector, rounds: int) -> None:
        """Commits the global model, if it is a new one, and only then sends what is to be sent."""
        machine = self._machine
        if ended := machine.counts.rounds > rounds:
            self._commit(before)
        if machine.radius != self._told_radius:
            self._told_radius = machine.radius
            parameters = machine.reference[: self._layout.measured]
            self._tell("found", threshold=self._protocol.describe(parameters, machine.radius))
        for message in answers:
            seat = self._seats.get(message.worker)
            self._running = self._running or isinstance(message, m.Begin)
            if seat is not None:
                if isinstance(message, m.Fetch | m.Collect):
                    seat.asked = time.monotonic()
                seat.link.send(MESSAGE, message.to_bytes())
        if ended:  # not before the workers have what they wait for
            self._versions.push()
        refusals, machine.refusals[:] = list(machine.refusals), []
        for refusal in refusals:
            if refusal.worker in self._seats:
                self._seats[refusal.worker].link.say(failed=refusal.reason)
            self._dismiss(refusal.worker, refusal.reason)
        if refusals:
            self._release()

    def _commit(self, before: Vector) -> None:
        counts, start, machine = self._machine.counts, self._begun_with, self._machine
        for worker, seat in self._seats.items():
            self._steps_committed[worker] = seat.steps
        number = start.number + counts.rounds
        done = Round(
            number=number,
            vector=machine.reference,
            carried=self._carried,
            steps=list(self._steps_committed),
            subrounds=start.subrounds + counts.subrounds,
            up=start.up + counts.up,
            down=start.down + counts.down,
            memory=machine.memory(),
        )
        if self._settings.get("worker_models"):
            ended = machine.round if machine.finished else machine.round - 1
            wire, _ = self._protocol.wires(machine.layout)
            for worker, drift in sorted(self._drifts.items()):
                if drift.round == ended:
                    local = (before.astype(np.float64) + wire.decode(drift.data)).astype(np.float32)
                    state = self._layout.state(local, self._carried)
                    self._versions.commit_local(state, worker=worker, number=number)
        commit = self._versions.commit(self._layout, done)
        self._reception.traffic.look()
        self._report(done, commit.hex())

    def _report(self, done: Round, commit: str) -> None:
        self._tell(
            "round",
            round=done.number,
            commit=commit,
            subrounds=done.subrounds,
            bytes_up=done.up,
            bytes_down=done.down,
        )

    # -- who goes and who comes ----------------------------------------------------------------

    def _give_up(self, worker: int, reason: str) -> None:
        """It is not waited for any more; until the end it may still join again."""
        self._awaited.pop(worker, None)
        self._gone[worker] = reason

    def _come_back(self, link: Connection, said: Mapping[str, Any]) -> None:
        if (worker := self._seat(link, said)) is None:
            return
        difference = self._layout.difference(self._seats[worker].layout)
        if difference is None:
            self._welcome(worker)
        else:
            self._refuse(worker, f"worker {worker} trains another model: {difference}")

    def _lose(self, worker: int, reason: str, deaf: bool = False) -> None:
        """The round goes on without the worker, which may come back.

        One that is ``deaf`` has had its time: it is told to join again if it wakes up.
        """
        if deaf:
            self._seats[worker].link.say(again=True)
            self._give_up(worker, reason)
        else:
            self._awaited[worker] = time.monotonic()
        del self._seats[worker]
        self._held = [message for message in self._held if message.worker != worker]
        self._log.append(Event(HUB, "lost", (worker,)))
        self._tell("lost", worker=worker, reason=reason, deaf=deaf)
        self._remove(worker)

    def _remove(self, worker: int) -> None:
        before, rounds = self._machine.reference, self._machine.counts.rounds
        self._log.append(Event(HUB, "remove", (worker,)))
        self._follow_up(self._machine.remove(worker), before, rounds)

    def _refuse(self, worker: int, reason: str) -> None:
        self._seats[worker].link.say(failed=reason)
        self._dismiss(worker, reason)
        self._remove(worker)
        self._release()

    def _dismiss(self, worker: int, reason: str) -> None:
        self._seats.pop(worker, None)
        self._give_up(worker, reason)
        self._log.append(Event(HUB, "lost", (worker,)))
        self._tell("refused", worker=worker, reason=reason)
        if not self._seats and not self._awaited:
            raise CannotDistribute(reason)

    def _owing(self) -> dict[int, float]:
        """Since when each worker has owed an answer, or a sign of life.

        A worker gives signs of life as long as it trains or waits.
        """
        return {
            worker: seat.heard if seat.asked is None else seat.asked
            for worker, seat in self._seats.items()
        }

    def _deadline(self) -> float | None:
        """When somebody's time is up next; a lost worker's only while the others wait for it."""
        since = [*self._owing().values()]
        if self._held or not self._seats or not self._running:
            since += self._awaited.values()
        return min(since) + self._timeout if since else None

    def _overdue(self) -> None:
        now = time.monotonic()
        for worker, since in self._owing().items():
            if now >= since + self._timeout:
                reason = f"it did not answer within {self._timeout:g} seconds"
                if not self._running:
                    raise CannotDistribute(
                        f"the training could not begin: worker {worker}: {reason}"
                    )
                self._lose(worker, reason, deaf=True)
        for worker, since in list(self._awaited.items()):
            if now >= since + self._timeout:
                if not self._running:
                    raise CannotDistribute(f"worker {worker} has gone before the training began")
                self._give_up(worker, "it did not come back")
        if not self._seats and not self._awaited:
            worker, why = max((w, why) for w, why in self._gone.items() if why is not None)
            raise CannotDistribute(f"no worker is left: worker {worker}: {why}", hint=_RESUME)
        self._release()

    # -- the end -------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Hears what each did, gives everybody the last model, and reports."""
        self._timeout = max(self._timeout, _LAST_WORDS)
        orders = self._last_words()
        self._send_last_model()
        if "log" in self._settings:
            _write_log(Path(self._settings["log"]), self._log, orders)
        self._report_end()

    def _last_words(self) -> dict[int, Any]:
        """What each worker did, in its order. Who says nothing is not waited for."""
        orders: dict[int, Any] = {}
        while late := self._seats.keys() - orders.keys():
            last = min(late, key=lambda worker: self._seats[worker].heard)
            event = self._next(self._seats[last].heard + self._timeout)
            if event is None:
                self._dismiss_deaf(last)
                continue
            kind, link, frame = event
            worker = self._of(link)
            if kind == "hello":  # it was killed in the ending, and has been started again
                self._come_back(link, frame)
            elif kind == "lost" and worker is not None:
                del self._seats[worker]
            elif kind == "frame" and worker is not None:
                with suppress(BadMessage):
                    if frame.kind == CONTROL:
                        orders[worker] = frame.json().get("order")
                    elif isinstance(m.from_bytes(frame.data), m.Join):  # too late
                        stop = m.Stop(worker, self._machine.round, 0)
                        link.send(MESSAGE, stop.to_bytes())
        return orders

    def _send_last_model(self) -> None:
        """To all at once; returns when they have read it, or their time is up."""
        for seat in self._seats.values():
            seat.link.send(FINAL, self._machine.reference.tobytes())
        until = time.monotonic() + self._timeout
        for worker, seat in list(self._seats.items()):
            sent = seat.link.finish(max(0.0, until - time.monotonic()))
            if not sent or not seat.link.ended.wait(max(0.0, until - time.monotonic())):
                self._dismiss_deaf(worker)
            self._reception.traffic.look()

    def _report_end(self) -> None:
        counts, start = self._machine.counts, self._begun_with
        socket_bytes, wire_bytes = self._reception.traffic.total()
        self._tell(
            "finished",
            resumed=start.number > 0,
            round=start.number + counts.rounds,
            rounds=start.number + counts.rounds,
            subrounds=start.subrounds + counts.subrounds,
            balances=counts.balances,
            bytes_up=start.up + counts.up,
            bytes_down=start.down + counts.down,
            messages_up=counts.messages_up,
            messages_down=counts.messages_down,
            bytes_beside=sum(each.beside for each in self._connections),
            socket_bytes=socket_bytes,
            wire_bytes=wire_bytes,
            refused={str(worker): why for worker, why in self._gone.items() if why is not None},
            steps=list(self._steps_committed),
            not_deployed=self._versions.not_deployed,
            push=None,  # the command fills it in: pushing ends after this
        )

    def _dismiss_deaf(self, worker: int) -> None:
        """The training is over: a worker that neither speaks nor reads is not waited for."""
        reason = f"it did not answer within {self._timeout:g} seconds at the end"
        self._seats.pop(worker).link.say(failed=reason)
        self._give_up(worker, reason)
        self._tell("lost", worker=worker, reason=reason, deaf=True)


def _packed(carried: Carried) -> bytes:
    from safetensors.torch import save

    return save(dict(carried))


def _write_log(path: Path, hub: Sequence[Event], orders: Mapping[int, Any]) -> None:
    """Writes the events of all processes, a line of JSON each."""
    events = [*hub]
    for worker, order in sorted(orders.items()):
        for did, times in order or ():
            events += [Event(worker, did)] * times
    text = "".join(json.dumps(to_builtins(event)) + "\n" for event in events).encode()
    FileSystem().replace_file(path, lambda file: file.write([text]), mode=None, durable=False)


def main(text: str) -> int:
    """Runs one job; returns the exit code."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    end_with_stdin()

    telling = threading.Lock()

    def tell(event: str, **fields: Any) -> None:
        with telling:
            print(json.dumps({"event": event, **fields}), file=events, flush=True)

    try:
        Service(json.loads(text), tell).run()
        return 0
    except MvcError as error:
        failure = error
    except Exception as error:
        traceback.print_exc()
        failure = CannotDistribute(f"{type(error).__name__}: {error}")
    tell("failed", message=failure.message, hint=failure.hint, kind=type(failure).__name__)
    return failure.exit_code


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no thread of torch or of a disk that does not answer keeps it from its end
