"""A corpus of image captions, German and English, written by a small grammar: demo data and test data.

The file reads from the ground up: German inflection, the words, the places, the verbs, and last the writer
that draws captions. Every choice comes from one seeded stream of `random.Random.random()`, which Python keeps
the same from release to release, and no set is ever iterated: the text is the same on every machine.

Held-out captions combine known words in unseen ways. A combination is an adjective with its noun ("rot Hut")
or a subject with its verb and one complement ("Hund liegen Sofa"), in dictionary forms, so that inflecting it
does not hide it. A stable hash gives every combination to one split: captions of "train" hold training
combinations only, and each caption of "val" or "test" holds at least one of its split's own.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Literal, TypeVar

from nmt.data.corpus import Pair

VERSION = "1"  # another text has another version; the tests pin the text's hash
SIZES: Mapping[str, int] = {"train": 4000, "val": 200, "test": 200}
MAX_WORDS = 22
MIN_SEEN = 4  # how often the training split shows each word of a held-out caption, at least
MAX_USED = 5  # how many held-out captions may owe their place to the same combination
SEED = 30

T = TypeVar("T")

# ---- inflection ----

Column = Literal["der", "die", "das", "plural"]  # the genders, named by their articles; the plural has none
Case = Literal["nom", "acc", "dat", "gen"]
Endings = Mapping[Case, Mapping[Column, str]]

COLUMNS: tuple[Column, ...] = ("der", "die", "das", "plural")


def _endings(*, nom: str, acc: str, dat: str, gen: str) -> Endings:
    """Endings by case and column; a row lists der, die, das, plural, and "-" is no ending."""

    def row(line: str) -> dict[Column, str]:
        return {column: ending.strip("-") for column, ending in zip(COLUMNS, line.split(), strict=True)}

    return {"nom": row(nom), "acc": row(acc), "dat": row(dat), "gen": row(gen)}


DEFINITE = _endings(nom="er ie as ie", acc="en ie as ie", dat="em er em en", gen="es er es er")  # after d-
INDEFINITE = _endings(nom="- e - e", acc="en e - e", dat="em er em en", gen="es er es er")  # after ein-, ihr-
UNINFLECTED = _endings(nom="- - - -", acc="- - - -", dat="- - - -", gen="- - - -")
STRONG = _endings(nom="er e es e", acc="en e es e", dat="em er em en", gen="en er en er")
WEAK = _endings(nom="e e e en", acc="en e e en", dat="en en en en", gen="en en en en")
MIXED = _endings(nom="er e es en", acc="en e es en", dat="en en en en", gen="en en en en")

CONTRACTIONS = {
    "an dem": "am",
    "in dem": "im",
    "in das": "ins",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}


@dataclass(frozen=True, slots=True)
class Text:
    """The same words in both languages."""

    de: str
    en: str


NOTHING = Text("", "")


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """An article, possessive, number word or quantifier, and the endings of an adjective after it."""

    stem: str
    english: str
    endings: Endings
    adjectives: Endings


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; `stem` is what its endings follow (hoch: hoh-), where that is not the word itself."""

    german: str
    english: str
    stem: str = ""
    inflected: bool = True

    def form(self, endings: Endings, case: Case, column: Column) -> str:
        return (self.stem or self.german) + endings[case][column] if self.inflected else self.german


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; one without a plural is a mass noun and takes no article of its own.

    `weak` is the form of every case but the nominative singular (den Jungen). `pronoun` is the English one;
    what men or women wear is `worn_by` it. `english_plural` defaults to an added s.
    """

    article: Column
    german: str
    plural: str
    english: str
    adjectives: str = ""
    english_plural: str = ""
    weak: str = ""
    genitive: str = ""
    kind: str = "thing"
    pronoun: str = ""
    worn_by: str = ""
    only_plural: bool = False  # Stiefel, Haare: hardly ever one
    english_article: bool = True  # no "a" before "black trousers", "long hair"

    def form(self, case: Case, plural: bool) -> str:
        if plural:
            return self.plural + "n" if case == "dat" and self.plural[-1] not in "ns" else self.plural
        if case == "nom":
            return self.german
        if case == "gen":
            strong = self.genitive or (self.german if self.article == "die" else self.german + "s")
            return self.weak or strong
        return self.weak or self.german

    def english_form(self, plural: bool) -> str:
        return (self.english_plural or self.english + "s") if plural else self.english


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with its determiner, perhaps an adjective before it and a modifier after it."""

    noun: Noun
    determiner: Determiner
    adjective: Adjective | None = None
    plural: bool = False
    modifier: Text = NOTHING

    def german(self, case: Case) -> str:
        column = "plural" if self.plural else self.noun.article
        determiner = self.determiner.stem + self.determiner.endings[case][column]
        adjective = self.adjective.form(self.determiner.adjectives, case, column) if self.adjective else ""
        return _join(determiner, adjective, self.noun.form(case, self.plural), self.modifier.de)

    def english(self) -> str:
        adjective = self.adjective.english if self.adjective else ""
        words = _join(adjective, self.noun.english_form(self.plural), self.modifier.en)
        if self.determiner is not A:
            return _join(self.determiner.english, words)
        if not self.noun.english_article:
            return words
        return _join("an" if words[0] in "aeiou" else "a", words)


def relative_pronoun(noun: Noun, case: Case, *, plural: bool) -> str:
    """The definite article, but for the dative plural."""
    if plural and case == "dat":
        return "denen"
    return THE.stem + DEFINITE[case]["plural" if plural else noun.article]


def contracted(preposition: str, phrase: str) -> str:
    """A preposition before an inflected noun phrase, run together with the article where people do so."""
    article, _, rest = phrase.partition(" ")
    together = _join(preposition, article)
    return _join(CONTRACTIONS.get(together, together), rest)


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


# ---- small words and adjectives ----

A = Determiner("ein", "a", INDEFINITE, MIXED)
THE = Determiner("d", "the", DEFINITE, WEAK)
BARE = Determiner("", "", UNINFLECTED, STRONG)
HIS = Determiner("sein", "his", INDEFINITE, MIXED)
HER = Determiner("ihr", "her", INDEFINITE, MIXED)
THEIR = Determiner("ihr", "their", INDEFINITE, MIXED)
TWO = Determiner("zwei", "two", UNINFLECTED, STRONG)
THREE = Determiner("drei", "three", UNINFLECTED, STRONG)
FOUR = Determiner("vier", "four", UNINFLECTED, STRONG)
SEVERAL = Determiner("mehrer", "several", STRONG, STRONG)
MANY = Determiner("viel", "many", STRONG, STRONG)
SOME = Determiner("einig", "some", STRONG, STRONG)
QUANTITIES = (TWO, TWO, TWO, THREE, THREE, FOUR, SEVERAL, MANY, SOME)

POSSESSIVES = {"he": HIS, "she": HER}
PRONOUNS: Mapping[Column, str] = {"der": "er", "die": "sie", "das": "es"}
THEY = Text("sie", "they")
AND = Text("und", "and")
WHILE = Text("während", "while")

_PLAIN_ADJECTIVES = (
    word.split("/")
    for line in (
        "rot/red blau/blue grün/green gelb/yellow weiß/white schwarz/black braun/brown grau/grey",
        "bunt/colourful gestreift/striped hell/bright blond/blond lockig/curly schön/beautiful",
        "alt/old jung/young neu/new klein/small groß/large lang/long schmal/narrow tief/deep dick/thick",
        "rund/round schwer/heavy leer/empty nass/wet warm/warm kalt/cold heiß/hot frisch/fresh reif/ripe",
        "elegant/elegant bequem/comfortable fröhlich/cheerful freundlich/friendly hungrig/hungry",
    )
    for word in line.split()
)
ADJECTIVES = {
    adjective.german: adjective
    for adjective in (
        *(Adjective(german, english) for german, english in _PLAIN_ADJECTIVES),
        Adjective("hoch", "tall", stem="hoh"),
        Adjective("dunkel", "dark", stem="dunkl"),
        Adjective("müde", "tired", stem="müd"),
        Adjective("rosa", "pink", inflected=False),
    )
}

# ---- nouns ----


def _nouns(kind: str, *nouns: Noun) -> dict[str, Noun]:
    """Nouns of one kind by dictionary form; der and die are he and she unless a row says otherwise."""
    genders: Mapping[Column, str] = {"der": "he", "die": "she"} if kind in ("adult", "child", "kin") else {}
    return {
        noun.german: replace(noun, kind=kind, pronoun=noun.pronoun or genders.get(noun.article, "it"))
        for noun in nouns
    }


ANY_AGE = "jung alt müde fröhlich freundlich"
YOUNG = "jung müde fröhlich freundlich"
LITTLE = "klein müde fröhlich"
COLOURS = "rot blau grün gelb weiß schwarz"

