"""The ASGI application of ``mvc serve``: answers requests of mvc on other machines.

The requests are ``v1/head`` (the current refs), ``v1/live`` (which version is live on a
target), ``v1/send`` (a fetch) and ``v1/receive`` (a push). An answer consists of frames (see
``mvc.remote.wire``). Slow work runs in threads. During this work, the server sends empty frames, so
that the client sees that the server is alive. Text of a request is checked or escaped before it is
logged.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterator,
    Sequence,
)
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from typing import TypeVar

from blake3 import blake3
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from mvc.errors import MvcError, RemoteRefused, RemoteUnreachable, StorageFull
from mvc.limits import MIB
from mvc.names import printable
from mvc.server.answers import PART, Answer, Answers, Pending, store_answer
from mvc.server.audit import audit
from mvc.server.authority import Caller, Denied, Gate, may_push
from mvc.server.gathering import SECONDS, Gathering
from mvc.server.metrics import CONTENT, Counters
from mvc.server.places import Places, PlacesTaken
from mvc.server.repositories import Repositories, Served
from mvc.server.uploads import InUse, Upload
from mvc.system import Clock, cpu_count, log_event
from mvc.transport import Place, Received, Sent, Slice, Wanted, scopes, slices, wire
from mvc.types import Bytes

PROOFS = 4
"""Limit of pushes that are verified or wait for verification. More requests get the status 503."""
_PROCESSORS = 4  # number of CPUs for each running verification
SENDS = 16
"""Limit of concurrent answers with slices (parts of fetches)."""
WORKING = 8
"""Limit of threads that compute answers with slices."""
READERS = 256
"""Limit of cached answers that are sent concurrently. More requests wait."""
UPLOADS = 64
"""Limit of concurrent requests that upload parts of pushes."""
WAITING = 4096
"""Limit of requests that wait until another version is live."""
WATCHES = 256
"""Limit of targets for which requests wait."""
LONGEST_HEAD = 32 << 10
"""Limit of bytes of the URL and the headers of a request."""
_POLL = 0.1
SILENCE = 60.0
"""Seconds within which the next ``_STRIDE`` bytes of a request's body, or its end, must arrive."""
_STRIDE = 64 << 10
_STALLED = 600.0  # limit of seconds for which a client reads nothing of its answer
_VERBS = {"head", "live", "send", "receive", "metrics"}
_T = TypeVar("_T")

METRICS: scopes.Action = "metrics"
"""The path of the metrics, and the scope that permits reading them."""


