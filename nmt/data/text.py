"""Text in, marked tokens out, and back: normalise, tokenise with spaCy, detokenise (the only user of spaCy).

A marked token is what vocabularies see: `MARK` if a space stood before the token or it opens the line, then
the escaped text. `MARK` therefore always means one space, and joining marked tokens restores the line:

    "Ein Hund (groß)."  ->  ["▁Ein", "▁Hund", "▁(", "groß", ")", "."]  ->  "Ein Hund (groß)."
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from nmt.data.vocabulary import SPECIALS
from nmt.errors import DataError

log = logging.getLogger("nmt")

MARK = "▁"

# Everything that draws nothing: control characters but for white space, Unicode's default ignorables (soft
# hyphen, zero-width characters, bidirectional controls, variation selectors, tags, fillers) and format
# controls. The format characters left out here, such as U+0600, are visible signs.
_INVISIBLE = re.compile(
    "[\\x00-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes of a command line that were no UTF-8

# U+2585 is escaped because sentencepiece keeps it for itself and would lose it.
_ESCAPES = {"\\": "\\\\", MARK: "\\_", "▅": "\\=", " ": MARK}
_TO_ESCAPE = re.compile(r"[\\▁▅ ]")
_TRANSLATION = str.maketrans(_ESCAPES)
_ESCAPED = re.compile(rf"\\([^{MARK}])|[\\{MARK}]")
_UNESCAPES = {"_": MARK, "=": "▅"}

# spaCy peels brackets and emoji off a word one by one and looks at the whole rest each time: quadratic in
# the length of a run without white space (3,000 emoji take a second). No word of any language is this long.
_MAX_RUN_CHARS = 256
_LONG_RUN = re.compile(rf"\S{{{_MAX_RUN_CHARS}}}(?=\S)")

# spaCy remembers every distinct word for as long as its vocabulary lives. Its `memory_zone` frees them but
# switches the tokenizer's cache off (measured: 3.5 times slower), so past this many strings (some 100 MB) we
# start afresh.
_MAX_STRINGS = 300_000
_CACHED_WORDS = 1 << 15


def normalise(line: str, lowercase: bool = False) -> str:
    """The one form of a line that everything else sees; normalising twice changes nothing.

    NFC; every kind of white space is one space, none at the ends; no soft hyphens, zero-width or control
    characters. A lone surrogate becomes U+FFFD.
    """
    text = _SURROGATE.sub("\ufffd", line)
    text = " ".join(_INVISIBLE.sub("", text).split())
    # NFC comes last: what was dropped may have stood between a letter and its accent.
    text = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", text.lower()) if lowercase else text


def escape(text: str) -> str:
    """A token's text such that `MARK` in it means a space and it never equals a special of the vocabulary."""
    if text in SPECIALS:
        return "\\" + text
    return text.translate(_TRANSLATION) if _TO_ESCAPE.search(text) else text


def unescape(text: str) -> str:
    """The inverse of `escape`, also for joined tokens; a backslash that escapes nothing is dropped."""
    if "\\" not in text:
        return text.replace(MARK, " ")
    return _ESCAPED.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    escaped: str | None = match[1]
    if escaped is not None:
        return _UNESCAPES.get(escaped, escaped)
    return " " if match[0] == MARK else ""


def detokenize(tokens: Iterable[str]) -> str:
    """The normalised line that marked tokens, or pieces of them, spell."""
    return normalise(unescape("".join(tokens)))


class Tokenizer:
    """spaCy's tokenizer for one language, giving marked tokens from which `detokenize` restores the line.

    The blank pipeline of `language` by default, or the tokenizer of an installed `pipeline`; tagger, parser
    and vectors are not loaded. Threads may share one. Raises DataError for an unknown language, one whose
    tokenizer needs a package that is absent, or a pipeline that is not installed.
    """

    def __init__(self, language: str, pipeline: str | None = None) -> None:
        from spacy.about import __version__

        self.language = language
        self.pipeline = pipeline
        self.spacy_version: str = __version__
        self._nlp = self._load()
        if self._nlp.lang != language and pipeline is not None:
            log.warning("spaCy pipeline %s is for '%s', not for '%s'", pipeline, self._nlp.lang, language)
        self._lock = threading.Lock()

    def __call__(self, line: str, lowercase: bool = False) -> list[str]:
        """Marked tokens of one line, raw or normalised; none for a blank line."""
        text = normalise(line, lowercase)
        return _mark(self._words(text)) if text else []

    def tokenize_many(self, lines: Iterable[str], lowercase: bool = False) -> Iterator[list[str]]:
        """Marked tokens line by line, lazily and in bounded memory."""
        return map(functools.partial(self, lowercase=lowercase), lines)

    def _load(self) -> Any:  # spacy.Language
        return _load_blank(self.language) if self.pipeline is None else _load_installed(self.pipeline)

    def _words(self, text: str) -> list[str]:
        """The words of a normalised line, each with the space behind it, so that they join to the line."""
        with self._lock:
            if len(self._nlp.vocab.strings) > _MAX_STRINGS:
                self._nlp = self._load()
            tokenizer = self._nlp.tokenizer
            words = [token.text_with_ws for part in _parts(text) for token in tokenizer(part)]
        if "".join(words) != text or " " in words or "" in words:
            # Not seen with spaCy's own tokenizers, but a pipeline may bring any tokenizer.
            return re.findall(r"\S+ ?", text)
        return words


def _parts(text: str) -> list[str]:
    """The line cut inside runs without white space that are too long for spaCy; nearly always itself."""
    if len(text) <= _MAX_RUN_CHARS:
        return [text]
    cuts = [0, *(match.end() for match in _LONG_RUN.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def _mark(words: Iterable[str]) -> list[str]:
    marked = []
    after_space = True
    for word in words:
        marked.append(_forms(word)[after_space])
        after_space = word.endswith(" ")
    return marked


@functools.lru_cache(_CACHED_WORDS)
def _forms(word: str) -> tuple[str, str]:
    """The marked token of a word where no space stands before it, and where one does."""
    text = escape(word.removesuffix(" "))
    return text, MARK + text


def _load_blank(language: str) -> Any:
    import spacy

    try:
        spacy.util.get_lang_class(language)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise DataError(
            f"spaCy knows no language '{language}'",
            hint="give one of its codes, such as de, en, fr or cs; xx is for any language",
        ) from error
    try:
        return spacy.blank(language)
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"spaCy's tokenizer for '{language}' needs another package: {reason}") from error


def _load_installed(pipeline: str) -> Any:
    import spacy
    from spacy.about import __version__

    try:
        return spacy.load(
            pipeline,
            exclude=["vectors", "strings", "lookups"],
            config={"nlp": {"pipeline": [], "disabled": []}},  # no component is built, only the tokenizer
        )
    except (OSError, ImportError, ValueError, KeyError, AttributeError) as error:
        name = _full_name(pipeline)
        command = f"python -m spacy download {name}"
        if "[E050]" in str(error) or "[E941]" in str(error):
            hint = None if name == pipeline else f"spaCy 3 has no short names: write {name} in the config"
            raise DataError(f"spaCy pipeline '{pipeline}' is not installed: {command}", hint=hint) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"spaCy {__version__} cannot load pipeline '{pipeline}': {reason}", hint=command
        ) from error


def _full_name(pipeline: str) -> str:
    """The package that an obsolete short name such as "de" stood for; any other name is itself."""
    shortcuts = getattr(importlib.import_module("spacy.errors"), "OLD_MODEL_SHORTCUTS", {})
    return str(shortcuts.get(pipeline, pipeline))
