"""The process of one rank, seen from rank 0: started from this package, listened to, and never left behind."""

import os
import signal
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from threading import Thread
from typing import IO, Any

from qvllm_engine.distributed.worker import WorkerFailure
from qvllm_engine.errors import EngineError

# The caller's script is no part of this, so it may be a file without a main guard, a notebook or standard input. The paths come
# first, since "-c" and "-m" put the working folder before the installed packages.
START = "import sys; sys.path[:] = sys.argv[3:]; from qvllm_engine.distributed.worker import main; main()"
STDERR_LINES = 20  # shown when a rank ends
ENDING_SECONDS = 1.0  # a process that closed its connection is about to end


class RankProcess:
    """A process that runs ``worker.main`` with this process's ``sys.path`` and environment.

    What it writes to stderr appears on ours. It is killed when this object is dropped and when the interpreter exits; if this
    process is killed it ends by itself.

    Attributes:
        name: for messages.
        connection: messages to and from it.
    """

    def __init__(self, rank: int) -> None:
        self.name = f"qvllm rank {rank}"
        self.connection, theirs = Pipe()
        paths = [path for path in sys.path if isinstance(path, str)]
        arguments = [sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid()), *paths]
        with theirs, sigint_blocked():
            self._process = Popen(arguments, stdin=DEVNULL, stderr=PIPE, pass_fds=[theirs.fileno()])
        assert self._process.stderr is not None  # for mypy: it is a pipe
        self._stderr: deque[bytes] = deque(maxlen=STDERR_LINES)
        self._reader = Thread(target=pass_on, args=(self._process.stderr, self._stderr), daemon=True)
        self._reader.start()
        self._end = weakref.finalize(self, kill, self._process, self.connection, self._reader)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def receive(self) -> Any:
        """Its next message.

        Raises:
            EngineError: it has ended.
            QvllmError: it sent a failure, which is raised here.
        """
        try:
            message = self.connection.recv()
        except (EOFError, OSError) as error:
            raise EngineError(self.ending()) from error
        if isinstance(message, WorkerFailure):
            message.raise_again(self.name)
        return message

    def ending(self) -> str:
        """How it ended, with the last lines of its stderr."""
        with suppress(TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        self._reader.join(ENDING_SECONDS)
        code = self._process.poll()
        if code is None:
            how = "closed its connection"
        elif code == -signal.SIGKILL:
            how = f"was killed by signal {-code}, as the system does when memory runs out"
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lines = b"".join(self._stderr).decode(errors="replace").rstrip()
        return f"{self.name} {how}" + (f"; the end of its stderr:\n{lines}" if lines else "")

    def stop(self, seconds: float) -> None:
        """Let it end within ``seconds``, then kill it."""
        with suppress(OSError):  # it is gone already
            self.connection.send(("close",))
        with suppress(TimeoutExpired):
            self._process.wait(seconds)
        self._end()


def kill(process: Popen[bytes], connection: Connection, reader: Thread) -> None:
    """End a rank at once and take in what is left of it."""
    process.kill()
    process.wait()
    connection.close()
    reader.join(ENDING_SECONDS)  # a process that the rank started may hold its stderr for longer


def pass_on(stream: IO[bytes], last: deque[bytes]) -> None:
    """Copy lines to our stderr until the stream ends, and keep the last ones."""
    with stream:
        for line in stream:
            last.append(line)
            with suppress(OSError):
                os.write(2, line)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """A process started here inherits the block, so that Ctrl-C can't end it before it ignores SIGINT itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
