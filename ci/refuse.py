"""How a session fails with a list."""

import nox


def refuse(session: nox.Session, what: str, *found: str) -> None:
    """Fail with the list of what was found, if anything was."""
    if found:
        session.error("\n    ".join([what, *found]))