NOUNS = (
    _nouns(
        "adult",
        Noun("der", "Mann", "Männer", "man", ANY_AGE, "men"),
        Noun("die", "Frau", "Frauen", "woman", ANY_AGE, "women"),
        Noun("der", "Herr", "Herren", "gentleman", "alt elegant", "gentlemen", weak="Herrn"),
        Noun("die", "Dame", "Damen", "lady", "alt elegant", "ladies"),
        Noun("der", "Gärtner", "Gärtner", "gardener", ANY_AGE),
        Noun("der", "Koch", "Köche", "cook", ANY_AGE),
        Noun("der", "Musiker", "Musiker", "musician", ANY_AGE),
        Noun("der", "Bauarbeiter", "Bauarbeiter", "construction worker", YOUNG),
        Noun("der", "Feuerwehrmann", "Feuerwehrleute", "firefighter", YOUNG),
        Noun("der", "Bauer", "Bauern", "farmer", ANY_AGE, weak="Bauern"),
        Noun("der", "Student", "Studenten", "student", YOUNG, weak="Studenten"),
        Noun("der", "Tourist", "Touristen", "tourist", ANY_AGE, weak="Touristen"),
        Noun("der", "Polizist", "Polizisten", "police officer", YOUNG, weak="Polizisten"),
        Noun("die", "Kellnerin", "Kellnerinnen", "waitress", YOUNG, "waitresses"),
        Noun("die", "Lehrerin", "Lehrerinnen", "teacher", YOUNG),
        Noun("die", "Tänzerin", "Tänzerinnen", "dancer", "jung elegant müde"),
        Noun("der", "Mensch", "Menschen", "person", "jung alt fröhlich", "people", "Menschen", pronoun="it"),
        Noun("das", "Paar", "Paare", "couple", "jung alt elegant"),
        Noun("die", "Familie", "Familien", "family", "jung fröhlich", "families", pronoun="it"),
    )
    | _nouns(
        "child",
        Noun("der", "Junge", "Jungen", "boy", LITTLE, weak="Jungen"),
        Noun("das", "Mädchen", "Mädchen", "girl", LITTLE, pronoun="she"),
        Noun("das", "Kind", "Kinder", "child", LITTLE, "children"),
    )
    | _nouns("baby", Noun("das", "Baby", "Babys", "baby", "klein müde", "babies"))
    | _nouns(
        "kin",  # only ever somebody's
        Noun("der", "Sohn", "Söhne", "son", "klein"),
        Noun("die", "Tochter", "Töchter", "daughter", "klein"),
        Noun("der", "Vater", "Väter", "father"),
        Noun("die", "Mutter", "Mütter", "mother"),
        Noun("der", "Bruder", "Brüder", "brother", "klein"),
        Noun("die", "Schwester", "Schwestern", "sister", "klein"),
    )
    | _nouns(
        "pet",
        Noun("der", "Hund", "Hunde", "dog", "klein groß braun schwarz weiß nass hungrig"),
        Noun("die", "Katze", "Katzen", "cat", "klein schwarz weiß grau hungrig"),
        Noun("das", "Kaninchen", "Kaninchen", "rabbit", "klein weiß braun grau"),
    )
    | _nouns(
        "grazer",
        Noun("das", "Pferd", "Pferde", "horse", "groß braun weiß schwarz jung"),
        Noun("die", "Kuh", "Kühe", "cow", "groß braun schwarz hungrig"),
        Noun("das", "Schaf", "Schafe", "sheep", "klein weiß schwarz jung", "sheep"),
        Noun("die", "Ziege", "Ziegen", "goat", "klein weiß grau hungrig"),
        Noun("der", "Esel", "Esel", "donkey", "alt grau müde"),
    )
    | _nouns(
        "bird",
        Noun("der", "Vogel", "Vögel", "bird", "klein bunt schwarz"),
        Noun("die", "Ente", "Enten", "duck", "klein braun weiß"),
    )
    | _nouns(
        "wild",
        Noun("der", "Affe", "Affen", "monkey", "klein braun hungrig", weak="Affen"),
        Noun("der", "Elefant", "Elefanten", "elephant", "groß grau alt", weak="Elefanten"),
        Noun("der", "Bär", "Bären", "bear", "groß braun hungrig", weak="Bären"),
    )
    | _nouns(
        "thing",
        Noun("die", "Gruppe", "Gruppen", "group", "klein groß"),
        # worn
        Noun("das", "Hemd", "Hemden", "shirt", f"{COLOURS} rosa gestreift"),
        Noun("die", "Jacke", "Jacken", "jacket", f"{COLOURS} warm dick"),
        Noun("der", "Mantel", "Mäntel", "coat", f"{COLOURS} grau lang dick"),
        Noun("der", "Pullover", "Pullover", "sweater", f"{COLOURS} rosa gestreift warm"),
        Noun("die", "Hose", "Hosen", "trousers", "blau schwarz weiß grau", "trousers", english_article=False),
        Noun("der", "Anzug", "Anzüge", "suit", "schwarz grau dunkel elegant", worn_by="he"),
        Noun("das", "Kleid", "Kleider", "dress", f"{COLOURS} rosa lang elegant", "dresses", worn_by="she"),
        Noun("der", "Rock", "Röcke", "skirt", f"{COLOURS} rosa lang bunt", worn_by="she"),
        Noun("der", "Hut", "Hüte", "hat", f"{COLOURS} groß elegant"),
        Noun("die", "Mütze", "Mützen", "cap", f"{COLOURS} rosa warm"),
        Noun("der", "Schal", "Schals", "scarf", f"{COLOURS} bunt lang gestreift", "scarves"),
        Noun("der", "Helm", "Helme", "helmet", "rot blau gelb weiß"),
        Noun("der", "Rucksack", "Rucksäcke", "backpack", "rot blau grün schwer groß"),
        Noun("der", "Stiefel", "Stiefel", "boot", "schwarz braun rot warm nass", only_plural=True),
        Noun("der", "Bart", "Bärte", "beard", "lang schwarz blond", worn_by="he"),
        replace(
            Noun("das", "Haar", "Haare", "hair", "lang blond schwarz grau lockig", "hair"),
            only_plural=True,
            english_article=False,
        ),
        # eaten and drunk
        Noun("der", "Apfel", "Äpfel", "apple", "rot grün reif"),
        Noun("die", "Birne", "Birnen", "pear", "gelb grün reif"),
        Noun("die", "Banane", "Bananen", "banana", "gelb reif"),
        Noun("die", "Orange", "Orangen", "orange", "groß reif"),
        Noun("die", "Kirsche", "Kirschen", "cherry", "rot schwarz reif", "cherries"),
        Noun("der", "Kuchen", "Kuchen", "cake", "klein groß frisch warm"),
        Noun("die", "Pizza", "Pizzen", "pizza", "groß heiß frisch"),
        Noun("das", "Brot", "", "bread", "frisch dunkel warm"),
        Noun("das", "Obst", "", "fruit", "frisch reif"),
        Noun("das", "Gemüse", "", "vegetables", "frisch grün"),
        Noun("das", "Eis", "", "ice cream", "kalt"),
        Noun("die", "Suppe", "", "soup", "heiß warm"),
        Noun("der", "Kaffee", "", "coffee", "heiß kalt schwarz"),
        Noun("der", "Tee", "", "tea", "heiß kalt grün"),
        Noun("die", "Milch", "", "milk", "kalt warm frisch"),
        Noun("das", "Wasser", "", "water", "kalt"),
        Noun("das", "Gras", "", "grass", "grün hoch nass frisch"),
        # played
        Noun("die", "Gitarre", "", "the guitar"),
        Noun("die", "Geige", "", "the violin"),
        Noun("die", "Trompete", "", "the trumpet"),
        Noun("der", "Fußball", "", "football"),
        Noun("das", "Tennis", "", "tennis"),
        Noun("das", "Schach", "", "chess"),
        # used
        Noun("der", "Ball", "Bälle", "ball", f"{COLOURS} groß"),
        Noun("das", "Buch", "Bücher", "book", "dick alt neu"),
        Noun("die", "Zeitung", "Zeitungen", "newspaper", "alt neu"),
        Noun("der", "Brief", "Briefe", "letter", "lang alt"),
        Noun("das", "Bild", "Bilder", "picture", "klein groß schön bunt alt"),
        Noun("die", "Blume", "Blumen", "flower", "rot gelb weiß schön frisch"),
        Noun("die", "Puppe", "Puppen", "doll", "klein alt schön"),
        Noun("die", "Kamera", "Kameras", "camera", "alt neu schwarz"),
        Noun("der", "Luftballon", "Luftballons", "balloon", "rot blau gelb grün bunt rosa"),
        Noun("der", "Regenschirm", "Regenschirme", "umbrella", "schwarz bunt gelb gestreift"),
        Noun("das", "Schild", "Schilder", "sign", "groß gelb weiß"),
        Noun("die", "Fahne", "Fahnen", "flag", "bunt groß rot"),
        Noun("der", "Korb", "Körbe", "basket", "groß schwer leer"),
        Noun("der", "Koffer", "Koffer", "suitcase", "schwer braun groß alt"),
        Noun("der", "Stock", "Stöcke", "stick", "lang dick"),
        Noun("der", "Stein", "Steine", "stone", "schwer klein rund"),
        Noun("der", "Schneemann", "Schneemänner", "snowman", "klein groß dick", "snowmen"),
        Noun("die", "Sandburg", "Sandburgen", "sandcastle", "klein groß schön"),
        Noun("die", "Tasse", "Tassen", "cup", "klein groß blau weiß"),
        Noun("die", "Lampe", "Lampen", "lamp", "hell klein alt"),
        Noun("die", "Leiter", "Leitern", "ladder", "lang hoch"),
        Noun("das", "Auto", "Autos", "car", f"{COLOURS} alt neu klein"),
        Noun("das", "Fahrrad", "Fahrräder", "bicycle", f"{COLOURS} alt neu"),
        Noun("das", "Motorrad", "Motorräder", "motorcycle", "schwarz rot schwer neu"),
        Noun("der", "Traktor", "Traktoren", "tractor", "rot grün alt"),
        Noun("der", "Lastwagen", "Lastwagen", "lorry", "schwer weiß blau", "lorries"),
        Noun("das", "Boot", "Boote", "boat", "klein weiß blau alt"),
        Noun("der", "Kinderwagen", "Kinderwagen", "pram", "blau grau leer"),
        Noun("der", "Schlitten", "Schlitten", "sledge", "klein rot schwer"),
        # indoors
        Noun("die", "Küche", "Küchen", "kitchen", "klein hell weiß"),
        Noun("das", "Zimmer", "Zimmer", "room", "klein hell dunkel warm"),
        Noun("das", "Restaurant", "Restaurants", "restaurant", "klein elegant leer"),
        Noun("das", "Café", "Cafés", "café", "klein alt leer"),
        Noun("das", "Büro", "Büros", "office", "klein hell leer"),
        Noun("der", "Stuhl", "Stühle", "chair", "alt rot bequem"),
        Noun("das", "Sofa", "Sofas", "sofa", "alt rot grau bequem"),
        Noun("der", "Tisch", "Tische", "table", "rund lang klein"),
        Noun("der", "Teppich", "Teppiche", "carpet", "bunt dick alt"),
        Noun("die", "Decke", "Decken", "blanket", "bunt warm blau"),
        Noun("der", "Boden", "Böden", "floor", "kalt nass"),
        Noun("die", "Bühne", "Bühnen", "stage", "klein groß dunkel"),
        # outdoors
        Noun("das", "Haus", "Häuser", "house", "alt weiß klein groß", genitive="Hauses"),
        Noun("das", "Gebäude", "Gebäude", "building", "alt hoch grau groß"),
        Noun("die", "Kirche", "Kirchen", "church", "alt weiß klein"),
        Noun("das", "Geschäft", "Geschäfte", "shop", "klein neu leer"),
        Noun("das", "Iglu", "Iglus", "igloo", "klein groß weiß"),
        Noun("der", "Turm", "Türme", "tower", "hoch alt rund", genitive="Turmes"),
        Noun("das", "Dach", "Dächer", "roof", "rot grau nass"),
        Noun("der", "Eingang", "Eingänge", "entrance"),
        Noun("der", "Brunnen", "Brunnen", "fountain", "alt groß schön"),
        Noun("die", "Brücke", "Brücken", "bridge", "alt lang schmal"),
        Noun("die", "Straße", "Straßen", "street", "nass leer schmal lang"),
        Noun("der", "Platz", "Plätze", "square", "groß leer schön"),
        Noun("der", "Markt", "Märkte", "market", "klein groß bunt"),
        Noun("die", "Stadt", "Städte", "town", "alt"),
        Noun("die", "Bushaltestelle", "Bushaltestellen", "bus stop", "leer neu"),
        Noun("der", "Bahnhof", "Bahnhöfe", "station"),
        Noun("die", "Bank", "Bänke", "bench", "alt rot grün leer", "benches"),
        Noun("die", "Mauer", "Mauern", "wall", "alt grau lang"),
        Noun("der", "Zaun", "Zäune", "fence", "weiß alt hoch"),
        Noun("der", "Garten", "Gärten", "garden", "klein schön grün"),
        Noun("der", "Park", "Parks", "park"),
        Noun("der", "Spielplatz", "Spielplätze", "playground"),
        Noun("die", "Wiese", "Wiesen", "meadow", "grün nass"),
        Noun("das", "Feld", "Felder", "field", "groß grün leer"),
        Noun("der", "Wald", "Wälder", "forest", "dunkel grün tief"),
        Noun("der", "Baum", "Bäume", "tree", "hoch alt groß", genitive="Baumes"),
        Noun("der", "Schatten", "Schatten", "shade"),
        Noun("der", "Berg", "Berge", "mountain", "hoch", genitive="Berges"),
        Noun("der", "Fuß", "Füße", "foot"),
        Noun("der", "See", "Seen", "lake", "klein groß tief", genitive="Sees"),
        Noun("der", "Fluss", "Flüsse", "river", "schmal tief", genitive="Flusses"),
        Noun("das", "Ufer", "Ufer", "shore"),
        Noun("das", "Meer", "Meere", "sea"),
        Noun("der", "Strand", "Strände", "beach", "leer weiß"),
        Noun("der", "Schnee", "", "snow", "tief nass"),
        Noun("die", "Pfütze", "Pfützen", "puddle", "groß tief"),
    )
)


