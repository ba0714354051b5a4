"""Texts that others have written, such as names of files, as they are shown on a terminal."""


def escaped(text: object) -> str:
    r"""The text with everything escaped that a terminal would obey or could not show. Ends of lines and tabs stay.

    >>> print(escaped("a\x1b[2Jb.py"))
    a\x1b[2Jb.py
    """
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in str(text))
