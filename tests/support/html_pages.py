"""What a page of a report would load, its ids, links and text."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects what a page would load, its ids, its links, and its text."""

    VOID = {"meta", "img", "br", "hr"}

    def __init__(self, text):
        super().__init__()
        self.loads, self.ids, self.links, self.images, self.tags = [], [], [], [], []
        self.text, self._open = "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.loads += [attrs[name] for name in ("src", "srcset", "data") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if tag == "a" else []
        self.images += [attrs] if tag == "img" else []
        assert not any(name.startswith("on") for name in attrs), attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check(text) -> Reader:
    """Assert what must hold for every page that is written, and return its ``Reader``."""
    page = Reader(text)
    embedded = ("data:image/png;base64,", "data:image/svg+xml;base64,")
    assert all(uri.startswith(embedded) for uri in page.loads)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert all(image.get("alt") for image in page.images)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    assert "default-src 'none'" in text and "@import" not in text and "url(" not in text
    return page
