"""The state of ``qvllm chat``: what was said."""

from dataclasses import dataclass, field


@dataclass
class Conversation:
    """Messages in turn, behind a system message where there is one."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        start = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*start, *self.turns]

    def asked(self, text: str) -> list[dict[str, str]]:
        """The messages with one more of the user, which is kept only once it is answered."""
        return [*self.messages, {"role": "user", "content": text}]

    def answered(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget the turns; the system message stays."""
        self.turns.clear()
