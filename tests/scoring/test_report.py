"""The page that reports on a model: one file, harmless whatever it shows, and usable in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.scoring.metrics import Score
from nmt.scoring.report import (
    MAX_POINTS,
    AttentionMap,
    LengthGroup,
    Report,
    ReportSentence,
    SplitReport,
    write_report,
)
from tests.scoring.browser import Browser, find_browser

ROOT = Path(__file__).resolve().parents[2]
EVIL = "</script><img src=x onerror=alert(1)><!--<script>alert(2)</script>&amp;$title ${data}"


def sentence(source: str, hypothesis: str, reference: str, bleu: float = 50.0, **more: Any) -> ReportSentence:
    lengths = [len(text.split()) for text in (source, hypothesis, reference)]
    return ReportSentence(source, hypothesis, reference, bleu, 60.0, *lengths, **more)


SENTENCES = (
    sentence("Ein Hund läuft.", "A dog runs.", "A dog is running.", 40.0),
    sentence("Zwei Katzen schlafen.", "Two cats sleep.", "Two cats sleep.", 100.0),
    sentence(
        "Drei Vögel",
        "Three birds",
        "Some birds",
        7.5,
        attention=AttentionMap(
            ["Drei", "Vögel", "<eos>"], ["Three", "birds"], [[0.9, 0.1, 0], [0.004, 1, 0.5]]
        ),
    ),
    sentence("Ein Kind.", "", "A child.", 0.0),
)


def split(sentences: Sequence[ReportSentence] = SENTENCES, name: str = "val", **more: Any) -> SplitReport:
    values: dict[str, Any] = {
        "scores": [Score("BLEU", 41.25, "nrefs:1|tok:13a", 39.5, 43.0), Score("chrF2", 60.5, "nc:6")],
        "length_ratio": 0.98,
        "facts": [("perplexity", "4.73")],
        "by_length": [LengthGroup("1 to 2 words", 2, 30.0, 0.9), LengthGroup("3 words", 2, 50.0, 1.0)],
    }
    return SplitReport(name=name, sentences=sentences, **{**values, **more})


def report(*splits: SplitReport, events: Sequence[Mapping[str, Any]] = (), **more: Any) -> Report:
    values: dict[str, Any] = {
        "title": "base",
        "facts": [("model", "best.safetensors")],
        "attention_of": "a mean",
    }
    return Report(
        splits=splits or [split()], events=events, src_lang="de", tgt_lang="en", **{**values, **more}
    )


def training(steps: int = 3) -> list[Mapping[str, Any]]:
    events: list[Mapping[str, Any]] = []
    for step in range(1, steps + 1):
        events.append(
            {"event": "step", "step": step, "loss": 9.0 - step / steps, "learning_rate": step / 1000}
        )
        events.append({"event": "validation", "step": step, "loss": 5.0 - step / steps, "bleu": 10.0 * step})
    return events


class Elements(HTMLParser):
    """The elements of a page, as a parser of HTML sees them, and the text of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        last = self.tags[-1] if self.tags else ""
        self.texts[last] = self.texts.get(last, "") + data


def written(folder: Path, value: Report) -> str:
    write_report(folder / "report.html", value)
    assert [path.name for path in folder.iterdir()] == ["report.html"]
    return (folder / "report.html").read_text("utf-8")