class Application:
    """Serves the repositories of a folder. ``stopping``: returns whether the server is stopping.

    ``gather``: for how many seconds reports of nodes (machines that serve a model) are collected
    before they are recorded.
    """

    def __init__(
        self, repositories: Repositories, gate: Gate, *,
        stopping: Callable[[], bool] = lambda: False, gather: float = SECONDS,
    ) -> None:  # fmt: skip
        self._repositories, self._gate, self._stopping = repositories, gate, stopping
        self._counters = Counters()
        self._clock = Clock()
        self._proofs = 0
        self._sends, self._uploads, self._waits = map(Places, (SENDS, UPLOADS, WAITING))
        self._watched, self._readers = map(Places, (WATCHES, READERS))
        # Separate threads for short work, so that slow work does not delay it.
        self._short = ThreadPoolExecutor(4, thread_name_prefix="mvc-serve")
        self._long = ThreadPoolExecutor(WORKING, thread_name_prefix="mvc-slices")
        # A verification uses many CPUs and much memory, so only few run concurrently.
        proofs = max(1, min(PROOFS, cpu_count() // _PROCESSORS))
        self._proving = ThreadPoolExecutor(proofs, thread_name_prefix="mvc-proof")
        self._watches = dict[tuple[str, str, str], asyncio.Task[str]]()
        self._answers = Answers()
        self._gather, self._gatherings = gather, dict[str, Gathering]()
        self.asgi = Starlette(
            routes=[Route(f"/{METRICS}", self._answering(None), methods=["GET"])]
            + [
                Route(f"{prefix}/v1/{name}", self._answering(endpoint), methods=methods)
                for prefix in ("", "/{repository:path}")
                for name, endpoint, methods in (
                    ("head", self._head, ["GET"]),
                    ("live", self._live, ["GET"]),
                    ("send", self._send, ["POST"]),
                    ("receive", self._receive, ["GET", "POST"]),
                )
            ],
            exception_handlers={HTTPException: self._unknown},
        )

    def close(self) -> None:
        self._short.shutdown()
        self._long.shutdown()
        self._proving.shutdown()
        self._repositories.close()

    # -- around a request ----------------------------------------------------------------

    def _answering(
        self, endpoint: Callable[[Request, Served, Caller], Awaitable[Response]] | None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Adds authentication, error answers and logs to an endpoint.

        If ``endpoint`` is None, the answer is the metrics.
        """

        async def answer(request: Request) -> Response:
            begun = time.monotonic()
            name = str(request.path_params.get("repository", ""))
            caller = None
            try:
                _check_form(request)
                caller = self._gate.caller(request.headers.get("Authorization"), name)
                if endpoint is None:
                    response = self._metrics(caller)
                else:
                    if set(caller.scopes) == {METRICS}:
                        scopes.require(caller.scopes, "read")
                    response = await endpoint(request, await self._repository(name), caller)
            except Denied as denied:
                response = _problem(denied.error, denied.status)
            except (PlacesTaken, InUse):
                response = Response(status_code=503, headers={"Retry-After": "1"})
            except ClientDisconnect:
                response = Response(status_code=400)
            except MvcError as error:
                response = _problem(error)
            except Exception as error:  # a bug; its text may contain data of the request
                log_event("mvc.server", _bug(error), level="error")
                response = _problem(MvcError("internal error"), 500)
            response.headers["Cache-Control"] = "no-store"  # a cache would answer without a token
            verb = printable(request.url.path.rpartition("/")[2])[:20]

            def note() -> None:
                outcome = ""
                if isinstance(response, _Frames):
                    outcome = response.outcome
                    self._counters.sent += response.sent
                self._note(
                    request, response.status_code, outcome, repository=printable(name)[:200],
                    token=caller.name if caller else "", verb=verb, begun=begun,
                )  # fmt: skip

            if isinstance(response, _Frames):
                response.ended.append(note)
            else:
                note()
            return response

        return answer

    async def _unknown(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        self._note(request, status, "", repository="-", token="", verb="-", begun=time.monotonic())
        return Response(status_code=status)

    def _note(
        self, request: Request, status: int, outcome: str,
        *, repository: str, token: str, verb: str, begun: float,
    ) -> None:  # fmt: skip
        """Counts and logs a request after the end of its answer."""
        seconds = time.monotonic() - begun
        # In the outcome of a bug, a line number follows the colon.
        kind = outcome.partition(":")[0].replace(" ", "-")
        self._counters.answered(verb if verb in _VERBS else "other", status, kind, seconds)
        client = printable(request.client.host) if request.client else ""
        method = printable(request.method)
        words = (client or "-", token or "-", method, repository or ".", verb, str(status), outcome)
        log_event(
            "mvc.server.access",
            " ".join((*filter(None, words), f"{seconds * 1000:.0f}ms")),
            level="debug" if verb == METRICS and status < 400 else "info",
            client=client, token=token, method=method, repository=repository, request=verb,
            status=status, outcome=outcome, ms=round(seconds * 1000, 1),
        )  # fmt: skip

    def _metrics(self, caller: Caller) -> Response:
        scopes.require(caller.scopes, METRICS)
        now = {
            "sending": self._sends.used, "reading": self._readers.used,
            "uploading": self._uploads.used, "waiting": self._waits.used,
            "watched targets": self._watched.used, "proving": self._proofs,
            "open repositories": self._repositories.opened,
        }  # fmt: skip
        return Response(self._counters.text(now), media_type=CONTENT)

    async def _repository(self, name: str) -> Served:
        try:
            return await self._run(self._repositories.find, name)
        except RemoteRefused as error:
            raise Denied(404, error) from error

    async def _run(self, function: Callable[..., _T], *arguments: object) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._short, partial(function, *arguments))

    # -- head ----------------------------------------------------------------------------

    async def _head(self, request: Request, served: Served, caller: Caller) -> Response:
        head = await self._run(served.transport.head, _place(request))
        data = wire.encode(replace(head, scopes=caller.scopes, time_ns=self._clock.now_ns()))
        return Response(data, media_type=wire.CONTENT)

    async def _live(self, request: Request, served: Served, caller: Caller) -> Response:
        """Answers with the mark of a target's live version.

        A mark is a text that changes when another version is live. If the request names the current
        mark, waits until the mark changes, or until the requested time has passed.
        """
        scopes.require(caller.scopes, "read")
        target, known = request.query_params.get("target", ""), request.query_params.get("mark")
        mark, _ = await self._run(served.transport.mark, target)
        if mark == known and (seconds := _seconds(request)):
            with ExitStack() as acquired:
                acquired.callback(self._waits.acquire(caller))
                mark = await self._next_mark(served, target, mark, seconds, caller=caller)
        if mark == known:
            return Response(status_code=304)
        return Response(mark, media_type=wire.CONTENT)

    async def _next_mark(
        self, served: Served, target: str, known: str, seconds: float, *, caller: Caller
    ) -> str:
        """Waits until the mark differs from ``known``, and returns the mark.

        Returns ``known`` if the mark does not change within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        key = served.name, target, known
        while (left := deadline - time.monotonic()) > 0 and not self._stopping():
            watch = self._watches.get(key)
            if watch is None:
                release = self._watched.acquire(caller)
                watch = self._watches[key] = asyncio.create_task(self._watch(served, key, release))
            done, _ = await asyncio.wait({watch}, timeout=left)
            if done and watch.result() != known:
                return watch.result()
        return known

    async def _watch(
        self, served: Served, key: tuple[str, str, str], release: Callable[[], None]
    ) -> str:
        """Reads the mark again and again until it changes, for all requests that wait for this.

        Returns the mark. Stops after the longest time that a request may wait.
        """
        _, target, mark = key
        deadline = time.monotonic() + wire.WAIT
        try:
            while mark == key[2] and time.monotonic() < deadline and not self._stopping():
                await asyncio.sleep(_POLL)
                with suppress(MvcError):
                    mark, _ = await self._run(served.transport.mark, target)
            return mark
        finally:
            del self._watches[key]
            release()

    # -- send ----------------------------------------------------------------------------

    async def _send(self, request: Request, served: Served, caller: Caller) -> Response:
        scopes.require(caller.scopes, "read")
        skip = _number(request.query_params.get("skip"))
        check = request.query_params.get("check", "")
        # The body is read first, so that a slow request does not use up the limit of answers.
        wanted = wire.decode(Wanted, await _body(request))
        framed = partial(_framed, skip=skip, check=check)
        if not wanted.live:
            release = self._sends.acquire(caller)
            return _Frames(self._rows(framed(_sent(served, wanted))), release)
        key = await self._run(served.cache_key, wanted)
        pending = self._answers.find(key)
        is_cached = pending is not None
        # Until ``add``, there is no ``await``, so that no other request computes this answer.
        if pending is None:
            release = self._sends.acquire(caller)
            pending = asyncio.get_running_loop().run_in_executor(
                self._long, partial(_answer, served, wanted, key)
            )
            pending.add_done_callback(lambda _: release())
            self._answers.add(key, pending)
        compute = partial(_sent, served, wanted)
        rows = self._shared(pending, compute, framed, caller=caller)
        return _Frames(rows, done=lambda: "kept" if is_cached and pending.result() else "done")

    async def _shared(
        self,
        pending: Pending,
        compute: Callable[[], Iterator[Bytes]],
        framed: Callable[..., Generator[bytes]],
        *,
        caller: Caller,
    ) -> AsyncGenerator[bytes, None]:
        """Yields the frames of a cached answer. If there is none, computes the answer."""
        async for row in _patiently(partial(asyncio.wait, {pending})):
            yield row
        answer = pending.result()
        places = self._sends if answer is None else self._readers
        with ExitStack() as acquired:
            async for row in _patiently(partial(places.wait, caller, acquired)):
                yield row
            if answer is None:
                sent = self._rows(framed(compute()))
            else:
                sent = self._rows(framed(answer.parts(), size=PART), self._short)
            async with aclosing(sent) as rows:
                async for row in rows:
                    yield row

    async def _rows(
        self, frames: Generator[bytes], executor: Executor | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Computes the frames in threads, and yields them."""
        try:
            while True:
                work = partial(next, frames, b"")
                async with aclosing(self._working(executor or self._long, work)) as parts:
                    async for part in parts:
                        if not part:
                            yield wire.frame(wire.END)
                            return
                        yield part
        finally:
            await self._run(frames.close)

    async def _working(
        self, executor: Executor, function: Callable[[], bytes]
    ) -> AsyncGenerator[bytes, None]:
        """Yields empty data frames while a function runs in a thread, and then its result.

        Even if the client disconnects, this generator ends only after the function has ended.
        """
        running = asyncio.get_running_loop().run_in_executor(executor, function)
        try:
            async for row in _patiently(partial(asyncio.wait, {running})):
                yield row
            yield await running
        finally:
            await asyncio.wait({running})

    # -- receive -------------------------------------------------------------------------

    async def _receive(self, request: Request, served: Served, caller: Caller) -> Response:
        may_push(caller.scopes)
        upload = served.uploads.find(request.query_params.get("upload", ""))
        if request.method == "GET":
            size = await self._run(upload.settled_size)
            return Response(str(size), media_type=wire.CONTENT)
        with ExitStack() as acquired, ExitStack() as locked:
            try:
                acquired.callback(self._uploads.acquire(caller))
                await self._run(served.uploads.clear)
                locked.callback((await self._run(upload.lock)).release)
            except (PlacesTaken, InUse):
                await _drained(request)
                raise
            response = await self._received(request, served, upload, caller)
            response.ended.append(locked.pop_all().close)
            return response

    async def _received(
        self, request: Request, served: Served, upload: Upload, caller: Caller
    ) -> _Frames:
        at, last = _number(request.query_params.get("at")), request.query_params.get("last") == "1"
        answer = await self._run(upload.answer)
        if answer is not None:  # the push is recorded, but the client did not get the answer
            await _drained(request)
            return _Frames(_row(_answered(answer)))
        await self._append(request, served, upload, at)
        if not last:
            return _Frames(_row(wire.frame(wire.END)))
        reports = await self._run(upload.reports)
        if reports is not None:
            return await self._reported(served, upload, caller, reports)
        if self._proofs >= PROOFS:
            raise PlacesTaken
        self._proofs += 1

        def receive(incoming: Slice) -> Received:
            try:
                received = served.receive(incoming, caller)
            except Exception as error:
                audit(served.name, caller, incoming, error)
                raise
            audit(served.name, caller, incoming, received)
            return received

        def publish() -> bytes:
            try:
                return _answered(upload.publish(receive))
            finally:
                upload.delete()

        def ended() -> None:
            self._proofs -= 1

        return _Frames(self._working(self._proving, publish), ended)

    async def _reported(
        self, served: Served, upload: Upload, caller: Caller, reports: Sequence[slices.NodeReport]
    ) -> _Frames:
        """Records the reports of a node together with the reports of other nodes.

        The upload is deleted before: a client that gets no answer sends its reports again.
        """
        request = Slice(slices.encode_entries([Sent(reports=tuple(reports))]), 0, ())
        try:
            scopes.check_news(caller.scopes, {report.target for report in reports})
        except MvcError as error:
            audit(served.name, caller, request, error)
            raise
        gathering = self._gatherings.setdefault(served.name, Gathering(self._gather))
        if gathering.is_full:
            raise PlacesTaken
        await self._run(upload.delete)

        now_ns = self._clock.now_ns()
        publishing = asyncio.ensure_future(
            gathering.add(reports, served.transport, self._run, now_ns=now_ns, author=caller.sender)
        )

        # This function is called even if the client has disconnected.
        def ended(done: asyncio.Future[Received]) -> None:
            if not done.cancelled():
                audit(served.name, caller, request, done.exception() or done.result())

        publishing.add_done_callback(ended)

        async def answer() -> AsyncGenerator[bytes, None]:
            async for row in _patiently(partial(asyncio.wait, {publishing})):
                yield row
            yield _answered(await publishing)

        return _Frames(answer())

    async def _append(self, request: Request, served: Served, upload: Upload, at: int) -> None:
        """Appends a request's body to an upload.

        If the connection breaks, the bytes that were received before stay in the upload.
        """
        size = _number(request.headers.get("Content-Length", str(wire.PART)))
        if size > wire.PART:
            await _drained(request)
            raise Denied(413, RemoteRefused(f"more than {wire.PART} bytes in one request"))
        try:
            await self._run(served.reserve, upload.id, size)
            with upload.appending(at) as write:
                buffer = bytearray()
                try:
                    async for chunk in _chunks(request, wire.PART):
                        buffer += chunk
                        self._counters.received += len(chunk)
                        if len(buffer) >= MIB:
                            await self._run(write, bytes(buffer))
                            buffer.clear()
                finally:
                    if buffer:
                        write(buffer)
            left = await self._run(upload.left)
            if at == 0:  # the rest of the slice must fit on the disk, too
                await self._run(served.reserve, upload.id, left)
        except (InUse, MvcError) as error:
            if not isinstance(error, InUse):  # a failed upload cannot be continued
                await self._run(upload.delete)
            # The body is read to its end. Otherwise, the client would not see the answer.
            await _drained(request)
            raise
        finally:
            served.release(upload.id)


class _Frames(Response):
    """An answer in frames.

    At the end of the answer, even after an error, each function in ``ended`` is called.

    ``outcome``: the result, for the log. ``done``: returns the outcome of a complete answer.
    """

    def __init__(
        self,
        rows: AsyncGenerator[bytes, None],
        *ended: Callable[[], Awaitable[None] | None],
        done: Callable[[], str] = lambda: "done",
    ) -> None:
        super().__init__(media_type=wire.CONTENT)
        del self.headers["Content-Length"]
        self.ended = list(ended)
        self.outcome, self.sent = "cut", 0
        self._rows, self._done = rows, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        # The body of the request was read, so the next message means that the client disconnected.
        disconnected = asyncio.ensure_future(receive())
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            with suppress(TimeoutError):  # the client reads nothing
                self.outcome = await self._sent(send, disconnected)
        finally:
            disconnected.cancel()
            await self._rows.aclose()
            for callback in self.ended:
                result = callback()
                if result is not None:
                    await result

    async def _sent(self, send: Send, disconnected: asyncio.Future[Message]) -> str:
        try:
            async for row in self._rows:
                if disconnected.done():
                    return "cut"
                await _send(send, row)
                self.sent += len(row)
            outcome = self._done()
        except MvcError as error:
            outcome = error.kind
            await _send(send, wire.frame(wire.ERROR, wire.encode_error(error)))
        except TimeoutError:
            raise
        except Exception as error:  # a bug; its text may contain data of the request
            outcome = _bug(error)
            await _send(send, wire.frame(wire.ERROR, wire.encode_error(MvcError("internal error"))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return outcome


async def _send(send: Send, row: bytes) -> None:
    async with asyncio.timeout(_STALLED):
        await send({"type": "http.response.body", "body": row, "more_body": True})


async def _patiently(wait: Callable[[], Awaitable[object]]) -> AsyncGenerator[bytes, None]:
    """Yields empty data frames until ``wait`` returns."""
    while True:
        try:
            async with asyncio.timeout(wire.ALIVE):
                await wait()
                return
        except TimeoutError:
            yield wire.frame(wire.DATA)


def _answered(received: Received) -> bytes:
    return wire.frame(wire.ANSWER, wire.encode(received))


async def _row(row: bytes) -> AsyncGenerator[bytes, None]:
    yield row


def _problem(error: MvcError, status: int | None = None) -> Response:
    if status is None:
        status = _STATUS.get(type(error), 409)
    return Response(wire.encode_error(error), status, media_type=wire.CONTENT)


_STATUS = {RemoteRefused: 403, StorageFull: 507}


def _check_form(request: Request) -> None:
    """Raises Denied for headers over the limit, and for a body with two lengths.

    The HTTP parser checks the limit only while the headers are incomplete. With two lengths, a
    proxy and the parser could disagree about the end of the body.
    """
    if "Content-Length" in request.headers and "Transfer-Encoding" in request.headers:
        raise Denied(400, RemoteRefused("a request must not have two body lengths"))
    size = sum(len(name) + len(value) for name, value in request.headers.raw)
    if size + len(request.scope["query_string"]) + len(request.url.path) > LONGEST_HEAD:
        raise Denied(431, RemoteRefused("the headers of a request are too long"))


def _bug(error: Exception) -> str:
    from traceback import extract_tb  # only needed for bugs

    *_, last = extract_tb(error.__traceback__)
    return f"internal error: {type(error).__name__} in {last.name}, {last.filename}:{last.lineno}"


def _number(text: str | None) -> int:
    """Parses a number from a query or header. Raises RemoteRefused for anything else."""
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise RemoteRefused("a number is missing in the request")
    return int(text)


def _place(request: Request) -> Place | None:
    """The position in a journal that a request names, if any. Raises RemoteRefused."""
    chain = request.query_params.get("chain", "")
    if not re.fullmatch("([0-9a-f]{2}){1,32}", chain):
        return None
    return Place(_number(request.query_params.get("after")), bytes.fromhex(chain))


def _seconds(request: Request) -> float:
    text = request.query_params.get("wait")
    return min(float(text), wire.WAIT) if text and text.isascii() and text.isdecimal() else 0.0


async def _chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yields the parts of the body. Raises Denied if the body is too long or too slow."""
    stream, now = aiter(request.stream()), time.monotonic
    stride, patience = _STRIDE, SILENCE
    while True:
        begun = now()
        try:
            async with asyncio.timeout(patience):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise Denied(408, RemoteUnreachable("the body of a request is too slow")) from None
        if chunk is None:
            return
        patience -= now() - begun
        limit -= len(chunk)
        stride -= len(chunk)
        if stride <= 0:
            stride, patience = _STRIDE, SILENCE
        if limit < 0:
            raise Denied(413, RemoteRefused("the body of a request is too long"))
        yield chunk


async def _body(request: Request) -> bytes:
    return b"".join([chunk async for chunk in _chunks(request, wire.MAX_MESSAGE)])


async def _drained(request: Request) -> None:
    with suppress(Denied, RuntimeError):  # RuntimeError: the body was read before
        async for _ in _chunks(request, wire.PART):
            pass


def _answer(served: Served, wanted: Wanted, key: Hashable) -> Answer | None:
    answer = served.transport.send(wanted)
    return store_answer(served.folder, answer, lambda: served.cache_key(wanted) == key)


def _sent(served: Served, wanted: Wanted) -> Iterator[Bytes]:
    """Yields the bytes of the slices, with an empty part after each slice."""
    for slice_ in served.transport.send(wanted):
        yield from slices.write(slice_)
        yield b""


def _framed(parts: Iterator[Bytes], skip: int, check: str, size: int = MIB) -> Generator[bytes]:
    """Yields frames of about ``size`` bytes, without the first ``skip`` bytes of ``parts``.

    The client has received the skipped bytes before. ``check``: the BLAKE3 hash of the beginning
    of these bytes; another hash raises RemoteUnreachable. An empty part ends a frame.
    """
    hasher, checked, left = blake3(), wire.CHECKED, skip
    row = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        if left:
            passed, view = view[:left], view[left:]
            hasher.update(passed[:checked])
            checked = max(0, checked - len(passed))
            left -= len(passed)
            if not (left and checked) and hasher.hexdigest() != check:
                raise _changed()
        for at in range(0, len(view), size):
            row += view[at : at + size]
            if len(row) >= size:
                yield wire.frame(wire.DATA, row)
                row.clear()
        if row and not len(part):
            yield wire.frame(wire.DATA, row)
            row.clear()
    if row:
        yield wire.frame(wire.DATA, row)
    if left:
        raise _changed()


def _changed() -> MvcError:
    return RemoteUnreachable(
        "the repository changed while the connection was broken",
        hint="repeat the command: complete slices are not sent again",
    )