@cache
def _some(names: str) -> tuple[Noun, ...]:
    return tuple(NOUNS[name] for name in names.split())


COMMON = _some("Mann Frau Junge Mädchen Kind")
ADULTS = _some(
    "Mann Frau Herr Dame Gärtner Koch Musiker Bauarbeiter Feuerwehrmann Bauer Student Tourist Polizist"
    " Kellnerin Lehrerin Tänzerin"
)
GROUPED = _some(
    "Mensch Mensch Mensch Mann Frau Kind Kind Junge Mädchen Student Tourist Musiker Bauarbeiter Tänzerin"
)
COMPANY = {
    "Mann": "Frau Junge Mädchen Kind",
    "Frau": "Mann Junge Mädchen Kind",
    "Junge": "Mann Frau Mädchen",
    "Mädchen": "Mann Frau Junge",
    "Kind": "Mann Frau",
}
COLLECTIVES = _some("Familie Paar")
PETS = _some("Hund Katze Kaninchen")
ANIMALS = tuple(noun for noun in NOUNS.values() if noun.kind in ("pet", "grazer", "bird", "wild"))
KIN = {"adult": _some("Sohn Tochter Bruder Schwester"), "child": _some("Vater Mutter Bruder Schwester")}
NAMES = {"Anna": "she", "Lena": "she", "Maria": "she", "Paul": "he", "Jonas": "he", "Max": "he"}

ON_THE_BODY = _some("Hemd Jacke Mantel Pullover Hose Anzug Kleid Rock")
ON_THE_HEAD = _some("Hut Mütze Helm")
WITH_CHILDREN = ON_THE_HEAD + _some("Schal Rucksack Haar Haar")
WITH_ADULTS = WITH_CHILDREN + _some("Bart")


# ---- places ----


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where something happens (dative) or where it leads (accusative): "vor einem Haus", "in den Wald"."""

    preposition: Text
    noun: Noun
    determiner: Determiner
    case: Case
    of: Noun | None  # "im Schatten eines Baumes"

    @property
    def outdoors(self) -> bool:
        return self.noun not in INDOORS


Places = tuple[Place, ...]

INDOORS = _some("Küche Zimmer Restaurant Café Büro Stuhl Sofa Tisch Teppich Decke Boden Bühne")


def _at(
    german: str, english: str, names: str, determiner: Determiner = A, *, case: Case = "dat", of: str = ""
) -> Places:
    """A place for each noun, or for each noun with each of those that it belongs to."""
    preposition = Text(german, english)
    owners = _some(of) or (None,)
    pairs = ((noun, owner) for noun in _some(names) for owner in owners)
    return tuple(Place(preposition, noun, determiner, case, owner) for noun, owner in pairs)


def _to(german: str, english: str, names: str, determiner: Determiner = A) -> Places:
    return _at(german, english, names, determiner, case="acc")


MEADOW = _at("auf", "in", "Wiese")
GARDEN = _at("in", "in", "Garten", THE)
GREENS = _at("in", "in", "Park", THE) + GARDEN + MEADOW
BEACH = _at("an", "on", "Strand", THE) + _at("an", "by", "Meer", THE)
SHORES = _at("an", "by", "See Fluss") + _at("an", "on", "Ufer", THE, of="See")
STREET = _at("auf", "on", "Straße", THE)
STREETS = STREET + _at("auf", "in", "Platz")
DOORSTEP = _at("vor", "in front of", "Haus")
FRONTS = DOORSTEP + _at("vor", "in front of", "Gebäude Kirche Geschäft Café")
IGLOO = _at("vor", "in front of", "Iglu")
SHADE = _at("unter", "under", "Baum") + _at("in", "in", "Schatten", THE, of="Baum Haus")
SNOW = _at("in", "in", "Schnee", THE)
GRASS = _at("in", "in", "Gras", THE)
BRIDGE = _at("auf", "on", "Brücke")
MARKET = _at("auf", "at", "Markt")
SALES = MARKET + STREETS
PLAYGROUND = _at("auf", "on", "Spielplatz", THE)
STOPS = _at("an", "at", "Bahnhof", THE) + _at("an", "at", "Bushaltestelle")
OUTDOORS = GREENS + BEACH + SHORES + FRONTS + STREETS + SHADE + PLAYGROUND + STOPS
PLAYGROUNDS = GREENS + BEACH + SNOW + PLAYGROUND
PASTURES = MEADOW + _at("auf", "in", "Feld") + _at("hinter", "behind", "Zaun") + _at("unter", "under", "Baum")
ROOFS = _at("auf", "on", "Dach", THE, of="Haus Turm")
PERCHES = _at("auf", "on", "Zaun Mauer") + _at("in", "in", "Baum") + ROOFS

KITCHEN = _at("in", "in", "Küche")
TABLE = _at("an", "at", "Tisch")
TABLETOP = _at("auf", "on", "Tisch")
CHAIR = _at("auf", "on", "Stuhl")
STAGE = _at("auf", "on", "Bühne")
FLOOR = _at("auf", "on", "Boden", THE)
BENCH = _at("auf", "on", "Bank")
COUCHES = BENCH + _at("auf", "on", "Sofa")
ROOMS = _at("in", "in", "Zimmer Café Restaurant Büro")
DINING = KITCHEN + TABLE + ROOMS
READING = GREENS + TABLE + ROOMS

SEATS = BENCH + _at("auf", "on", "Decke") + _at("auf", "on", "Mauer") + GRASS + BEACH + FLOOR
BEDS = _at("auf", "on", "Decke Teppich") + GRASS + BEACH + SHADE + MEADOW + FLOOR
STANDING = (
    OUTDOORS
    + SNOW
    + BRIDGE
    + STAGE
    + IGLOO
    + _at("neben", "next to", "Auto Brunnen Iglu")
    + _at("hinter", "behind", "Zaun Mauer")
    + _at("zwischen", "between", "Baum Auto", TWO)
    + _at("vor", "in front of", "Eingang", THE, of="Gebäude Haus")
    + _at("an", "at", "Fuß", THE, of="Berg Turm")
)

ACROSS = _to("über", "across", "Wiese Feld Brücke Platz") + _to("über", "across", "Straße", THE)
THROUGH = _to("durch", "through", "Wald") + _to("durch", "through", "Park Stadt Schnee", THE)
DRIVES = _to("über", "across", "Brücke Feld") + _to("durch", "through", "Stadt", THE)
AROUND = _to("um", "around", "Baum Haus See Brunnen")
TOWARDS = _at("zu", "to", "Strand Bahnhof Bushaltestelle", THE)
INTO = _to("in", "into", "Haus Geschäft Restaurant Iglu") + _to("in", "into", "Wald", THE)
OUT_OF = _at("aus", "out of", "Haus Geschäft Kirche")
WATERS = _at("in", "in", "See Fluss") + _at("in", "in", "Meer", THE)
INTO_WATER = _to("in", "into", "See Fluss") + _to("in", "into", "Wasser", THE)
OVER = _to("über", "over", "Zaun Mauer")
ONTO = _to("auf", "onto", "Sofa Bank Mauer Stuhl")
OFF = _at("von", "off", "Mauer Bank") + _at("von", "off", "Sofa Stuhl", THE)


# ---- verbs ----


@dataclass(frozen=True, slots=True)
class Forms:
    """A verb's forms; the third person plural is the infinitive."""

    name: str
    infinitive: str  # without its prefix
    third: str
    english: str
    prefix: str
    itself: str


