"""The runners of all ranks: rank 0 in this process, the others in processes of their own."""

from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from qvllm_engine.distributed.groups import TIMEOUT, Group
from qvllm_engine.distributed.rank_process import RankProcess
from qvllm_engine.distributed.worker import RunnerSettings, WorkerFailure
from qvllm_engine.engine.batch import StepInput
from qvllm_engine.engine.model_runner import SampledTokens
from qvllm_engine.errors import EngineError, QvllmError

JOIN_SECONDS = 30.0


class Runners:
    """Every rank's runner, driven as one.

    Args:
        settings: what each rank builds its runner from.
        size: the number of ranks.
    """

    def __init__(self, settings: RunnerSettings, size: int) -> None:
        self._others: list[RankProcess] = []
        self._gone: str | None = None
        try:
            self.local = settings.build(self._start_others(settings, size))
            self._receive()
        except BaseException as error:
            ours = isinstance(error, Exception) and not isinstance(error, QvllmError)
            explained = self._explain(error) if ours else None
            self._stop_others(0.0)
            if explained is None:
                raise
            raise explained from error

    def max_blocks(self) -> int:
        """The number of blocks that every rank can hold."""
        self._send("max_blocks")
        return min([self.local.max_blocks(), *self._receive()])

    def allocate(self, num_blocks: int) -> None:
        """Make the caches of every rank, ``num_blocks`` blocks each."""
        self._send("allocate", num_blocks)
        self.local.allocate(num_blocks)
        self._receive()

    def launch(self, step: StepInput) -> SampledTokens:
        """Start a step on every rank.

        Raises:
            EngineError: another rank failed, or is gone; its traceback, or the end of its stderr, is in the text.
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
        if self._others:
            self.local.group.leave()
            try:
                self._meet_again()
            except (EngineError, OSError, RuntimeError) as error:
                self._gone = f"the ranks cannot meet again after a failed step, make a new LLM: {error}"
        self.local.reset()

    def _meet_again(self) -> None:
        for process in self._others:
            if not process.is_alive():
                raise EngineError(process.ending())
            process.connection.send(("reset",))
        self.local.group.meet_again()
        for process in self._others:
            while process.connection.recv() != "reset":  # what the failed step left
                pass

    def close(self) -> None:
        """Stop the other ranks and free this one. Calling it again does nothing."""
        self._stop_others(JOIN_SECONDS)
        if hasattr(self, "local"):
            self.local.close()
            del self.local

    def _start_others(self, settings: RunnerSettings, size: int) -> Group:
        if size == 1:
            return Group()
        # Port 0 lets the system choose a free one, and holds it.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        for rank in range(1, size):
            process = RankProcess(rank)
            self._others.append(process)
            process.connection.send((settings, rank, size, store.port))
        self._receive()  # each is up: a process that can't start would leave the others waiting
        return Group.meet(store, 0, size, settings.device)

    def _send(self, command: str, *args: Any) -> None:
        for process in self._others:
            process.connection.send((command, *args))

    def _receive(self) -> list[Any]:
        """One answer of each other rank; raises as ``RankProcess.receive``."""
        return [process.receive() for process in self._others]

    def _explain(self, error: BaseException) -> EngineError | None:
        """``error`` with the failure of another rank, which may be its cause; None where no other rank failed."""
        for process in self._others:
            try:
                failure = process.connection.recv() if process.connection.poll(1.0) else None
            except (EOFError, OSError):
                return EngineError(f"{type(error).__name__}: {error}\n{process.ending()}")
            if isinstance(failure, WorkerFailure):
                return EngineError(f"{type(error).__name__}: {error}\n{process.name} failed:\n{failure.text}")
        return None

    def _stop_others(self, seconds: float) -> None:
        for process in self._others:
            process.stop(seconds)
        self._others = []
