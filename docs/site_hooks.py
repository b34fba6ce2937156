"""Hooks of MkDocs (mkdocs.yml): what GitHub shows without them and the site doesn't.

The documents at the top of the repository become pages. Links between documents lead to
these pages. Sources have no page, and the site doesn't know where the repository is
published, so a link to a source becomes its path.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
TOP = {path.name: path.name for path in ROOT.glob("*.md")} | {"README.md": "index.md"}
FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents at the top of the repository."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Returns the text of a page with the links and the lists of the site."""
    names = {page: name for name, page in TOP.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = FENCE.split(markdown)  # Blocks of code are at the odd places.
    for place in range(0, len(parts), 2):
        text = LINK.sub(lambda link: _link(link, source, files), parts[place])
        parts[place] = _indent_lists(text)
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks flags, which aren't to be broken at their hyphens (assets/site.css)."""
    html = re.sub(r"<code>(-[^<\s]{,40})</code>", r'<code class="flag">\1</code>', html)
    # Also those in commands and sentences, but not in tags.
    flag = r"(?<![\w-])(--[a-z]\w*)(?=[^<>]*<)"
    return re.sub(flag, r'<span class="flag">\1</span>', html)


def _link(link: re.Match[str], source: str, files: Files) -> str:
    """Returns a link of a document as the site has it."""
    text, target = link.groups()
    name, _, anchor = target.partition("#")
    if not name or "://" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    page = TOP.get(path, path.removeprefix("docs/"))
    file = files.get_file_from_path(page)
    if file is None or file.inclusion.is_excluded():
        return f"`{path}`" if text.strip("`") in (name, path) else f"{text} (`{path}`)"
    if text.endswith(".md"):
        text = _title(ROOT / path, anchor)
    folder = posixpath.dirname(source).removeprefix("docs").strip("/")
    target = posixpath.relpath(page, folder or ".")
    return f"[{text}]({target}#{anchor})" if anchor else f"[{text}]({target})"


def _title(document: Path, anchor: str) -> str:
    """Returns the heading of a document, or the one that an anchor names."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    slug = slugify(case="lower")
    return next(
        (title for title in headings if slug(title, "-") == anchor), headings[0]
    )


def _indent_lists(markdown: str) -> str:
    """Indents what belongs to an item by 2 more: Python-Markdown asks for 4, not 2."""
    lines, is_in_list = [], False
    for line in markdown.split("\n"):
        if re.match(r"([-*]|\d+\.) ", line):
            is_in_list = True
        elif line and not line.startswith(" "):
            is_in_list = False
        lines.append(f"  {line}" if is_in_list and line.startswith("  ") else line)
    return "\n".join(lines)
