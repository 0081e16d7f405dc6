"""Checks a page: every element is closed, every link leads somewhere in it, nothing is fetched."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img"}


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.sources, self.links, self.names = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name == "src"]
        self.links += [value for name, value in attrs if name == "href"]
        self.names += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass  # of an SVG

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(page):
    """Reads a page; its links, each of which leads to a place in it."""
    reader = _Reader()
    reader.feed(page)
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert not reader.open
    assert not reader.sources
    assert not re.search(r"https?:|@import|url\(", re.sub(r'xmlns="[^"]*"', "", page))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.names)
    assert len(reader.names) == len(set(reader.names))
    return reader.links