def data_of(page: str) -> Any:
    """The JSON of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


# --- the file ---------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else_and_lets_nothing_else_run(tmp_path: Path) -> None:
    page = written(tmp_path, report(events=training()))
    assert set(re.findall(r"\w+://[^\"'\s]*", page)) == {"http://www.w3.org/2000/svg"}, "a name, no address"
    assert not re.search(r"\bsrc=|@import|\burl\(|\bimport\(|fetch\(|XMLHttpRequest|innerHTML", page)
    targets = [value for name, value in Elements(page).attributes if name == "href"]
    assert all(str(target).startswith("#") for target in targets)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]


@given(st.text() | st.text("<>&/!-script\"'\\$\u2028\x00\ud800", max_size=30) | st.just(EVIL))
def test_whatever_a_text_says_the_page_has_the_same_elements_and_shows_it(text: str) -> None:
    from nmt.scoring import report as module

    def filled(text: str) -> str:
        one = sentence(text, text, text, attention=AttentionMap([text], [text], [[1.0]]))
        values = split([one], text, facts=[(text, text)], by_length=[LengthGroup(text, 1, 1.0, 1.0)])
        page = module._page(report(values, title=text, facts=[(text, text)], attention_of=text))
        return page.encode("utf-8", "backslashreplace").decode()

    page, plain = filled(text), filled("plain")
    assert Elements(page).tags == Elements(plain).tags
    data = data_of(page)
    (shown,) = data["splits"]
    assert shown["rows"][0][:3] == [text] * 3
    assert shown["rows"][0][6] == [[text], [text], "99"]
    assert [shown["name"], *shown["facts"][0], data["attention_of"]] == [text] * 4


def test_figures_that_are_none_are_said_to_be_missing(tmp_path: Path) -> None:
    odd = float("nan"), float("inf")
    values = split(
        [sentence("a", "b", "c", odd[0])],
        scores=[Score("BLEU", odd[0], "s", np.float32(1.5), odd[1])],  # type: ignore[arg-type]
        length_ratio=odd[1],
        by_length=[LengthGroup("1", np.int64(3), odd[0], odd[1])],  # type: ignore[arg-type]
    )
    events = [{"event": "step", "step": 1, "loss": odd[0], "learning_rate": odd[1]}]
    data = data_of(written(tmp_path, report(values, events=events)))
    (shown,) = data["splits"]
    assert shown["scores"] == [["BLEU", "s", None, 1.5, None]]
    assert (shown["by_length"], shown["length_ratio"]) == ([["1", 3, None, None]], None)
    assert shown["rows"][0][3] is None
    assert data["curves"]["steps"] == [[1, None, None]]


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_weights_are_written_as_two_digits_each(rows: int, columns: int, data: st.DataObject) -> None:
    from nmt.scoring.report import _attention

    weight = st.floats(0, 1)
    weights = [[data.draw(weight) for _ in range(columns)] for _ in range(rows)]
    source, target = [f"s{i}" for i in range(columns)], [f"t{i}" for i in range(rows)]
    *labels, digits = _attention(AttentionMap(source, target, weights))
    read = [int(digits[place : place + 2]) / 100 for place in range(0, len(digits), 2)]
    assert labels == [source, target]
    assert read == pytest.approx([min(weight, 0.99) for row in weights for weight in row], abs=0.0051)


def test_weights_that_are_not_of_the_labels_are_refused(tmp_path: Path) -> None:
    wrong = sentence("a", "b", "c", attention=AttentionMap(["a", "b"], ["c"], [[0.5, 0.5], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="2 rows of weights for 1"):
        write_report(tmp_path / "report.html", report(split([wrong])))


def test_a_thousand_sentences_with_attention_are_a_small_file(tmp_path: Path) -> None:
    labels = [f"word{i}" for i in range(20)]
    weights = np.random.default_rng(1).dirichlet(np.ones(20), 20)
    text = " ".join(labels)
    rows = [sentence(text, text, text, attention=AttentionMap(labels, labels, weights)) for _ in range(1000)]
    assert len(written(tmp_path, report(split(rows)))) < 2_500_000


def test_curves_are_those_of_the_run_as_it_went_on(tmp_path: Path) -> None:
    mean = {"event": "validation", "step": 3, "loss": 1.0, "bleu": 99.0, "weights": "mean of the last 2"}
    data = data_of(written(tmp_path, report(events=[*training(4), *training(3)[-2:], mean])))["curves"]
    assert [step for step, *_ in data["steps"]] == [1, 2, 3]
    assert [point[2] for point in data["validations"]] == [10.0, 20.0, 30.0]
    assert data["best"] == [3, 99.0, "mean of the last 2"]


@pytest.mark.parametrize("steps", [1, MAX_POINTS, MAX_POINTS + 1, 12_345])
def test_a_long_run_is_drawn_with_few_points_up_to_its_last_one(tmp_path: Path, steps: int) -> None:
    events = [{"event": "step", "step": n, "loss": 1.0, "learning_rate": 0.1} for n in range(1, steps + 1)]
    points = data_of(written(tmp_path, report(events=events)))["curves"]["steps"]
    assert min(steps, MAX_POINTS / 2) <= len(points) <= MAX_POINTS
    assert points[-1][0] == steps


def test_the_wheel_takes_the_parts_of_the_page_along() -> None:
    from hatchling.builders.wheel import WheelBuilder

    shipped = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {Path(f"nmt/scoring/report.{kind}") for kind in ("py", "html", "css", "js")} <= shipped


# --- in a browser -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium or Chrome found: install one to have the report driven in it")
    with Browser(program, tmp_path_factory.mktemp("browser")) as started:
        yield started


Opener = Callable[..., Browser]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Opens a report at a width and in a colour scheme; then nothing went wrong or was fetched."""
    path = tmp_path / "a report.html"

    def open_report(value: Report, *, width: int = 1280, scheme: str = "light") -> Browser:
        write_report(path, value)
        browser.show(width=width, scheme=scheme)
        browser.problems.clear()
        browser.fetched.clear()
        browser.open(path)
        return browser

    yield open_report
    browser.ask("1")
    assert browser.problems == []
    assert browser.fetched == [path.as_uri()]