@cache
def _forms(row: str) -> Forms:
    """Read "zuschauen/schaut zu/watching", as a dictionary would print it."""
    name, third, english = row.split("/")
    finite, _, end = third.partition(" ")
    prefix, itself = ("", end) if end == "sich" else (end, "")
    infinitive = name.removeprefix("sich ").removeprefix(prefix)
    return Forms(name, infinitive, finite, english, prefix, itself)


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """One sense of a verb and what may go with it, so that no dog reads a book."""

    row: str  # "zuschauen/schaut zu/watching"
    who: str  # kinds of noun, and single nouns
    what: str = ""  # nouns
    whom: str = ""  # nouns, in the dative: "gibt einem Kind einen Apfel"
    at: Places = ()
    to: Places = ()
    dative: bool = False  # the case of the object: "hilft einem Mann"
    by: Text = NOTHING  # a preposition before the object, which is then in the dative
    beside: str = ""  # verbs that it can be done on top of: "sitzen gehen"
    base: str = ""  # "read", where it can be a purpose
    own: bool = False  # to one's own: "ihr Auto"
    kin: bool = False  # to one's family: "ihre Tochter"
    each: bool = False  # several do it to one thing each: "Zwei Frauen tragen rote Hüte"
    in_bulk: bool = False  # "verkauft Blumen"
    crowd: bool | None = None  # takes several people, or takes one
    in_clothes: bool = True  # nobody swims in a coat

    @property
    def forms(self) -> Forms:
        return _forms(self.row)

    def finite(self, plural: bool) -> str:
        return self.forms.infinitive if plural else self.forms.third

    def suits(self, nouns: tuple[Noun, ...], many: bool, dressed: bool) -> bool:
        """Whether it can be said of people or animals: of all of them, of so many, of people so dressed."""
        who = self.who.split()
        able = all(noun.kind in who or noun.german in who for noun in nouns)
        return able and self.crowd in (None, many) and (self.in_clothes or not dressed)


HUMAN = "adult child"
STILL = "sitzen stehen"
MOBILE = "sitzen stehen gehen"
PERSONS = "Mann Frau Herr Dame Junge Mädchen Kind Tourist Student Polizist Lehrerin"
CHILDREN = "Junge Mädchen Kind"
ON = Text("auf", "")  # "auf einem Pferd reiten", "riding a horse"
BY = Text("mit", "")
WITH = Text("mit", "with")
PAST = Text("an", "")
TAME = "Hund Katze Kaninchen Pferd Esel Ziege Schaf"
HANDY = "Ball Blume Regenschirm Schild Kamera Luftballon Fahne"
STAND, SIT, LIE = "stehen/steht/standing", "sitzen/sitzt/sitting", "liegen/liegt/lying"
SLEEP, PLAY, WORK = "schlafen/schläft/sleeping", "spielen/spielt/playing", "arbeiten/arbeitet/working"
WORN = "Hemd Jacke Mantel Pullover Hose Anzug Kleid Rock Hut Mütze Helm Schal Stiefel"

WEAR = Verb("tragen/trägt/wearing", HUMAN, WORN, each=True)
DRESSING = (
    Verb("anziehen/zieht an/putting on", HUMAN, "Jacke Mantel Pullover Stiefel", each=True),
    Verb("ausziehen/zieht aus/taking off", HUMAN, "Jacke Mantel Pullover Stiefel", each=True),
)

POSTURES = (
    Verb(STAND, HUMAN, at=STANDING),
    Verb(STAND, "grazer wild Hund", at=PASTURES + SHORES),
    Verb(SIT, HUMAN, at=SEATS + SHADE + TABLE + ROOMS),
    Verb(SIT, f"{HUMAN} pet", at=COUCHES + CHAIR, crowd=False),
    Verb(SIT, "pet baby", at=SEATS),
    Verb(SIT, "Vogel Affe", at=PERCHES),
    Verb(SIT, "Ente", at=SHORES + MEADOW),
    Verb(LIE, f"{HUMAN} pet baby", at=BEDS),
    Verb(LIE, f"{HUMAN} pet", at=COUCHES, crowd=False),
    Verb(LIE, "grazer wild", at=PASTURES + SHORES + GRASS),
    Verb("warten/wartet/waiting", "adult", at=FRONTS + STOPS),
)

MOTIONS = (
    Verb("gehen/geht/walking", HUMAN, to=ACROSS + THROUGH + TOWARDS + INTO + OUT_OF),
    Verb("laufen/läuft/running", f"{HUMAN} Hund", to=ACROSS + THROUGH + AROUND + TOWARDS),
    Verb("laufen/läuft/running", "Katze Kaninchen grazer wild", to=ACROSS + THROUGH + AROUND),
    Verb("springen/springt/jumping", f"{HUMAN} Hund", to=OVER + INTO_WATER + _to("über", "over", "Pfütze")),
    Verb("springen/springt/jumping", "child Hund Katze Affe", to=ONTO + OFF, crowd=False),
    Verb("klettern/klettert/climbing", HUMAN, to=OVER + _to("auf", "up", "Baum Berg Leiter")),
    Verb("klettern/klettert/climbing", "Katze Affe", to=OVER + _to("auf", "up", "Baum")),
    Verb("fliegen/fliegt/flying", "bird", to=_to("über", "over", "Haus See Feld Fluss Kirche")),
    Verb("krabbeln/krabbelt/crawling", "baby", to=_to("über", "across", "Teppich Decke")),
    Verb("krabbeln/krabbelt/crawling", "baby", to=_to("unter", "under", "Tisch Stuhl")),
    Verb("wandern/wandert/hiking", "adult", to=_to("durch", "through", "Wald") + _to("auf", "up", "Berg")),
    Verb("reiten/reitet/riding", HUMAN, "Pferd Esel", to=THROUGH + ACROSS, by=ON, each=True),
    Verb("fahren/fährt/riding", HUMAN, "Fahrrad", to=THROUGH + ACROSS, by=BY, each=True),
    Verb("fahren/fährt/driving", "adult", "Auto Lastwagen Traktor", to=DRIVES, by=BY, crowd=False),
    Verb("vorbeigehen/geht vorbei/walking past", HUMAN, "Geschäft Kirche Brunnen Iglu", by=PAST),
    Verb("entlanggehen/geht entlang/walking along", HUMAN, "Fluss Straße Mauer"),
    Verb("entlanglaufen/läuft entlang/running along", f"{HUMAN} Hund", "Fluss Straße Mauer"),
    Verb("schieben/schiebt/pushing", "adult", "Kinderwagen Fahrrad", to=ACROSS + THROUGH),
    Verb("ziehen/zieht/pulling", HUMAN, "Schlitten Koffer", to=ACROSS + THROUGH),
    Verb("folgen/folgt/following", HUMAN, f"{PERSONS} Hund Katze", to=THROUGH, dative=True),
    Verb("werfen/wirft/throwing", HUMAN, "Ball Stein Stock", to=INTO_WATER + OVER),
)

