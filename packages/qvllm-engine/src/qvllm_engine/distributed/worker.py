"""The runners of all ranks: rank 0 in this process, the others in processes of their own."""

import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.multiprocessing as mp
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from qvllm_engine.config import EngineConfig
from qvllm_engine.distributed.groups import TIMEOUT, Group
from qvllm_engine.engine.batch import StepInput
from qvllm_engine.engine.model_files import read_model_config
from qvllm_engine.engine.model_runner import ModelRunner, SampledTokens
from qvllm_engine.errors import EngineError, QvllmError

JOIN_SECONDS = 30.0


@dataclass(frozen=True)
class RunnerSettings:
    """What every rank builds its runner from; small enough to send to a new process."""

    config: EngineConfig
    folder: Path
    device: torch.device
    max_model_len: int

    def build(self, group: Group) -> ModelRunner:
        spec, model_config = read_model_config(self.folder)
        device = self.device
        if device.type == "cuda" and group.size > 1:
            device = torch.device("cuda", group.rank)
        return ModelRunner(self.config, self.folder, spec, model_config, group, device, self.max_model_len)


class Runners:
    """Every rank's runner, driven as one.

    Args:
        settings: what each rank builds its runner from.
        size: the number of ranks.
    """

    def __init__(self, settings: RunnerSettings, size: int) -> None:
        self._workers: list[tuple[Any, Connection]] = []
        self._gone: str | None = None
        try:
            self.local = settings.build(self._start_workers(settings, size))
            self._receive()
        except BaseException as error:
            explained = None if isinstance(error, QvllmError) else self._explain(error)
            self._stop_workers(kill=True)
            if explained is None:
                raise
            raise explained from error

    def max_blocks(self) -> int:
        """The number of blocks that every rank can hold."""
        self._send("max_blocks")
        return min([self.local.max_blocks(), *self._receive()])

    def allocate(self, num_blocks: int) -> None:
        self._send("allocate", num_blocks)
        self.local.allocate(num_blocks)
        self._receive()

    def launch(self, step: StepInput) -> SampledTokens:
        """Start a step on every rank.

        Raises:
            EngineError: another rank failed, or is gone; its traceback is in the text.
        """
        if self._gone is not None:
            raise EngineError(self._gone)
        try:
            self._send("launch", step)
            return self.local.launch(step)
        except Exception as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error

    def reset(self) -> None:
        """Forget a failed step, wherever the ranks are in it, and meet again. A rank that is gone fails the next step."""
        if self._workers:
            self.local.group.leave()
            try:
                self._meet_again()
            except (EngineError, OSError, RuntimeError) as error:
                self._gone = f"the ranks cannot meet again after a failed step, make a new LLM: {error}"
        self.local.reset()

    def _meet_again(self) -> None:
        for process, connection in self._workers:
            if not process.is_alive():
                raise EngineError(f"{process.name} ended (exit code {process.exitcode})")
            connection.send(("reset",))
        self.local.group.meet_again()
        for _, connection in self._workers:
            while connection.recv() != "reset":  # what the failed step left
                pass

    def close(self) -> None:
        """Stop the other ranks and free this one. Calling it again does nothing."""
        self._stop_workers()
        if hasattr(self, "local"):
            self.local.close()
            del self.local

    def _start_workers(self, settings: RunnerSettings, size: int) -> Group:
        if size == 1:
            return Group()
        # Port 0 lets the system choose a free one, and holds it.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        context = mp.get_context("spawn")
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            args = (settings, rank, size, store.port, theirs)
            process = context.Process(target=run_worker, args=args, daemon=True, name=f"qvllm rank {rank}")
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        self._receive()  # each is up: a process that can't start would leave the others waiting
        return Group.meet(store, 0, size, settings.device)

    def _send(self, command: str, *args: Any) -> None:
        for _, connection in self._workers:
            connection.send((command, *args))

    def _receive(self) -> list[Any]:
        """One answer of each worker.

        Raises:
            EngineError: a worker failed; its traceback is in the text.
        """
        answers = []
        for process, connection in self._workers:
            try:
                answer = connection.recv()
            except EOFError as error:
                process.join(1.0)
                raise EngineError(
                    f"{process.name} ended without an answer (exit code {process.exitcode}). A script that uses tensor"
                    f" parallelism must be a file, which every rank imports, and create its LLM under"
                    f" `if __name__ == '__main__':`"
                ) from error
            if isinstance(answer, WorkerFailure):
                answer.raise_again(process.name)
            answers.append(answer)
        return answers

    def _explain(self, error: BaseException) -> EngineError | None:
        """``error`` with the failure of another rank, which may be its cause; None where no other rank failed."""
        for process, connection in self._workers:
            try:
                failure = connection.recv() if connection.poll(1.0) else None
            except (EOFError, OSError):
                return EngineError(f"{process.name} ended (exit code {process.exitcode}); {type(error).__name__}: {error}")
            if isinstance(failure, WorkerFailure):
                return EngineError(f"{type(error).__name__}: {error}\n{process.name} failed:\n{failure.text}")
        return None

    def _stop_workers(self, kill: bool = False) -> None:
        for process, connection in self._workers:
            with suppress(OSError):  # it is gone already
                connection.send(("close",))
            process.join(0.0 if kill else JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()
        self._workers = []


@dataclass(frozen=True)
class WorkerFailure:
    """What a worker sends instead of an answer."""

    text: str
    error: QvllmError | None

    @classmethod
    def of(cls, error: BaseException) -> "WorkerFailure":
        return cls("".join(traceback.format_exception(error)), error if isinstance(error, QvllmError) else None)

    def raise_again(self, name: str) -> NoReturn:
        if self.error is not None:
            raise self.error
        raise EngineError(f"{name} failed:\n{self.text}")


def run_worker(settings: RunnerSettings, rank: int, size: int, port: int, connection: Connection) -> None:
    """Entry point of the process of one rank: build the runner, then do as rank 0 says until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every rank; rank 0 decides what it means
    try:
        torch.set_num_threads(max(torch.get_num_threads() // size, 1))
        connection.send("started")
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        runner = settings.build(Group.meet(store, rank, size, settings.device))
        connection.send("loaded")
    except BaseException as error:
        connection.send(WorkerFailure.of(error))
        return
    with suppress(EOFError):  # rank 0 is gone
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