def column(browser: Browser, number: int) -> list[str]:
    return browser.ask(f"[...byId('table').tBodies[0].rows].map((row) => row.cells[{number}].textContent)")


def search(browser: Browser, words: str) -> None:
    browser.ask(
        f"byId('search').value = {json.dumps(words)}; byId('search').dispatchEvent(new Event('input'))"
    )


def test_the_page_shows_what_it_was_given(opened: Opener) -> None:
    browser = opened(report(events=training()))
    text = browser.ask("document.body.innerText")
    for words in ("base", "best.safetensors", "41.25", "39.50 to 43.00", "nrefs:1|tok:13a", "4.73", "60.50"):
        assert words in text
    for words in ("best: 30.00 at step 3", "1 to 2 words", "30.00", "0.900", "all together 0.980"):
        assert words in text
    assert browser.ask("document.title") == "base"
    assert browser.ask("document.querySelectorAll('#curves svg').length") == 3
    assert column(browser, 2) == [one.hypothesis for one in SENTENCES]
    headings = browser.ask(
        "[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))"
    )
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))


def test_without_events_nothing_is_said_of_training(opened: Opener) -> None:
    browser = opened(report())
    assert browser.ask("byId('training').offsetHeight") == 0


def test_the_search_box_keeps_the_rows_that_hold_every_word(opened: Opener) -> None:
    browser = opened(report())
    for words, kept in (
        ("DOG", ["A dog runs."]),
        ("vo\u0308gel", ["Three birds"]),
        ("running ein", ["A dog runs."]),
        ("dog cats", []),
        ("", [one.hypothesis for one in SENTENCES]),
    ):
        search(browser, words)
        assert column(browser, 2) == kept, words
        assert browser.ask("byId('count').textContent").startswith(str(len(kept)))


def test_a_columns_button_sorts_up_and_then_down(opened: Opener) -> None:
    browser = opened(report())
    head = "[...byId('table').tHead.querySelectorAll('th')]"
    for place, key in enumerate(("source", "hypothesis", "reference", "bleu"), start=1):
        for sign in ("ascending", "descending"):
            browser.ask(f"{head}[{place}].querySelector('button').click()")
            rows = sorted(SENTENCES, key=lambda row: getattr(row, key), reverse=sign == "descending")
            assert column(browser, 1) == [row.source for row in rows], (key, sign)
            assert browser.ask(f"{head}.map((th) => th.ariaSort).indexOf({json.dumps(sign)})") == place
            assert browser.ask(f"{head}.filter((th) => th.ariaSort).length") == 1
            assert browser.ask(f"{head}[{place}].contains(document.activeElement)")
    for _ in "up", "down":  # equal ones stay in their order
        browser.ask(f"{head}[6].querySelector('button').click()")
    rows = sorted(SENTENCES, key=lambda row: -row.source_length)
    assert column(browser, 1) == [row.source for row in rows]


def test_worst_and_best_come_in_their_order(opened: Opener) -> None:
    browser = opened(report())
    listed = "[...document.querySelectorAll('#extremes dd:nth-of-type(1)')].map((one) => one.textContent)"
    by_bleu = [row.source for row in sorted(SENTENCES, key=lambda row: row.bleu)]
    assert browser.ask(listed) == by_bleu
    browser.ask("byId('best').click()")
    assert browser.ask(listed) == by_bleu[::-1]
    assert browser.ask("[byId('worst').ariaPressed, byId('best').ariaPressed]") == ["false", "true"]