ACTIVITIES = (
    Verb(PLAY, "child Hund Katze", at=PLAYGROUNDS),
    Verb("tanzen/tanzt/dancing", HUMAN, at=STREETS + BEACH + STAGE + ROOMS),
    Verb("singen/singt/singing", HUMAN, at=STREETS + STAGE + FRONTS, beside=MOBILE),
    Verb("singen/singt/singing", "Vogel", at=PERCHES, beside="sitzen"),
    Verb("lachen/lacht/laughing", f"{HUMAN} baby", beside=MOBILE),
    Verb("lächeln/lächelt/smiling", f"{HUMAN} baby", beside=STILL),
    Verb("weinen/weint/crying", "baby", beside="sitzen liegen"),
    Verb(WORK, "Mann Frau Bauer Gärtner", at=GARDEN + _at("auf", "in", "Feld")),
    Verb(WORK, "Bauarbeiter Feuerwehrmann", at=ROOFS + STREET + BRIDGE),
    Verb(WORK, "Mann Frau Student Lehrerin", at=_at("in", "in", "Büro")),
    Verb(WORK, "Koch Kellnerin", at=KITCHEN + _at("in", "in", "Restaurant Café")),
    Verb(SLEEP, f"{HUMAN} baby pet", at=BEDS, beside="liegen"),
    Verb(SLEEP, "grazer wild", at=PASTURES, beside="liegen"),
    Verb(SLEEP, "Ente", at=SHORES, beside="sitzen"),
    Verb("bellen/bellt/barking", "Hund", at=STREETS + _at("hinter", "behind", "Zaun"), beside="stehen"),
    Verb("telefonieren/telefoniert/talking on the phone", "adult", at=OUTDOORS + ROOMS, beside=MOBILE),
    Verb("angeln/angelt/fishing", HUMAN, at=SHORES + BRIDGE + _at("in", "in", "Boot")),
    Verb("schwimmen/schwimmt/swimming", f"{HUMAN} Hund", at=WATERS, in_clothes=False),
    Verb("schwimmen/schwimmt/swimming", "Ente", at=WATERS),
    Verb("sich unterhalten/unterhält sich/chatting", HUMAN, at=OUTDOORS + ROOMS, beside=STILL, crowd=True),
    # play
    Verb(PLAY, HUMAN, "Gitarre Geige Trompete", at=STREETS + STAGE, beside=STILL),
    Verb(PLAY, HUMAN, "Fußball Tennis", at=GREENS + BEACH + STREETS),
    Verb(PLAY, HUMAN, "Schach", at=READING, beside="sitzen", crowd=True),
    Verb(PLAY, "child", "Ball Hund Puppe", at=PLAYGROUNDS, by=WITH, own=True),
    Verb(PLAY, "pet", "Ball Stock", at=GREENS + GRASS + FLOOR, by=WITH),
    # eat and drink
    Verb("essen/isst/eating", HUMAN, "Apfel Birne Banane Orange Eis", at=GREENS, beside=MOBILE, each=True),
    Verb("essen/isst/eating", HUMAN, "Suppe Pizza Brot Obst Gemüse", at=DINING, beside="sitzen", each=True),
    Verb("fressen/frisst/eating", "grazer Kaninchen", "Gras", at=PASTURES, beside=STILL),
    Verb("fressen/frisst/eating", "Pferd Esel Ziege Bär Kaninchen", "Apfel Birne", beside=STILL, each=True),
    Verb("fressen/frisst/eating", "Affe Elefant", "Banane Orange", beside=STILL, each=True),
    Verb("trinken/trinkt/drinking", "adult", "Kaffee Tee", at=DINING, beside=STILL),
    Verb("trinken/trinkt/drinking", HUMAN, "Milch Wasser", at=DINING, beside=STILL),
    Verb("trinken/trinkt/drinking", "grazer wild Hund", "Wasser", at=SHORES),
    Verb("trinken/trinkt/drinking", "Katze", "Milch", at=KITCHEN),
    Verb("backen/backt/baking", "Koch Mann Frau Dame Mädchen", "Kuchen Pizza Brot", at=KITCHEN),
    Verb("kochen/kocht/cooking", "Koch Mann Frau Kellnerin", "Suppe Gemüse", at=KITCHEN),
    Verb("schneiden/schneidet/cutting", HUMAN, "Brot Gemüse Obst Kuchen", at=KITCHEN + TABLE),
    # read, make, mend, look
    Verb("lesen/liest/reading", HUMAN, "Buch Zeitung Brief", at=READING, beside=STILL, each=True),
    Verb("malen/malt/painting", HUMAN, "Bild Haus Baum Pferd", at=GREENS + ROOMS, beside="sitzen"),
    Verb("bauen/baut/building", HUMAN, "Sandburg", at=BEACH),
    Verb("bauen/baut/building", HUMAN, "Schneemann Iglu", at=SNOW + FRONTS + GARDEN),
    Verb("reparieren/repariert/repairing", "adult", "Auto Fahrrad Motorrad", at=FRONTS + STREET, own=True),
    Verb("reparieren/repariert/repairing", "adult", "Dach Zaun Boot"),
    Verb("waschen/wäscht/washing", HUMAN, "Auto Fahrrad Hund", at=DOORSTEP + GARDEN, own=True),
    Verb("fotografieren/fotografiert/photographing", HUMAN, "Turm Tänzerin Elefant Iglu", beside=STILL),
    Verb("ansehen/sieht an/looking at", HUMAN, "Bild Brunnen Kirche Turm Bär Affe", beside=STILL),
    # buy, sell, garden
    Verb("kaufen/kauft/buying", HUMAN, "Blume Apfel Birne Brot Obst", at=MARKET, in_bulk=True),
    Verb("verkaufen/verkauft/selling", "adult", "Blume Apfel Obst Luftballon", at=SALES, in_bulk=True),
    Verb("pflücken/pflückt/picking", HUMAN, "Apfel Birne Kirsche", at=GARDEN, in_bulk=True),
    Verb("pflücken/pflückt/picking", HUMAN, "Blume", at=GREENS, in_bulk=True),
    Verb("gießen/gießt/watering", HUMAN, "Blume", at=GARDEN + DOORSTEP, in_bulk=True),
    # hold, lift, find, catch
    Verb("halten/hält/holding", HUMAN, HANDY, beside=MOBILE, each=True),
    Verb("halten/hält/holding", HUMAN, "Katze Kaninchen Puppe Korb", beside=STILL),
    Verb("aufheben/hebt auf/picking up", HUMAN, "Ball Stein Blume Stock Buch"),
    Verb("hochheben/hebt hoch/lifting", "adult", "Baby Kind Koffer Korb Stein"),
    Verb("suchen/sucht/looking for", HUMAN, "Ball Hund Katze Buch Koffer", own=True),
    Verb("jagen/jagt/chasing", "Hund", "Katze Ente Kaninchen Ball", at=GREENS + BEACH),
    Verb("jagen/jagt/chasing", "Katze", "Vogel Ball", at=GREENS),
    Verb("fangen/fängt/catching", "child Hund", "Ball", at=GREENS + BEACH),
    # be with others
    Verb("umarmen/umarmt/hugging", HUMAN, "Mann Frau Junge Mädchen Kind", at=STREETS + FRONTS, kin=True),
    Verb("streicheln/streichelt/stroking", HUMAN, TAME, at=GREENS, own=True),
    Verb("füttern/füttert/feeding", HUMAN, TAME, at=GREENS, own=True),
    Verb("füttern/füttert/feeding", HUMAN, "Ente Vogel", at=SHORES + STREETS, in_bulk=True, beside="stehen"),
    Verb("zuschauen/schaut zu/watching", HUMAN, f"{PERSONS} Hund Vogel Affe", dative=True, beside=STILL),
    Verb("zuhören/hört zu/listening to", HUMAN, "Musiker Lehrerin Mann Frau", dative=True, beside=STILL),
    Verb("helfen/hilft/helping", HUMAN, f"{PERSONS} Bauer Gärtner Koch", dative=True, kin=True),
    Verb("zuwinken/winkt zu/waving to", HUMAN, PERSONS, dative=True, kin=True, beside="stehen"),
    # give
    Verb("geben/gibt/giving", HUMAN, "Apfel Banane Blume Ball Korb", PERSONS, kin=True),
    Verb("geben/gibt/giving", HUMAN, "Apfel Banane", "Pferd Affe Elefant Esel"),
    Verb("zeigen/zeigt/showing", HUMAN, "Bild Buch Brief", PERSONS, kin=True),
    Verb("vorlesen/liest vor/reading", "adult", "Buch Brief", CHILDREN, kin=True),
    Verb("zuwerfen/wirft zu/throwing", HUMAN, "Ball Stock", "Hund"),
    Verb("zuwerfen/wirft zu/throwing", HUMAN, "Ball", CHILDREN, kin=True),
    Verb("servieren/serviert/serving", "Kellnerin Koch Mann Frau", "Kaffee Tee Suppe Pizza Kuchen", PERSONS),
)
WITH_PLACE = tuple(verb for verb in ACTIVITIES if verb.at)
WITH_SOMEONE = tuple(  # "hilft einer Frau, die ..."
    verb
    for verb in ACTIVITIES
    if verb.forms.name in ("umarmen", "streicheln", "füttern", "zuschauen", "zuhören", "helfen", "zuwinken")
)

SIMPLE = (
    Verb("laufen/läuft/running", f"{HUMAN} pet grazer wild"),
    Verb("springen/springt/jumping", f"{HUMAN} pet"),
    Verb("warten/wartet/waiting", "adult"),
    Verb("fliegen/fliegt/flying", "bird"),
    *(verb for verb in ACTIVITIES if not verb.what),
)

PURPOSES = {  # "Ein Hund springt, um einen Ball zu fangen."
    Verb("springen/springt/jumping", "child Hund"): Verb(
        "fangen/fängt/catching", HUMAN, "Ball", base="catch"
    ),
    Verb("sich bücken/bückt sich/bending down", HUMAN): Verb(
        "aufheben/hebt auf/picking up", HUMAN, "Ball Stein Blume Buch", base="pick up"
    ),
    Verb("gehen/geht/walking", HUMAN, to=_to("auf", "to", "Markt") + _to("in", "into", "Geschäft")): Verb(
        "kaufen/kauft/buying", HUMAN, "Blume Apfel Brot", in_bulk=True, base="buy"
    ),
    Verb("klettern/klettert/climbing", HUMAN, to=_to("auf", "up", "Baum Leiter")): Verb(
        "pflücken/pflückt/picking", HUMAN, "Apfel Kirsche", in_bulk=True, base="pick"
    ),
    Verb("klettern/klettert/climbing", "Mann Bauarbeiter", to=_to("auf", "up", "Leiter")): Verb(
        "reparieren/repariert/repairing", HUMAN, "Dach", base="repair"
    ),
    Verb("gehen/geht/walking", HUMAN, to=_at("zu", "to", "See Fluss")): Verb(
        "angeln/angelt/fishing", HUMAN, base="fish"
    ),
}

REASONS = (  # "Eine Frau trägt einen warmen Mantel, weil es schneit."
    (
        Verb(WEAR.row, HUMAN, "Jacke Mantel Mütze Schal", each=True),
        Text(", weil es schneit", "because it is snowing"),
    ),
    (
        Verb("halten/hält/holding", HUMAN, "Regenschirm", each=True),
        Text(", weil es regnet", "because it is raining"),
    ),
)
WEATHER = (
    Text(", obwohl es regnet", "although it is raining"),
    Text(", obwohl es schneit", "although it is snowing"),
)
TIMES = (
    Text("am Morgen", "in the morning"),
    Text("am Abend", "in the evening"),
    Text("an einem sonnigen Tag", "on a sunny day"),
    Text("an einem kalten Tag", "on a cold day"),
    Text("bei schönem Wetter", "in fine weather"),
    Text("bei Sonnenuntergang", "at sunset"),
)

