#!/usr/bin/env python3
"""Writes the hashes of the page's style and script into its Content-Security-Policy.

--check only compares and fails when they are stale."""
import base64
import hashlib
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).parents[2] / "src/serve/web/page.html"


def sealed(html: str) -> str:
    for tag in ("style", "script"):
        body = re.search(f"<{tag}>(.*?)</{tag}>", html, re.S).group(1)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        html = re.sub(f"{tag}-src '[^']*'", f"{tag}-src 'sha256-{digest}'", html, count=1)
    return html


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if sealed(text) == text else "page.html is not sealed: run tests/web/seal_page.py")
    PAGE.write_text(sealed(text))