def test_a_sentence_opens_by_key_shows_its_attention_and_closes(opened: Opener) -> None:
    browser = opened(report())
    browser.ask("byId('table').tBodies[0].rows[2].querySelector('button').focus()")
    browser.press("Enter", 13, "\r")
    assert browser.ask("byId('dialog').open")
    assert "a mean" in browser.ask("byId('detail').innerText")
    shades = browser.ask(
        "[...document.querySelectorAll('.weights rect')].map((cell) => [cell.x, cell.y, cell.width]"
        ".map((length) => length.baseVal.value).concat(Math.round(99 * cell.getAttribute('fill-opacity'))))"
    )
    left, top, size = shades[0][0], shades[0][1], shades[0][2]
    cells = {(round((y - top) / size), round((x - left) / size)): shade for x, y, _, shade in shades}
    assert cells == {(0, 0): 90, (0, 1): 10, (1, 1): 99, (1, 2): 50}, "zeros are not drawn"
    words = browser.ask("[...document.querySelectorAll('details tbody tr')].map((row) => row.textContent)")
    assert words == ["ThreeDrei90 %", "birdsVögel99 %"]
    browser.press("ArrowLeft", 37)
    assert browser.ask("byId('dialog-title').textContent") == "Sentence 2"
    browser.press("Escape", 27)
    assert not browser.ask("byId('dialog').open")
    assert browser.ask("document.activeElement.textContent") == "3"


def test_where_attention_is_absent_nothing_is_said_of_it(opened: Opener) -> None:
    browser = opened(report(split(SENTENCES[:2])))
    browser.ask("byId('table').tBodies[0].rows[0].click()")
    assert browser.ask("byId('dialog').open && byId('detail').innerText.includes('A dog is running.')")
    said = browser.ask("(document.body.innerText + byId('detail').innerText).toLowerCase()")
    assert "attention" not in said
    assert "looked" not in said


def test_pages_and_splits_can_be_gone_through(opened: Opener) -> None:
    many = [sentence(f"s{i}", f"h{i}", f"r{i}") for i in range(120)]
    browser = opened(report(split(many), split(name="test")))
    assert column(browser, 2) == [f"h{i}" for i in range(50)]
    browser.ask("byId('next-page').click()")
    browser.ask("byId('next-page').focus(); byId('next-page').click()")
    assert column(browser, 2) == [f"h{i}" for i in range(100, 120)]
    assert browser.ask("byId('next-page').disabled && document.activeElement.id === 'previous-page'")
    browser.ask("[...document.querySelectorAll('#splits button')].at(-1).click()")
    assert column(browser, 2) == [one.hypothesis for one in SENTENCES]
    assert browser.ask("byId('scores-title').textContent") == "Scores on test"


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for word in a:
        before = row
        row = [0]
        for j, other in enumerate(b):
            row.append(before[j] + 1 if word == other else max(before[j + 1], row[j]))
    return row[-1]


def test_marked_are_the_fewest_words_that_make_the_difference(opened: Opener) -> None:
    browser = opened(report())
    chance = np.random.default_rng(1)
    pairs = [
        [" ".join(chance.choice(list("abcd,"), chance.integers(0, 9))) for _ in "xy"] for _ in range(300)
    ]
    for (a, b), (left, right) in zip(
        pairs, browser.ask(f"{json.dumps(pairs)}.map(([a, b]) => compare(a, b))"), strict=True
    ):
        same = [[word for word, in_both in side if in_both and word.strip()] for side in (left, right)]
        assert same[0] == same[1]
        assert len(same[0]) == common_length(a.split(), b.split())
        assert ["".join(word for word, _ in side) for side in (left, right)] == [a, b]
    marks = browser.ask(
        "[...document.querySelectorAll('#extremes del, #extremes ins')].map((one) => one.outerHTML)"
    )
    assert marks == [
        *("<ins>A child.</ins>", "<del>Three</del>", "<ins>Some</ins>"),
        *("<del>runs</del>", "<ins>is running</ins>"),
    ]