THINGS = (  # "Auf einem Tisch steht eine Tasse."
    Verb(STAND, "Auto Fahrrad Motorrad Lastwagen Kinderwagen", at=FRONTS + STREET),
    Verb(STAND, "Traktor", at=DOORSTEP + _at("auf", "in", "Feld")),
    Verb(STAND, "Tasse Lampe Korb", at=TABLETOP),
    Verb(STAND, "Koffer Korb", at=_at("neben", "next to", "Bank Stuhl Auto")),
    Verb(LIE, "Ball Hut Puppe", at=COUCHES + GRASS + FLOOR),
    Verb(LIE, "Buch Brief Zeitung Kamera", at=COUCHES + TABLETOP + CHAIR),
    Verb(LIE, "Boot", at=BEACH + _at("an", "on", "Ufer", THE, of="See")),
)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A place where something goes on: "Ein Hund liegt unter einer Bank, auf der eine Frau sitzt"."""

    places: Places
    opening: Text  # the preposition before the relative pronoun
    verb: Verb


SCENES = (
    Scene(_at("unter", "under", "Bank Stuhl Sofa"), Text("auf", "on which"), Verb(SIT, CHILDREN)),
    Scene(_at("neben", "next to", "Bank Sofa"), Text("auf", "on which"), Verb(SIT, PERSONS)),
    Scene(_at("neben", "next to", "Stuhl"), Text("auf", "on which"), Verb(SIT, "Hund Katze Kaninchen")),
    Scene(_at("unter", "under", "Tisch"), Text("an", "at which"), Verb(SIT, PERSONS)),
    Scene(_at("unter", "under", "Baum"), Text("in", "in which"), Verb(SIT, "Vogel Affe")),
    Scene(_at("hinter", "behind", "Zaun Mauer"), Text("auf", "on which"), Verb(SIT, "Vogel Katze")),
    Scene(_at("neben", "next to", "Haus Auto"), Text("vor", "in front of which"), Verb(STAND, PERSONS)),
    Scene(_at("neben", "next to", "Bank Stuhl", TWO), Text("auf", "on which"), Verb(SLEEP, "Hund Katze")),
)


# ---- clauses ----


@dataclass(frozen=True, slots=True)
class Subject:
    """Who does something: the phrase, and all that the rest of the sentence must agree with."""

    text: Text
    head: str  # its word in a combination
    nouns: tuple[Noun, ...]  # a verb must suit them all
    plural: bool
    many: bool  # more than one, be it in the singular: "eine Gruppe"
    pronoun: Text = NOTHING
    possessive: Determiner | None = None
    relative: Text = NOTHING
    sex: str = ""  # he, she; empty where it is mixed or unsaid
    dressed: bool = False  # what they wear is already said

    @property
    def be(self) -> str:
        return "are" if self.plural else "is"


@dataclass(frozen=True, slots=True)
class Predicate:
    """A verb and its complements, not yet in the order of any clause."""

    verb: Verb
    time: Text = NOTHING
    whom: Text = NOTHING
    where: Text = NOTHING
    what: Text = NOTHING
    whither: Text = NOTHING
    outdoors: bool = False

    @property
    def middle(self) -> str:
        """The German between the finite verb and the end of the clause."""
        return _join(self.time.de, self.whom.de, self.where.de, self.what.de, self.whither.de)

    @property
    def rest(self) -> str:
        """The English after the verb."""
        whom = _join("to", self.whom.en) if self.whom.en else ""
        return _join(self.what.en, whom, self.where.en, self.whither.en, self.time.en)

    def coordinated(self, subject: Subject) -> Text:
        """Without its subject: "... und schaut im Park einem Hund zu"."""
        finite = self.verb.finite(subject.plural)
        de = _join(finite, self.verb.forms.itself, self.middle, self.verb.forms.prefix)
        return Text(de, _join(self.verb.forms.english, self.rest))

    def main(self, subject: Subject) -> Text:
        """Verb second: "Ein Mann schaut im Park einem Hund zu"."""
        return _phrase(subject.text, Text("", subject.be), self.coordinated(subject))

    def inverted(self, subject: Subject, front: Text) -> Text:
        """Verb second after something else: "Am Abend schaut ein Mann einem Hund zu"."""
        finite = self.verb.finite(subject.plural)
        forms = self.verb.forms
        de = _join(front.de, finite, forms.itself, subject.text.de, self.middle, forms.prefix)
        return Text(de, _join(front.en, ",", subject.text.en, subject.be, forms.english, self.rest))

    def verb_final(self, subject: Subject, opening: Text) -> Text:
        """A subordinate clause: ", der im Park einem Hund zuschaut,"."""
        finite = self.verb.forms.prefix + self.verb.finite(subject.plural)
        de = _join(",", opening.de, self.verb.forms.itself, self.middle, finite, ",")
        return Text(de, _join(opening.en, subject.be, self.verb.forms.english, self.rest))

    def purpose(self) -> Text:
        """An infinitive clause: ", um einen Ball aufzuheben"."""
        forms = self.verb.forms
        infinitive = f"{forms.prefix}zu{forms.infinitive}" if forms.prefix else f"zu {forms.infinitive}"
        return Text(
            _join(", um", forms.itself, self.middle, infinitive), _join("to", self.verb.base, self.rest)
        )


def _phrase(*parts: Text) -> Text:
    return Text(_join(*(part.de for part in parts)), _join(*(part.en for part in parts)))


def _nominative(phrase: NounPhrase) -> Text:
    return Text(phrase.german("nom"), phrase.english())


def _prepositional(preposition: Text, phrase: NounPhrase, case: Case) -> Text:
    return Text(contracted(preposition.de, phrase.german(case)), _join(preposition.en, phrase.english()))


def _written(words: str) -> str:
    """A capital, a full stop, and no comma twice or before the stop."""
    line = words.replace(" ,", ",").replace(",,", ",").rstrip(",")
    return line[0].upper() + line[1:] + "."


def agreement(phrase: NounPhrase) -> Subject:
    """The subject that a noun phrase makes."""
    noun, plural = phrase.noun, phrase.plural
    human = noun.kind in ("adult", "child", "baby")
    pronoun = THEY if plural else Text(PRONOUNS[noun.article], noun.pronoun)
    if human and noun.pronoun == "it" and not plural:
        pronoun = NOTHING  # "das Kind", "das Baby": no English pronoun is right for every one
    possessive = None if noun.article == "das" else POSSESSIVES.get(noun.pronoun)
    return Subject(
        _nominative(phrase),
        noun.german,
        (noun,),
        plural=plural,
        many=plural,
        pronoun=pronoun,
        possessive=THEIR if plural else possessive,
        relative=Text(relative_pronoun(noun, "nom", plural=plural), "who" if human else "that"),
        sex=noun.pronoun,
        dressed=bool(phrase.modifier.de),
    )


def _possible(noun: Noun, subject: Subject) -> bool:
    """Whether something can be the object: no man hugs a man, no man wears a dress."""
    return noun not in subject.nouns and noun.worn_by in ("", subject.sex)


@cache
def _verbs(table: tuple[Verb, ...], nouns: tuple[Noun, ...], many: bool, dressed: bool) -> tuple[Verb, ...]:
    return tuple(verb for verb in table if verb.suits(nouns, many, dressed))


@cache
def _at_once(nouns: tuple[Noun, ...], many: bool) -> tuple[tuple[Verb, Verb], ...]:
    """What can be done at one time: a posture or movement, and something on top of it."""
    return tuple(
        (base, activity)
        for activity in _verbs(ACTIVITIES, nouns, many, True)
        for base in _verbs(POSTURES + MOTIONS, nouns, many, True)
        if base.forms.name in activity.beside.split() and not base.what
    )


# ---- writer ----


class Writer:
    """Draws captions from one seeded stream; `combinations` collects those of the caption being written."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
        self.combinations: list[str] = []

    def caption(self) -> tuple[Pair, tuple[str, ...]]:
        """One caption and its combinations."""
        self.combinations.clear()
        text = self.one_of(STRUCTURES)(self)
        return Pair(_written(text.de), _written(text.en)), tuple(self.combinations)

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def one_of(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def combine(self, subject: Subject, verb: Verb, complement: str) -> None:
        self.combinations.append(f"{subject.head} {verb.forms.name} {complement}")

    # ---- noun phrases

    def noun_phrase(
        self, noun: Noun, determiner: Determiner, *, plural: bool = False, adjective: float = 0.4
    ) -> NounPhrase:
        """A noun, with one of its adjectives at the chance given."""
        chosen = None
        if noun.adjectives and self.chance(adjective):
            chosen = ADJECTIVES[self.one_of(noun.adjectives.split())]
            self.combinations.append(f"{chosen.german} {noun.german}")
        return NounPhrase(noun, determiner, chosen, plural)

    def described(
        self, noun: Noun, determiner: Determiner, *, plural: bool = False, clothes: float = 0.2
    ) -> NounPhrase:
        """A noun phrase that, for a person, may say what they wear."""
        phrase = self.noun_phrase(noun, determiner, plural=plural)
        if noun.kind in ("adult", "child") and self.chance(clothes):
            phrase = replace(phrase, modifier=self.clothes(noun, THE if determiner is THE else A, plural))
        return phrase

    def clothes(self, wearer: Noun, determiner: Determiner, plural: bool) -> Text:
        """What someone is dressed in: "in einem roten Hemd", "mit langen Haaren"."""
        preposition = self.one_of((Text("in", "in"), Text("mit", "with")))
        accessories = WITH_ADULTS if wearer.kind == "adult" else WITH_CHILDREN
        garments = ON_THE_BODY if preposition.de == "in" else accessories
        noun = self.one_of([garment for garment in garments if garment.worn_by in ("", wearer.pronoun)])
        plural = plural or noun.only_plural
        if plural and determiner is A:
            determiner = BARE
        phrase = self.noun_phrase(noun, determiner, plural=plural, adjective=1)
        return _prepositional(preposition, phrase, "dat")

    def counted(self, noun: Noun, several: float = 0.2) -> NounPhrase:
        """One, or at the chance given several."""
        if self.chance(several):
            return self.noun_phrase(noun, self.one_of(QUANTITIES), plural=True)
        return self.noun_phrase(noun, A)

    def place(self, place: Place) -> Text:
        adjective = 0.4 if place.determiner is A else 0.15
        plural = place.determiner is TWO
        phrase = self.noun_phrase(place.noun, place.determiner, plural=plural, adjective=adjective)
        if place.of:
            owner = self.noun_phrase(place.of, A)
            phrase = replace(phrase, modifier=Text(owner.german("gen"), _join("of", owner.english())))
        return _prepositional(place.preposition, phrase, place.case)

    def thing(self, noun: Noun, subject: Subject, verb: Verb) -> NounPhrase:
        """What a verb is about, with the determiner that suits the noun, the verb and the subject."""
        if not noun.plural:
            return self.noun_phrase(noun, BARE)
        if noun.only_plural or verb.in_bulk or (verb.each and subject.many):
            return self.noun_phrase(noun, BARE, plural=True)
        if verb.own and subject.possessive and self.chance(0.4):
            return self.noun_phrase(noun, subject.possessive)
        if noun.kind == "thing":
            return self.noun_phrase(noun, A)
        return self.someone(noun, subject, verb)

    def someone(self, noun: Noun, subject: Subject, verb: Verb) -> NounPhrase:
        """A person or animal, at times of the subject's family."""
        if verb.kin and subject.possessive and not subject.many and self.chance(0.4):
            relation = self.one_of(KIN[subject.nouns[0].kind])
            return self.noun_phrase(relation, subject.possessive, adjective=0.2)
        if self.chance(0.15):
            return self.described(noun, self.one_of(QUANTITIES), plural=True)
        return self.described(noun, THE if self.chance(0.15) else A)

    # ---- subjects

    def subject(
        self,
        shapes: Sequence[Shape],
        *,
        clothes: float = 0.2,
        fit: Callable[[Subject], bool] = lambda subject: True,
    ) -> Subject:
        """A subject of one of the shapes, drawn again until it is fit."""
        mark = len(self.combinations)
        while not fit(subject := self.one_of(shapes)(self, clothes)):
            del self.combinations[mark:]
        return subject

    def person(self, clothes: float) -> Subject:
        noun = self.one_of(COMMON if self.chance(0.6) else ADULTS)
        return agreement(self.described(noun, THE if self.chance(0.2) else A, clothes=clothes))

    def people(self, clothes: float) -> Subject:
        noun = self.one_of(GROUPED if self.chance(0.7) else ADULTS)
        determiner = THE if noun.german != "Mensch" and self.chance(0.15) else self.one_of(QUANTITIES)
        return agreement(self.described(noun, determiner, plural=True, clothes=clothes))

    def group(self, clothes: float) -> Subject:
        noun = self.one_of(GROUPED)
        group = self.noun_phrase(NOUNS["Gruppe"], A, adjective=0.2)
        members = self.described(noun, BARE, plural=True, clothes=clothes)
        text = _nominative(replace(group, modifier=_prepositional(Text("von", "of"), members, "dat")))
        dressed = bool(members.modifier.de)
        return Subject(text, noun.german, (noun,), plural=False, many=True, sex=noun.pronoun, dressed=dressed)

    def collective(self, clothes: float) -> Subject:
        noun = self.one_of(COLLECTIVES)
        return Subject(_nominative(self.noun_phrase(noun, A)), noun.german, (noun,), plural=False, many=True)

    def pair(self, clothes: float) -> Subject:
        first = self.one_of(COMMON)
        own = agreement(NounPhrase(first, A)).possessive
        if own and self.chance(0.4):
            return self.together(first, self.one_of(KIN[first.kind]), own)
        return self.together(first, self.one_of(_some(COMPANY[first.german])), A)

    def walker(self, clothes: float) -> Subject:
        first = self.one_of(_some("Mann Frau Junge"))
        return self.together(first, NOUNS["Hund"], POSSESSIVES[first.pronoun])

    def together(self, first: Noun, second: Noun, determiner: Determiner) -> Subject:
        """Two as one subject: "ein Mann und sein Hund"."""
        one = self.noun_phrase(first, A, adjective=0.3)
        other = self.noun_phrase(second, determiner, adjective=0.3)
        text = _phrase(_nominative(one), AND, _nominative(other))
        nouns = (first,) if second.kind == "kin" else (first, second)
        return Subject(text, f"{first.german}+{second.german}", nouns, plural=True, many=True, pronoun=THEY)

    def named(self, clothes: float) -> Subject:
        names = tuple(NAMES)
        name = self.one_of(names)
        noun = NOUNS["Mann" if NAMES[name] == "he" else "Frau"]
        if self.chance(0.25):
            other = self.one_of([other for other in names if other != name])
            text = _phrase(Text(name, name), AND, Text(other, other))
            return Subject(text, f"{name}+{other}", (noun,), plural=True, many=True, pronoun=THEY)
        return replace(agreement(NounPhrase(noun, A)), text=Text(name, name), head=name, relative=NOTHING)

    def animal(self, clothes: float) -> Subject:
        noun = self.one_of(PETS if self.chance(0.4) else ANIMALS)
        phrase = self.noun_phrase(noun, THE) if self.chance(0.15) else self.counted(noun, several=0.25)
        return agreement(phrase)

    def baby(self, clothes: float) -> Subject:
        return agreement(self.noun_phrase(NOUNS["Baby"], A))

    # ---- predicates

    def verb(self, subject: Subject, *tables: tuple[Verb, ...]) -> Verb:
        """A verb for the subject, from any of the tables that hold one."""
        state = subject.nouns, subject.many, subject.dressed
        return self.one_of(self.one_of([verbs for table in tables if (verbs := _verbs(table, *state))]))

    def predicate(
        self,
        subject: Subject,
        verb: Verb,
        *,
        where: float = 0.5,
        time: float = 0,
        what: NounPhrase | None = None,
    ) -> Predicate:
        """A verb with its complements; `where` and `time` are the chances that these are said."""
        place = self.one_of(verb.at) if verb.at and self.chance(where) else None
        route = self.one_of(verb.to) if verb.to else None
        spots = [spot for spot in (place, route) if spot]
        for spot in spots:
            self.combine(subject, verb, spot.noun.german)
        outdoors = bool(spots) and all(spot.outdoors for spot in spots)
        return Predicate(
            verb,
            time=self.one_of(TIMES) if outdoors and self.chance(time) else NOTHING,
            whom=self.whom(subject, verb),
            where=self.place(place) if place else NOTHING,
            what=self.what(subject, verb, what),
            whither=self.place(route) if route else NOTHING,
            outdoors=outdoors,
        )

    def whom(self, subject: Subject, verb: Verb) -> Text:
        if not verb.whom:
            return NOTHING
        noun = self.one_of([noun for noun in _some(verb.whom) if _possible(noun, subject)])
        phrase = self.someone(noun, subject, verb)
        self.combine(subject, verb, phrase.noun.german)
        return Text(phrase.german("dat"), phrase.english())

    def what(self, subject: Subject, verb: Verb, phrase: NounPhrase | None = None) -> Text:
        """The object, be it `phrase` or one of the verb's own."""
        if not verb.what:
            return NOTHING
        if phrase is None:
            noun = self.one_of([noun for noun in _some(verb.what) if _possible(noun, subject)])
            phrase = self.thing(noun, subject, verb)
        self.combine(subject, verb, phrase.noun.german)
        return _prepositional(verb.by, phrase, "dat" if verb.dative or verb.by.de else "acc")

    def worn(self, subject: Subject) -> Predicate:
        """Wearing one thing, or one thing on the body and another on the head."""
        if self.chance(0.65):
            return self.predicate(subject, WEAR)
        pair = [noun for noun in ON_THE_BODY if _possible(noun, subject)], ON_THE_HEAD
        phrases = [self.thing(self.one_of(nouns), subject, WEAR) for nouns in pair]
        body, head = (self.what(subject, WEAR, phrase) for phrase in phrases)
        return Predicate(WEAR, what=_phrase(body, AND, head))

    def aside(self, subject: Subject, table: tuple[Verb, ...], *, where: float = 0.3) -> Text:
        """A relative clause: what they wear, or what else they do."""
        if not subject.dressed and WEAR.suits(subject.nouns, subject.many, False) and self.chance(0.3):
            predicate = self.worn(subject)
        else:
            verb = self.verb(subject, table)
            predicate = self.predicate(subject, verb, where=1 if verb in POSTURES else where)
        return predicate.verb_final(subject, subject.relative)

    # ---- captions

    def short(self) -> Text:
        """Ein Hund bellt."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, SIMPLE), where=0).main(subject)

    def being(self) -> Text:
        """Eine Gruppe von Menschen steht vor einem Gebäude."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, POSTURES), where=1, time=0.1).main(subject)

    def moving(self) -> Text:
        """Ein kleiner Hund läuft über eine grüne Wiese."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, MOTIONS), time=0.1).main(subject)

    def doing(self) -> Text:
        """Ein kleiner Junge baut am Strand eine Sandburg."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, ACTIVITIES), time=0.1).main(subject)

    def wearing(self) -> Text:
        """Eine Frau trägt einen roten Rock und einen gelben Hut."""
        subject = self.subject(PEOPLE, clothes=0)
        if self.chance(0.6):
            return self.worn(subject).main(subject)
        return self.predicate(subject, self.verb(subject, DRESSING)).main(subject)

    def joined(self) -> Text:
        """Ein Mann sitzt auf einer Bank und liest ein Buch."""
        subject = self.subject(ANYONE)
        base, activity = self.one_of(_at_once(subject.nouns, subject.many))
        main = self.predicate(subject, base, where=1).main(subject)
        return _phrase(main, AND, self.predicate(subject, activity, where=0).coordinated(subject))

    def meanwhile(self) -> Text:
        """Eine Frau geht durch einen Park, während sie einen Apfel isst."""
        subject = self.subject(ANYONE, fit=lambda subject: bool(subject.pronoun.de))
        base, activity = self.one_of(_at_once(subject.nouns, subject.many))
        main = self.predicate(subject, base, where=1).main(subject)
        opening = _phrase(WHILE, subject.pronoun)
        return _phrase(main, self.predicate(subject, activity, where=0).verb_final(subject, opening))

    def side_by_side(self) -> Text:
        """Ein Mann kocht Suppe, während ein Kind ein Bild malt."""
        subject = self.subject(ANYONE)
        main = self.predicate(subject, self.verb(subject, ACTIVITIES), where=0.3).main(subject)
        other = self.subject(ANYONE, clothes=0, fit=lambda other: not set(other.nouns) & set(subject.nouns))
        doing = self.predicate(other, self.verb(other, ACTIVITIES), where=0)
        return _phrase(main, doing.verb_final(other, _phrase(WHILE, other.text)))

    def related(self) -> Text:
        """Ein Mann, der einen roten Hut trägt, sitzt auf einer Bank."""
        subject = self.subject(ANYONE, clothes=0.1, fit=lambda subject: bool(subject.relative.de))
        base, activity = self.one_of(_at_once(subject.nouns, subject.many))
        if self.chance(0.5):
            aside = self.aside(subject, (activity,), where=0)
            main = self.predicate(subject, base, where=1)
        else:
            aside = self.aside(subject, (base,))
            main = self.predicate(subject, activity, where=0)
        return main.main(replace(subject, text=_phrase(subject.text, aside)))

    def caring(self) -> Text:
        """Ein Mädchen füttert ein Pferd, das hinter einem Zaun steht."""
        subject = self.subject(PEOPLE)
        verb = self.verb(subject, WITH_SOMEONE)
        noun = self.one_of([noun for noun in _some(verb.what) if _possible(noun, subject)])
        phrase = self.counted(noun)
        main = self.predicate(subject, verb, where=0, what=phrase).main(subject)
        return _phrase(main, self.aside(agreement(phrase), POSTURES))

    def near(self) -> Text:
        """Ein Hund liegt neben einem Jungen, der ein Bild malt."""
        subject = self.subject(ANYONE, clothes=0.1)
        verb = self.verb(subject, POSTURES)
        noun = self.one_of([noun for noun in _some(PERSONS) if noun not in subject.nouns])
        phrase = self.counted(noun)
        self.combine(subject, verb, noun.german)
        main = Predicate(verb, where=_prepositional(Text("neben", "next to"), phrase, "dat")).main(subject)
        other = agreement(phrase)
        activities = tuple(activity for _, activity in _at_once(other.nouns, other.many))
        return _phrase(main, self.aside(other, activities))

    def scene(self) -> Text:
        """Eine Katze liegt neben einem Stuhl, auf dem ein Kind sitzt."""
        scene = self.one_of(SCENES)
        subject = self.subject(ANYONE, fit=lambda subject: subject.nouns[0].kind == "pet")
        spot = self.one_of(scene.places)
        several = spot.determiner is TWO
        verb = self.verb(subject, POSTURES)
        self.combine(subject, verb, spot.noun.german)
        main = Predicate(verb, where=self.place(spot)).main(subject)
        noun = self.one_of([noun for noun in _some(scene.verb.who) if noun not in subject.nouns])
        actor = agreement(self.noun_phrase(noun, TWO if several else A, plural=several))
        pronoun = relative_pronoun(spot.noun, "dat", plural=several)
        opening = _phrase(scene.opening, Text(pronoun, ""), actor.text)
        return _phrase(main, Predicate(scene.verb).verb_final(actor, opening))

    def fronted(self) -> Text:
        """Am Abend spielen zwei Männer in einem Café Schach."""
        subject = self.subject(ANYONE)
        predicate = self.predicate(subject, self.verb(subject, WITH_PLACE), where=1, time=0.5)
        if predicate.time.de:
            return replace(predicate, time=NOTHING).inverted(subject, predicate.time)
        return replace(predicate, where=NOTHING).inverted(subject, predicate.where)

    def intending(self) -> Text:
        """Ein Hund springt, um einen Ball zu fangen."""
        bases = tuple(PURPOSES)
        subject = self.subject(
            ANYONE, fit=lambda subject: bool(_verbs(bases, subject.nouns, subject.many, True))
        )
        verb = self.verb(subject, bases)
        purpose = self.predicate(subject, PURPOSES[verb]).purpose()
        return _phrase(self.predicate(subject, verb).main(subject), purpose)

    def braving(self) -> Text:
        """Ein Mann steht auf einer Brücke, obwohl es regnet."""
        subject = self.subject(ANYONE)
        predicate = self.predicate(subject, self.verb(subject, POSTURES, MOTIONS), where=1)
        main = predicate.main(subject)
        return _phrase(main, self.one_of(WEATHER)) if predicate.outdoors else main

    def reasoning(self) -> Text:
        """Eine Frau trägt einen warmen Mantel, weil es schneit."""
        subject = self.subject(PEOPLE, clothes=0)
        verb, reason = self.one_of(REASONS)
        return _phrase(self.predicate(subject, verb).main(subject), reason)

    def lifeless(self) -> Text:
        """Auf einem Tisch steht eine Tasse."""
        verb = self.one_of(THINGS)
        noun = self.one_of(_some(verb.who))
        subject = agreement(self.counted(noun))
        predicate = self.predicate(subject, verb, where=1)
        if self.chance(0.4):
            return predicate.main(subject)
        german = replace(predicate, where=NOTHING).inverted(subject, predicate.where).de
        return Text(german, _join("there", subject.be, subject.text.en, predicate.where.en))


def _often(*options: tuple[T, int]) -> tuple[T, ...]:
    """Each option as many times as its weight says, so that drawing one is drawing evenly."""
    return tuple(option for option, weight in options for _ in range(weight))


Shape = Callable[[Writer, float], Subject]

PEOPLE: Sequence[Shape] = _often(
    (Writer.person, 10),
    (Writer.people, 4),
    (Writer.group, 3),
    (Writer.collective, 1),
    (Writer.pair, 2),
    (Writer.named, 2),
)
ANYONE: Sequence[Shape] = _often(
    *((shape, 1) for shape in PEOPLE), (Writer.animal, 6), (Writer.baby, 1), (Writer.walker, 1)
)
STRUCTURES = _often(
    (Writer.short, 3),
    (Writer.being, 10),
    (Writer.moving, 10),
    (Writer.doing, 22),
    (Writer.wearing, 5),
    (Writer.joined, 9),
    (Writer.meanwhile, 7),
    (Writer.side_by_side, 6),
    (Writer.related, 9),
    (Writer.caring, 6),
    (Writer.near, 4),
    (Writer.scene, 4),
    (Writer.fronted, 8),
    (Writer.intending, 4),
    (Writer.braving, 4),
    (Writer.reasoning, 2),
    (Writer.lifeless, 8),
)


# ---- corpus ----


@cache
def home(combination: str) -> str:
    """The split that a combination is for: one in 32 for each held-out split."""
    byte = hashlib.sha256(combination.encode()).digest()[0]
    return "val" if byte < 8 else "test" if byte < 16 else "train"


@dataclass(frozen=True, slots=True)
class Draft:
    """A caption, the split it is for, all of its combinations, and those that training must not see."""

    split: str
    pair: Pair
    combinations: tuple[str, ...]
    held_out: tuple[str, ...]


def drafts(seed: int = SEED) -> Iterator[Draft]:
    """Captions without end; no two share a source or a target."""
    writer = Writer(seed)
    seen: set[str] = set()
    while True:
        pair, combinations = writer.caption()
        held_out = tuple(combination for combination in combinations if home(combination) != "train")
        homes = sorted({home(combination) for combination in held_out}) or ["train"]
        longest = 1 + max(pair.source.count(" "), pair.target.count(" "))
        if longest > MAX_WORDS or len(homes) > 1 or pair.source in seen or pair.target in seen:
            continue
        seen.update((pair.source, pair.target))
        yield Draft(homes[0], pair, combinations, held_out)


def words(pair: Pair) -> list[str]:
    """The words of both sides as they are written."""
    return re.findall(r"\w+", f"{pair.source} {pair.target}")


def generate() -> dict[str, list[Pair]]:
    """The corpus by split, "train", "val" and "test": German sources, English targets.

    The same on every machine. Each word of a held-out caption stands in "train" `MIN_SEEN` times or more.
    """
    captions = drafts()
    train: list[Pair] = []
    waiting: list[Draft] = []
    while len(train) < SIZES["train"]:
        draft = next(captions)
        if draft.split == "train":
            train.append(draft.pair)
        else:
            waiting.append(draft)
    splits = {"train": train, "val": [], "test": []}
    seen = Counter(word for pair in train for word in words(pair))
    used: Counter[str] = Counter()
    for draft in chain(waiting, captions):
        split = splits[draft.split]
        familiar = all(seen[word] >= MIN_SEEN for word in words(draft.pair))
        varied = all(used[combination] < MAX_USED for combination in draft.held_out)
        if familiar and varied and len(split) < SIZES[draft.split]:
            split.append(draft.pair)
            used.update(draft.held_out)
        if all(len(splits[name]) == size for name, size in SIZES.items()):
            break
    return splits
