"""The process of every rank but 0: it builds its runner, then does as rank 0 says."""

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import NoReturn

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from qvllm_engine.config import EngineConfig
from qvllm_engine.distributed.groups import TIMEOUT, Group
from qvllm_engine.engine.model_files import read_model_config
from qvllm_engine.engine.model_runner import ModelRunner
from qvllm_engine.errors import EngineError, QvllmError

PARENT_SECONDS = 0.5  # between looks for the parent


@dataclass(frozen=True)
class RunnerSettings:
    """What every rank builds its runner from; small enough to send to a new process."""

    config: EngineConfig
    folder: Path
    device: torch.device
    max_model_len: int

    def build(self, group: Group) -> ModelRunner:
        """The runner of the rank that ``group`` is seen from, its weights loaded."""
        spec, model_config = read_model_config(self.folder)
        device = self.device
        if device.type == "cuda" and group.size > 1:
            device = torch.device("cuda", group.rank)
        return ModelRunner(self.config, self.folder, spec, model_config, group, device, self.max_model_len)


@dataclass(frozen=True)
class WorkerFailure:
    """What a worker sends instead of an answer."""

    text: str
    error: QvllmError | None

    @classmethod
    def of(cls, error: BaseException) -> "WorkerFailure":
        """What to send of an error: its traceback, and itself where the caller should see it."""
        return cls("".join(traceback.format_exception(error)), error if isinstance(error, QvllmError) else None)

    def raise_again(self, name: str) -> NoReturn:
        """Raise in the caller's process what failed in the rank called ``name``."""
        if self.error is not None:
            raise self.error
        raise EngineError(f"{name} failed:\n{self.text}")


def main() -> None:
    """Entry point, with the connection's file descriptor and the parent's process id as the first arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every rank; rank 0 decides what it means
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    Thread(target=end_with, args=(parent,), daemon=True).start()
    with suppress(EOFError, ConnectionError):  # rank 0 is gone
        run(Connection(descriptor))


def end_with(parent: int) -> None:
    """End this process when its parent has ended, even killed, and wherever this process waits.

    The connection alone would not tell: a process that the parent forked may hold its other end.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def run(connection: Connection) -> None:
    """Build the runner that rank 0 describes, then serve."""
    settings, rank, size, port = connection.recv()
    try:
        torch.set_num_threads(max(torch.get_num_threads() // size, 1))
        connection.send("started")
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        runner = settings.build(Group.meet(store, rank, size, settings.device))
        connection.send("loaded")
    except BaseException as error:
        connection.send(WorkerFailure.of(error))
        return
    serve(runner, connection)


def serve(runner: ModelRunner, connection: Connection) -> None:
    """Do what rank 0 says. After a failure wait for its reset, since steps that it has sent already can't be run."""
    failed = False
    while True:
        command, *args = connection.recv()
        if command == "close":
            runner.close()
            return
        if command == "reset":
            runner.group.leave()
            runner.group.meet_again()
            runner.reset()
            connection.send("reset")
            failed = False
        elif not failed:
            try:
                answer = getattr(runner, command)(*args)
                if command != "launch":  # its tokens are rank 0's
                    connection.send(answer)
            except BaseException as error:
                runner.group.leave()
                connection.send(WorkerFailure.of(error))
                failed = True