def test_hostile_text_is_shown_and_does_nothing(opened: Opener) -> None:
    token = AttentionMap([EVIL], [EVIL], [[0.5]])
    hostile = split([sentence(EVIL, EVIL, f"{EVIL} x", attention=token)], EVIL, facts=[(EVIL, EVIL)])
    browser = opened(report(hostile, hostile, title=EVIL, facts=[(EVIL, EVIL)], attention_of=EVIL))
    browser.ask("byId('table').tBodies[0].rows[0].click()")
    assert browser.ask("document.querySelectorAll('img').length") == 0
    assert browser.ask("document.querySelectorAll('script').length") == 2
    assert browser.ask("document.title") == EVIL
    assert column(browser, 1) == [EVIL]
    assert browser.ask("document.querySelector('#detail dd').textContent") == EVIL


UNREADABLE = """
(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (node) =>
    node ? over(parse(getComputedStyle(node).backgroundColor), paper(node.parentElement)) : [255, 255, 255];
  const root = byId("dialog").open ? byId("dialog") : document.body;
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = new Set();
  let seen = 0;
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("script, style, :disabled")) continue;
    const style = getComputedStyle(node);
    const behind = paper(node);
    const ink = over(parse(node.closest("svg") ? style.fill : style.color), behind);
    const [low, high] = [light(ink), light(behind)].sort((a, b) => a - b);
    seen += 1;
    if ((high + 0.05) / (low + 0.05) < 4.5) found.add(`${node.outerHTML}: ${ink} on ${behind}`);
  }
  return { seen, found: [...found] };
})()
"""
"""The texts whose contrast is below 4.5 to 1, which is AA of WCAG 2."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colour_scheme_and_every_text_can_be_read(opened: Opener, scheme: str) -> None:
    browser = opened(report(split(), split(name="test"), events=training()), scheme=scheme)
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    red = int(paper.removeprefix("rgb(").split(",")[0])
    assert red > 200 if scheme == "light" else red < 60
    for look in ("1", "byId('table').tBodies[0].rows[2].click()"):
        browser.ask(look)
        answer = browser.ask(UNREADABLE)
        assert answer["found"] == []
        assert answer["seen"] > 15


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_nothing_scrolls_sideways_but_what_is_meant_to(opened: Opener, width: int) -> None:
    tokens = [f"token{i}" for i in range(40)]
    long = sentence(
        "x" * 900, "W" * 300 + " b", "一二三" * 99, attention=AttentionMap(tokens, tokens, np.eye(40))
    )
    wide = split(
        [*SENTENCES, long], "a_split_with_a_long_name_" * 3, scores=[Score("BLEU", 1.0, "s" * 200)] * 3
    )
    browser = opened(
        report(wide, wide, title="t" * 200, facts=[("f" * 90, "v" * 300)], events=training()), width=width
    )
    browser.ask("byId('best').click()")
    assert browser.ask("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    browser.ask("byId('table').tBodies[0].rows[4].click()")
    assert browser.ask("byId('dialog').scrollWidth - byId('dialog').clientWidth") == 0
    map_width, seen = browser.ask(
        "[document.querySelector('.map').scrollWidth, document.querySelector('.map').clientWidth]"
    )
    assert map_width > seen if width < 600 else seen > 0


def test_ten_thousand_sentences_stay_quick(opened: Opener) -> None:
    chance = np.random.default_rng(1)
    texts = [" ".join(map("word{}".format, row)) for row in chance.integers(0, 2000, (30_000, 12))]
    browser = opened(report(split([sentence(*texts[i : i + 3], float(i % 97)) for i in range(0, 30_000, 3)])))
    for deed in (
        "byId('search').value = 'word77'; byId('search').dispatchEvent(new Event('input'))",
        "byId('search').value = ''; byId('search').dispatchEvent(new Event('input'))",
        "byId('table').tHead.querySelectorAll('button')[1].click()",
        "byId('table').tHead.querySelectorAll('button')[4].click()",
        "byId('next-page').click()",
    ):
        timed = f"const start = performance.now(); {deed}; document.body.offsetHeight"
        took_ms = browser.ask(f"(() => {{ {timed}; return performance.now() - start; }})()")
        assert took_ms < 2000, f"{deed}: {took_ms:.0f} ms; a tenth of a second is usual"
    assert browser.ask("byId('count').textContent") == "10,000 sentences"
