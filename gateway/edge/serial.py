"""The requests of one connection, one after the other, in the connection's own task.

aiohttp answers each request in a task of its own, which the connection's awaits: ten thousand that wait
would be as many tasks, contexts and coroutines more, and each that does not wait takes a turn of the loop
more. Nothing here hangs on a context of its own, and no log of aiohttp's is written. The steps are those
of `RequestHandler.start` (aiohttp 3.14); parser, writer, request and answer stay aiohttp's own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp.http import StreamWriter
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import ERROR, PayloadAccessError, RequestHandler, _ErrInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import StreamReader, web

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

ANSWERED = PayloadAccessError()
"""What who still reads a body after its answer is told."""


class Serial(RequestHandler):
    """See the module."""

    __slots__ = ()

    async def start(self) -> None:
        """Answer what comes until the connection ends."""
        while not self._force_close:
            if not self._messages:
                await self._come()
            handler, request = self._taken(*self._messages.popleft())
            answer: web.StreamResponse
            try:
                try:
                    answer = await handler(request)
                except HTTPException as told:
                    answer = told
                except Exception as error:  # noqa: BLE001  # whatever it is, its client is answered
                    answer = self.handle_error(request, 500, error)
                if not await self._delivered(request, answer):
                    break
                del answer
            except asyncio.CancelledError:
                # Not raised: the task would keep it, and with it the frames that it passed, which know the task.
                self.force_close()
            except ConnectionError:  # a part of an answer was out, which cannot be made another
                break
            except Exception as error:  # noqa: BLE001
                self.log_exception("Unhandled exception", exc_info=error)
                self.force_close()
            finally:
                self._answered()
                del handler, request  # an idle connection keeps nothing of it
        self._over()

    def _over(self) -> None:
        """Nothing more is answered."""
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    def log_access(self, *_: object) -> None:
        """None is kept: each request has a record."""

    async def _come(self) -> None:
        """Wait for the next request."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _taken(self, message: Any, body: StreamReader) -> tuple[Handler, web.BaseRequest]:  # noqa: ANN401
        """A request, and what answers it."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        manager, handler, make = self._manager, self._request_handler, self._request_factory
        if manager is None or handler is None or make is None:  # the connection is lost
            raise asyncio.CancelledError
        manager.requests_count += 1
        self._request_in_progress = True
        if isinstance(message, _ErrInfo):
            handler, message = self._make_error_handler(message), ERROR
        task = self._task_handler or asyncio.current_task()
        writer = StreamWriter(self, self._loop)
        request = make(message, body, self, writer, task)  # type: ignore[arg-type]
        self._current_request = request
        return handler, request

    def _answered(self) -> None:
        """Whoever shuts down may wait for that."""
        self._request_in_progress, self._current_request = False, None
        if (waiter := self._handler_waiter) is not None and not waiter.done():
            waiter.set_result(None)

    async def _delivered(self, request: web.BaseRequest, answer: web.StreamResponse) -> bool:
        """Write an answer; whether another request may come."""
        self._current_request = None
        answer, is_gone = await self.finish_response(request, answer, None)
        self._answered()
        if is_gone:
            return False
        self._keepalive = bool(answer.keep_alive)
        if not (body := request.content).is_eof():
            await self._rest_of(body)
        body.set_exception(ANSWERED)
        if not self._keepalive or self._close or self._force_close:
            return False
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            at, look = self._next_keepalive_close_time, self._process_keepalive
            self._keepalive_handle = self._loop.call_at(at, look)
        return True

    async def _rest_of(self, body: StreamReader) -> None:
        """Read and drop what nobody read of a body, for a while: closed with bytes unread, a connection is
        reset, which overtakes the answer."""
        if not self._force_close and self._lingering_time:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lingering_time):
                    while not body.is_eof():
                        await body.readany()
        if not body.is_eof() and not self._force_close:
            self.close()
