"""Input as text. It is UTF-8, whatever the locale says."""

import codecs

import typer


def decode(data: bytes, name: str) -> str:
    """Text of bytes, without the byte order mark that some editors put in front; each line ends in a line feed.

    Raises:
        typer.BadParameter: they are not UTF-8; the text calls them ``name``.
    """
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def text_argument(text: str) -> str:
    """An argument, if it is text. Python turns other bytes of arguments into halves of surrogate pairs.

    Raises:
        typer.BadParameter: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise typer.BadParameter(f"the text is not UTF-8: there is the byte {byte:#04x} at character {error.start}") from error
    return text
