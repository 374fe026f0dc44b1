"""Parts of a page of results: tables as Markdown, p-values, and the text below a mark."""


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def p_value(p, is_bound, digits=3):
    """Returns a p-value as text. The smallest one that the resamples can show is only an upper bound."""
    return f"{'≤ ' if is_bound else ''}{p:.{digits}g}"


def replace_below(mark, page, text):
    """Replaces the text below the mark in a page, which may be new."""
    above = page.read_text(encoding="utf-8").partition(mark)[0] if page.is_file() else ""
    page.write_text(f"{above}{mark}\n{text}", encoding="utf-8")
