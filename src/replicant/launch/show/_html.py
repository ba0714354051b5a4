"""What the pages of the launcher have in common: one file each, without scripts, for light and dark screens."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --paper: #fff; --line: #c9ccd1; --shade: #f1f2f4; --mark: #1d2126;
  --counted: #2a9d5c; --starting: #e9b44c; --repeated: #d1495b; --down: #c9ccd1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #16181c; --line: #43474e; --shade: #24272d; --mark: #fff;
  --counted: #35a868; --starting: #c7922f; --repeated: #d95a6b; --down: #43474e; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1040px; padding: 0 1rem; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
code { background: var(--shade); padding: .1rem .3rem; display: inline-block; max-height: 7.5rem; overflow: auto; }
svg { width: 100%; height: auto; } text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .2rem .9rem .2rem 0; text-align: right;
  vertical-align: top; }
th { border-bottom: 1px solid var(--line); font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td:not(.text) { white-space: nowrap; } .text { text-align: left; }
.swatch { display: inline-block; width: .9rem; height: .9rem; margin-right: .4rem; vertical-align: -.1rem; }
"""


def document(title: str, body: Iterable[str], head: str = "") -> str:
    """Return a page. The body is HTML, and the title is text."""
    meta = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    return (
        f"<!doctype html><html lang='en'><head>{meta}{head}<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """Return a table.

    Args:
        head: The names of the columns, as text.
        rows: The cells, as HTML.
        texts: The columns with texts, which may wrap; the others have numbers.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag} class='text'>{x}</{tag}>" if i in texts else f"<{tag}>{x}</{tag}>" for i, x in enumerate(row))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class='wide'><table><tr>{cells('th', [escape(each) for each in head])}</tr>{lines}</table></div>"
