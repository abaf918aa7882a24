"""A corpus of image captions, German and English, written by a small grammar: demo data and test data.

The file reads from the ground up: German inflection, the words, the places, the verbs, and last the writer
that draws captions. Every choice comes from one seeded stream of `random.Random.random()`, which Python keeps the
same from release to release, and no set is ever iterated, so the text is the same on every machine.

Held-out sentences combine known words in unseen ways. A combination is an adjective with its noun ("rot Hut") or
a subject with its verb and one complement ("Hund schlafen Sofa"), in dictionary forms, so that inflecting it
does not hide it. A stable hash gives each combination to one split: sentences of "train" hold training
combinations only, and each sentence of "val" or "test" holds at least one of its own.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Literal, TypeVar

from nmt.data.corpus import Pair

VERSION = "1"  # changes with the text, as the hash in the tests does
SIZES: Mapping[str, int] = {"train": 4000, "val": 200, "test": 200}
MAX_WORDS = 22
MIN_SEEN = 3  # how often a held-out word stands in the training split at least
SEED = 20160511

T = TypeVar("T")
Split = Literal["train", "val", "test"]


# ---------------------------------------------------------------------------------------------------- inflection

Column = Literal["der", "die", "das", "plural"]  # a noun's gender, named by its article; the plural has none
Case = Literal["nom", "acc", "dat", "gen"]
Endings = Mapping[Case, Mapping[Column, str]]

COLUMNS: tuple[Column, ...] = ("der", "die", "das", "plural")


def _endings(*, nom: str, acc: str, dat: str, gen: str) -> Endings:
    """Endings by case and column; a row lists der, die, das, plural, and "-" is no ending."""

    def row(line: str) -> dict[Column, str]:
        return {column: ending.strip("-") for column, ending in zip(COLUMNS, line.split(), strict=True)}

    return {"nom": row(nom), "acc": row(acc), "dat": row(dat), "gen": row(gen)}


DEFINITE = _endings(nom="er ie as ie", acc="en ie as ie", dat="em er em en", gen="es er es er")  # after d-
INDEFINITE = _endings(
    nom="- e - e", acc="en e - e", dat="em er em en", gen="es er es er"
)  # after ein-, sein-, ihr-
UNINFLECTED = _endings(nom="- - - -", acc="- - - -", dat="- - - -", gen="- - - -")
STRONG = _endings(nom="er e es e", acc="en e es e", dat="em er em en", gen="en er en er")
WEAK = _endings(nom="e e e en", acc="en e e en", dat="en en en en", gen="en en en en")
MIXED = _endings(nom="er e es en", acc="en e es en", dat="en en en en", gen="en en en en")

CONTRACTIONS = {
    "an dem": "am",
    "an das": "ans",
    "in dem": "im",
    "in das": "ins",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}


@dataclass(frozen=True, slots=True)
class Text:
    """The same phrase in both languages."""

    de: str
    en: str


NOTHING = Text("", "")


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """An article, possessive, number word or quantifier, and the adjective endings that it asks for."""

    stem: str
    english: str
    endings: Endings
    adjectives: Endings


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; `stem` where its endings do not simply follow the dictionary form (hoch, hoh-er)."""

    german: str
    english: str
    stem: str = ""
    inflected: bool = True

    def form(self, endings: Endings, case: Case, column: Column) -> str:
        return (self.stem or self.german) + endings[case][column] if self.inflected else self.german


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; without a plural it is a mass noun and takes no article.

    `weak` is the form of every singular case but the nominative (den Jungen). `pronoun` is the English one, and what
    a man or woman wears goes by it. `adjectives` and `english_plural` default to none and to a plain "s".
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
    pronoun: str = "it"
    only_plural: bool = False  # Stiefel, Haare: always spoken of in the plural
    english_article: bool = True  # "in black trousers", "with long hair"
    worn_by: str = ""  # he, she; by everyone if empty

    def form(self, case: Case, plural: bool) -> str:
        if plural:
            return self.plural + "n" if case == "dat" and self.plural[-1] not in "ns" else self.plural
        if case == "nom":
            return self.german
        if case == "gen":
            return self.weak or self.genitive or (self.german if self.article == "die" else self.german + "s")
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
        words = [self.determiner.stem + self.determiner.endings[case][column]]
        if self.adjective:
            words.append(self.adjective.form(self.determiner.adjectives, case, column))
        return _join(*words, self.noun.form(case, self.plural), self.modifier.de)

    def english(self) -> str:
        adjective = self.adjective.english if self.adjective else ""
        core = _join(adjective, self.noun.english_form(self.plural), self.modifier.en)
        determiner = self.determiner.english
        if determiner == "a":
            determiner = "" if not self.noun.english_article else "an" if core[0] in "aeiou" else "a"
        return _join(determiner, core)


def relative_pronoun(noun: Noun, case: Case, *, plural: bool) -> str:
    """The definite article, but for the dative plural."""
    if plural and case == "dat":
        return "denen"
    return THE.stem + DEFINITE[case]["plural" if plural else noun.article]


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def prepositional(preposition: str, phrase: str) -> str:
    """The German preposition before an inflected noun phrase, run together with the article where people do."""
    article, _, rest = phrase.partition(" ")
    together = f"{preposition} {article}".strip()
    return _join(CONTRACTIONS.get(together, together), rest)


# --------------------------------------------------------------------------------------------------------- words

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
PRONOUNS: Mapping[Column, str] = {"der": "er", "die": "sie", "das": "es", "plural": "sie"}
THEY = Text("sie", "they")
AND = Text("und", "and")
WHILE = Text("während", "while")
PERSON_KINDS = ("adult", "child", "baby")

ADJECTIVES = {
    adjective.german: adjective
    for adjective in (
        Adjective("rot", "red"),
        Adjective("blau", "blue"),
        Adjective("grün", "green"),
        Adjective("gelb", "yellow"),
        Adjective("weiß", "white"),
        Adjective("schwarz", "black"),
        Adjective("braun", "brown"),
        Adjective("grau", "grey"),
        Adjective("rosa", "pink", inflected=False),
        Adjective("bunt", "colourful"),
        Adjective("gestreift", "striped"),
        Adjective("alt", "old"),
        Adjective("jung", "young"),
        Adjective("neu", "new"),
        Adjective("klein", "small"),
        Adjective("groß", "big"),
        Adjective("hoch", "tall", stem="hoh"),
        Adjective("lang", "long"),
        Adjective("schmal", "narrow"),
        Adjective("tief", "deep"),
        Adjective("dick", "thick"),
        Adjective("rund", "round"),
        Adjective("schwer", "heavy"),
        Adjective("schön", "beautiful"),
        Adjective("elegant", "elegant"),
        Adjective("bequem", "comfortable"),
        Adjective("dunkel", "dark", stem="dunkl"),
        Adjective("hell", "bright"),
        Adjective("warm", "warm"),
        Adjective("kalt", "cold"),
        Adjective("heiß", "hot"),
        Adjective("nass", "wet"),
        Adjective("leer", "empty"),
        Adjective("frisch", "fresh"),
        Adjective("reif", "ripe"),
        Adjective("blond", "blond"),
        Adjective("lockig", "curly"),
        Adjective("müde", "tired", stem="müd"),
        Adjective("fröhlich", "cheerful"),
        Adjective("freundlich", "friendly"),
        Adjective("hungrig", "hungry"),
    )
}

COLOURS = "rot blau grün gelb weiß schwarz "
WORKER = "jung alt müde fröhlich freundlich"

_NOUN_TABLE = (
    # people: grown up, then children
    Noun("der", "Mann", "Männer", "man", WORKER, "men", kind="adult", pronoun="he"),
    Noun("die", "Frau", "Frauen", "woman", WORKER, "women", kind="adult", pronoun="she"),
    Noun(
        "der",
        "Herr",
        "Herren",
        "gentleman",
        "alt elegant",
        "gentlemen",
        weak="Herrn",
        kind="adult",
        pronoun="he",
    ),
    Noun("die", "Dame", "Damen", "lady", "alt elegant", "ladies", kind="adult", pronoun="she"),
    Noun("der", "Gärtner", "Gärtner", "gardener", WORKER, kind="adult", pronoun="he"),
    Noun("der", "Koch", "Köche", "cook", WORKER, kind="adult", pronoun="he"),
    Noun("der", "Musiker", "Musiker", "musician", WORKER, kind="adult", pronoun="he"),
    Noun("der", "Bauarbeiter", "Bauarbeiter", "construction worker", WORKER, kind="adult", pronoun="he"),
    Noun("der", "Feuerwehrmann", "Feuerwehrleute", "firefighter", WORKER, kind="adult", pronoun="he"),
    Noun("der", "Bauer", "Bauern", "farmer", WORKER, weak="Bauern", kind="adult", pronoun="he"),
    Noun("der", "Student", "Studenten", "student", WORKER, weak="Studenten", kind="adult", pronoun="he"),
    Noun("der", "Tourist", "Touristen", "tourist", WORKER, weak="Touristen", kind="adult", pronoun="he"),
    Noun(
        "der",
        "Polizist",
        "Polizisten",
        "police officer",
        WORKER,
        weak="Polizisten",
        kind="adult",
        pronoun="he",
    ),
    Noun("die", "Kellnerin", "Kellnerinnen", "waitress", WORKER, "waitresses", kind="adult", pronoun="she"),
    Noun("die", "Lehrerin", "Lehrerinnen", "teacher", WORKER, kind="adult", pronoun="she"),
    Noun("die", "Tänzerin", "Tänzerinnen", "dancer", WORKER, kind="adult", pronoun="she"),
    Noun("der", "Mensch", "Menschen", "person", "jung alt fröhlich", "people", weak="Menschen", kind="adult"),
    Noun("der", "Junge", "Jungen", "boy", "klein müde fröhlich", weak="Jungen", kind="child", pronoun="he"),
    Noun("das", "Mädchen", "Mädchen", "girl", "klein müde fröhlich", kind="child", pronoun="she"),
    Noun("das", "Kind", "Kinder", "child", "klein müde fröhlich", "children", kind="child"),
    Noun("das", "Baby", "Babys", "baby", "klein müde", "babies", kind="baby"),
    # those who need a "his" or "her"
    Noun("der", "Sohn", "Söhne", "son", "klein", kind="kin", pronoun="he"),
    Noun("die", "Tochter", "Töchter", "daughter", "klein", kind="kin", pronoun="she"),
    Noun("der", "Vater", "Väter", "father", kind="kin", pronoun="he"),
    Noun("die", "Mutter", "Mütter", "mother", kind="kin", pronoun="she"),
    Noun("der", "Bruder", "Brüder", "brother", "klein", kind="kin", pronoun="he"),
    Noun("die", "Schwester", "Schwestern", "sister", "klein", kind="kin", pronoun="she"),
    # many spoken of as one
    Noun("die", "Gruppe", "Gruppen", "group", "klein groß"),
    Noun("das", "Paar", "Paare", "couple", "jung alt elegant", kind="adult"),
    Noun("die", "Familie", "Familien", "family", "jung fröhlich", "families", kind="adult"),
    # animals
    Noun("der", "Hund", "Hunde", "dog", "klein groß braun schwarz weiß nass hungrig", kind="pet"),
    Noun("die", "Katze", "Katzen", "cat", "klein schwarz weiß grau hungrig", kind="pet"),
    Noun("das", "Kaninchen", "Kaninchen", "rabbit", "klein weiß braun grau", kind="pet"),
    Noun("das", "Pferd", "Pferde", "horse", "groß braun weiß schwarz jung", kind="grazer"),
    Noun("die", "Kuh", "Kühe", "cow", "groß braun schwarz hungrig", kind="grazer"),
    Noun("das", "Schaf", "Schafe", "sheep", "klein weiß schwarz jung", "sheep", kind="grazer"),
    Noun("die", "Ziege", "Ziegen", "goat", "klein weiß grau hungrig", kind="grazer"),
    Noun("der", "Esel", "Esel", "donkey", "alt grau müde", kind="grazer"),
    Noun("der", "Vogel", "Vögel", "bird", "klein bunt schwarz", kind="bird"),
    Noun("die", "Ente", "Enten", "duck", "klein braun weiß", kind="bird"),
    Noun("der", "Affe", "Affen", "monkey", "klein braun hungrig", weak="Affen", kind="wild"),
    Noun("der", "Elefant", "Elefanten", "elephant", "groß grau alt", weak="Elefanten", kind="wild"),
    Noun("der", "Bär", "Bären", "bear", "groß braun hungrig", weak="Bären", kind="wild"),
    # clothes
    Noun("das", "Hemd", "Hemden", "shirt", COLOURS + "rosa gestreift"),
    Noun("die", "Jacke", "Jacken", "jacket", COLOURS + "warm dick"),
    Noun("der", "Mantel", "Mäntel", "coat", COLOURS + "grau lang dick"),
    Noun("der", "Pullover", "Pullover", "sweater", COLOURS + "gestreift warm"),
    Noun("die", "Hose", "Hosen", "trousers", "blau schwarz weiß grau", "trousers", english_article=False),
    Noun("der", "Anzug", "Anzüge", "suit", "schwarz grau dunkel elegant", worn_by="he"),
    Noun("das", "Kleid", "Kleider", "dress", COLOURS + "rosa lang elegant", "dresses", worn_by="she"),
    Noun("der", "Rock", "Röcke", "skirt", COLOURS + "lang bunt", worn_by="she"),
    Noun("der", "Hut", "Hüte", "hat", COLOURS + "groß elegant"),
    Noun("die", "Mütze", "Mützen", "cap", COLOURS + "grau warm"),
    Noun("der", "Schal", "Schals", "scarf", COLOURS + "bunt lang gestreift", "scarves"),
    Noun("der", "Helm", "Helme", "helmet", "rot blau gelb weiß"),
    Noun("der", "Rucksack", "Rucksäcke", "backpack", "rot blau grün schwer groß"),
    Noun("der", "Stiefel", "Stiefel", "boot", "schwarz braun rot warm nass", only_plural=True),
    Noun("der", "Bart", "Bärte", "beard", "lang grau schwarz", worn_by="he"),
    Noun(
        "das",
        "Haar",
        "Haare",
        "hair",
        "lang blond schwarz grau lockig",
        "hair",
        only_plural=True,
        english_article=False,
    ),
    # food and drink
    Noun("der", "Apfel", "Äpfel", "apple", "rot grün reif"),
    Noun("die", "Birne", "Birnen", "pear", "gelb grün reif"),
    Noun("die", "Banane", "Bananen", "banana", "gelb reif"),
    Noun("die", "Orange", "Orangen", "orange", "groß reif"),
    Noun("die", "Kirsche", "Kirschen", "cherry", "rot schwarz reif", "cherries"),
    Noun("der", "Kuchen", "Kuchen", "cake", "klein groß frisch warm"),
    Noun("die", "Pizza", "Pizzen", "pizza", "groß heiß frisch"),
    Noun("das", "Brot", "", "bread", "frisch dunkel"),
    Noun("das", "Obst", "", "fruit", "frisch reif"),
    Noun("das", "Eis", "", "ice cream", "kalt"),
    Noun("die", "Suppe", "", "soup", "heiß warm"),
    Noun("das", "Gemüse", "", "vegetables", "frisch"),
    Noun("der", "Kaffee", "", "coffee", "heiß kalt schwarz"),
    Noun("der", "Tee", "", "tea", "heiß kalt grün"),
    Noun("die", "Milch", "", "milk", "kalt warm frisch"),
    Noun("das", "Wasser", "", "water", "kalt frisch"),
    Noun("das", "Gras", "", "grass", "grün hoch nass frisch"),
    Noun("die", "Tasse", "Tassen", "cup", "klein groß blau weiß"),
    Noun("die", "Tasse Tee", "Tassen Tee", "cup of tea", "klein groß", "cups of tea"),
    Noun("die", "Tasse Kaffee", "Tassen Kaffee", "cup of coffee", "klein groß", "cups of coffee"),
    Noun("das", "Glas Milch", "Gläser Milch", "glass of milk", "klein groß", "glasses of milk"),
    Noun("das", "Glas Wasser", "Gläser Wasser", "glass of water", "klein groß", "glasses of water"),
    # things
    Noun("der", "Ball", "Bälle", "ball", COLOURS + "groß"),
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
    Noun("die", "Lampe", "Lampen", "lamp", "hell klein alt"),
    Noun("die", "Leiter", "Leitern", "ladder", "lang hoch"),
    Noun("das", "Auto", "Autos", "car", COLOURS + "alt neu klein"),
    Noun("das", "Fahrrad", "Fahrräder", "bicycle", COLOURS + "alt neu"),
    Noun("das", "Motorrad", "Motorräder", "motorcycle", "schwarz rot schwer neu"),
    Noun("der", "Traktor", "Traktoren", "tractor", "rot grün alt"),
    Noun("der", "Lastwagen", "Lastwagen", "truck", "schwer weiß blau"),
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
    Noun("der", "Platz", "Plätze", "square", "groß leer schön", genitive="Platzes"),
    Noun("die", "Mitte", "", "middle"),
    Noun("der", "Markt", "Märkte", "market", "klein groß bunt"),
    Noun("die", "Stadt", "Städte", "town", "alt"),
    Noun("die", "Bushaltestelle", "Bushaltestellen", "bus stop", "leer neu"),
    Noun("der", "Bahnhof", "Bahnhöfe", "station"),
    Noun("die", "Bank", "Bänke", "bench", "alt rot grün leer", "benches"),
    Noun("die", "Mauer", "Mauern", "wall", "alt grau lang"),
    Noun("der", "Zaun", "Zäune", "fence", "weiß alt hoch", genitive="Zaunes"),
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
NOUNS = {noun.german: noun for noun in _NOUN_TABLE}


def some(names: str) -> tuple[Noun, ...]:
    return tuple(NOUNS[name] for name in names.split())


# -------------------------------------------------------------------------------------------------------- places


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where something happens (dative) or where it leads (accusative): "vor einem Haus", "über die Straße"."""

    preposition: Text
    noun: Noun
    determiner: Determiner
    case: Case
    outdoors: bool
    of: Noun | None  # "im Schatten eines Baumes"


def _places(
    german: str,
    english: str,
    names: str,
    determiner: Determiner = A,
    *,
    case: Case = "dat",
    of: str = "",
    outdoors: bool = True,
) -> tuple[Place, ...]:
    """One place for each noun named, or for each pair of a noun and one that it belongs to."""
    return tuple(
        Place(Text(german, english), noun, determiner, case, outdoors, owner)
        for noun in some(names)
        for owner in (some(of) or (None,))
    )


def _to(german: str, english: str, names: str, determiner: Determiner = A) -> tuple[Place, ...]:
    return _places(german, english, names, determiner, case="acc")


def _inside(german: str, english: str, names: str, determiner: Determiner = A) -> tuple[Place, ...]:
    return _places(german, english, names, determiner, outdoors=False)


GREENS = (*_places("in", "in", "Park Garten", THE), *_places("auf", "in", "Wiese"))
BEACH = _places("an", "on", "Strand", THE)
SHORES = (*_places("an", "by", "See Fluss"), *_places("an", "on", "Ufer", THE, of="See"))
FRONTS = _places("vor", "in front of", "Haus Gebäude Kirche Geschäft Café Iglu")
STREETS = (*_places("auf", "on", "Straße", THE), *_places("auf", "in", "Platz"))
SHADE = (*_places("unter", "under", "Baum"), *_places("in", "in", "Schatten", THE, of="Baum Haus"))
GROUND = (*_places("in", "in", "Gras Schnee", THE), *_inside("auf", "on", "Boden", THE))
MARKET = _places("auf", "at", "Markt")
KITCHEN = _inside("in", "in", "Küche")
TABLE = _inside("an", "at", "Tisch")
STAGE = _inside("auf", "on", "Bühne")

OUTDOORS = (*GREENS, *BEACH, *SHORES, *FRONTS, *STREETS, *SHADE)
INDOORS = _inside("in", "in", "Zimmer Café Restaurant")
PLAYGROUNDS = (*GREENS, *BEACH, *_places("auf", "on", "Spielplatz", THE), *_places("in", "in", "Schnee", THE))
STANDING = (
    *OUTDOORS,
    *_places("vor", "in front of", "Eingang", THE, of="Gebäude Haus"),
    *_places("an", "at", "Fuß", THE, of="Berg Turm"),
    *_places("in", "in", "Mitte", THE, of="Platz"),
    *_places("auf", "on", "Brücke"),
    *_places("neben", "next to", "Auto Brunnen Turm"),
    *_places("hinter", "behind", "Zaun Mauer"),
    *_places("zwischen", "between", "Baum Auto", TWO),
    *STAGE,
)
PASTURES = (
    *_places("auf", "in", "Wiese Feld"),
    *_places("hinter", "behind", "Zaun"),
    *_places("unter", "under", "Baum"),
    *SHORES,
)
COUCHES = (*_inside("auf", "on", "Sofa Decke"), *_places("auf", "on", "Bank"))
SEATS = (*COUCHES, *_inside("auf", "on", "Stuhl"), *_places("auf", "on", "Mauer"), *GROUND, *BEACH)
PERCHES = (
    *_places("auf", "on", "Zaun Mauer Bank"),
    *_places("auf", "on", "Dach", THE, of="Haus Turm"),
    *_places("in", "in", "Baum"),
)
BEDS = (*COUCHES, *_inside("auf", "on", "Teppich"), *GROUND, *BEACH, *SHADE, *_places("auf", "in", "Wiese"))

INTO = (*_to("in", "into", "Haus Geschäft Restaurant"), *_to("in", "into", "Wald", THE))
OUT = _places("aus", "out of", "Haus Geschäft Kirche")
ACROSS = (*_to("über", "across", "Wiese Feld Brücke Platz"), *_to("über", "across", "Straße", THE))
THROUGH = (*_to("durch", "through", "Wald"), *_to("durch", "through", "Park Stadt Schnee", THE))
AROUND = _to("um", "around", "Baum Haus See Brunnen")
TOWARDS = (*_places("zu", "to", "Strand Bahnhof", THE), *_places("zu", "to", "Bushaltestelle Kirche", THE))
WATER = (*_to("in", "into", "See Fluss"), *_to("in", "into", "Wasser", THE))
OVER = _to("über", "over", "Zaun Mauer")
ONTO = _to("auf", "onto", "Sofa Bank Mauer Stuhl")

Where = tuple[Place, ...]

# --------------------------------------------------------------------------------------------------------- verbs


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with what it may be said of: each row is one sense, so that no dog reads a book.

    `third` and `english` are "liest" and "reading"; a separable prefix stands apart ("zu" + "schauen").
    `who` lists kinds of noun and single nouns.
    """

    infinitive: str
    third: str
    english: str
    who: str
    objects: Sequence[Noun | Text] = ()
    places: Where = ()  # may be said, or must be for a posture
    routes: Where = ()  # where a movement leads
    recipients: tuple[Noun, ...] = ()
    case: Case = "acc"
    preposition: Text = NOTHING
    prefix: str = ""
    reflexive: bool = False
    beside: str = ""  # what one can do at the same time, being in the foreground: "sitzen gehen"
    base: str = ""  # English infinitive, where the verb can be a purpose: "um einen Ball zu fangen"
    own: bool = False  # "seinen Hund": of the subject's own
    kin: bool = False  # "ihre Tochter"
    each: bool = False  # several people do it to one thing each: "Zwei Frauen tragen rote Hüte"
    always_many: bool = False  # "verkauft Blumen"
    together: bool = False  # takes more than one person

    def finite(self, plural: bool) -> str:
        return self.infinitive if plural else self.third

    @property
    def name(self) -> str:
        return self.prefix + self.infinitive


HUMAN = "adult child"
MOVING = "sitzen stehen gehen"
RESTING = "sitzen stehen"

ADULTS = some(
    "Mann Frau Herr Dame Gärtner Koch Musiker Bauarbeiter Feuerwehrmann Bauer Student Tourist Polizist"
    " Kellnerin Lehrerin Tänzerin"
)
COMMON = some("Mann Frau Junge Mädchen Kind")
GROUPED = some("Mensch Mensch Mann Frau Kind Kind Junge Mädchen Student Tourist Musiker Bauarbeiter Tänzerin")
COLLECTIVES = some("Familie Paar")
PERSONS = some("Mann Frau Herr Dame Junge Mädchen Kind Tourist Student Polizist Lehrerin")
PETS = some("Hund Katze Kaninchen")
GRAZERS = some("Pferd Kuh Schaf Ziege Esel")
BIRDS = some("Vogel Ente")
WILD = some("Affe Elefant Bär")
ANIMALS = (*PETS, *GRAZERS, *BIRDS, *WILD)
KIN = {"adult": some("Sohn Tochter Bruder Schwester"), "child": some("Vater Mutter Bruder Schwester")}
NAMES = (
    Text("Anna", "she"),
    Text("Lena", "she"),
    Text("Maria", "she"),
    Text("Paul", "he"),
    Text("Jonas", "he"),
    Text("Max", "he"),
)

INSTRUMENTS = (Text("Gitarre", "the guitar"), Text("Geige", "the violin"), Text("Trompete", "the trumpet"))
SPORTS = (Text("Fußball", "football"), Text("Tennis", "tennis"))
TABLE_GAMES = (Text("Karten", "cards"), Text("Schach", "chess"))

CUPS = tuple(NOUNS[name] for name in ("Tasse Tee", "Tasse Kaffee", "Glas Milch", "Glas Wasser"))

IN_CLOTHES = some("Hemd Jacke Mantel Pullover Hose Anzug Kleid Rock")
HEADWEAR = some("Hut Mütze Helm")
WITH_CLOTHES = (*HEADWEAR, *some("Schal Rucksack Haar Haar Bart"))

WEAR = Verb("tragen", "trägt", "wearing", HUMAN, (*IN_CLOTHES, *HEADWEAR, *some("Schal Stiefel")), each=True)
WEARING = (
    WEAR,
    Verb(
        "ziehen", "zieht", "putting on", HUMAN, some("Jacke Mantel Pullover Stiefel"), prefix="an", each=True
    ),
    Verb(
        "ziehen", "zieht", "taking off", HUMAN, some("Jacke Mantel Pullover Stiefel"), prefix="aus", each=True
    ),
)

POSTURES = (
    Verb("stehen", "steht", "standing", HUMAN, places=STANDING),
    Verb("stehen", "steht", "standing", "grazer wild Hund", places=PASTURES),
    Verb("sitzen", "sitzt", "sitting", HUMAN, places=(*SEATS, *SHADE, *TABLE, *INDOORS)),
    Verb("sitzen", "sitzt", "sitting", "pet baby", places=SEATS),
    Verb("sitzen", "sitzt", "sitting", "Vogel Affe", places=PERCHES),
    Verb("sitzen", "sitzt", "sitting", "Ente", places=(*SHORES, *_places("auf", "in", "Wiese"))),
    Verb("liegen", "liegt", "lying", f"{HUMAN} pet baby", places=BEDS),
    Verb("liegen", "liegt", "lying", "grazer wild", places=(*PASTURES, *_places("in", "in", "Gras", THE))),
    Verb("warten", "wartet", "waiting", "adult", places=(*_places("an", "at", "Bushaltestelle"), *FRONTS)),
)

MOTIONS = (
    Verb("gehen", "geht", "walking", HUMAN, routes=(*ACROSS, *THROUGH, *AROUND, *TOWARDS, *INTO, *OUT)),
    Verb("laufen", "läuft", "running", f"{HUMAN} Hund", routes=(*ACROSS, *THROUGH, *AROUND, *TOWARDS)),
    Verb("laufen", "läuft", "running", "Katze Kaninchen grazer wild", routes=(*ACROSS, *THROUGH, *AROUND)),
    Verb(
        "springen",
        "springt",
        "jumping",
        f"{HUMAN} Hund",
        routes=(*OVER, *_to("über", "over", "Pfütze"), *WATER),
    ),
    Verb("springen", "springt", "jumping", "child Hund Katze Affe", routes=(*ONTO, *OVER)),
    Verb("klettern", "klettert", "climbing", HUMAN, routes=(*_to("auf", "up", "Baum Berg Leiter"), *OVER)),
    Verb("klettern", "klettert", "climbing", "Katze Affe", routes=(*_to("auf", "up", "Baum"), *OVER)),
    Verb("fliegen", "fliegt", "flying", "bird", routes=_to("über", "over", "Haus See Feld Fluss Kirche")),
    Verb("krabbeln", "krabbelt", "crawling", "baby", routes=_to("über", "across", "Teppich Decke")),
    Verb("krabbeln", "krabbelt", "crawling", "baby", routes=_to("unter", "under", "Tisch Stuhl")),
    Verb("wandern", "wandert", "hiking", "adult", routes=(*_to("durch", "through", "Wald"), *AROUND[2:3])),
    Verb("wandern", "wandert", "hiking", "adult", routes=_to("auf", "up", "Berg")),
    Verb(
        "reiten",
        "reitet",
        "riding",
        HUMAN,
        some("Pferd Esel"),
        routes=(*THROUGH, *ACROSS),
        case="dat",
        preposition=Text("auf", ""),
        each=True,
    ),
    Verb(
        "fahren",
        "fährt",
        "riding",
        HUMAN,
        some("Fahrrad"),
        routes=(*THROUGH, *ACROSS),
        case="dat",
        preposition=Text("mit", ""),
        each=True,
    ),
    Verb(
        "fahren",
        "fährt",
        "driving",
        "adult",
        some("Auto Lastwagen Traktor"),
        routes=(*ACROSS[1:3], *_to("durch", "through", "Stadt", THE)),
        case="dat",
        preposition=Text("mit", ""),
        each=True,
    ),
    Verb(
        "gehen",
        "geht",
        "walking past",
        HUMAN,
        some("Geschäft Kirche Brunnen Iglu Café Turm"),
        case="dat",
        preposition=Text("an", ""),
        prefix="vorbei",
    ),
    Verb("gehen", "geht", "walking along", HUMAN, some("Fluss Straße Mauer"), prefix="entlang"),
    Verb("laufen", "läuft", "running along", f"{HUMAN} Hund", some("Fluss Straße Mauer"), prefix="entlang"),
    Verb("schieben", "schiebt", "pushing", "adult", some("Kinderwagen Fahrrad"), routes=(*ACROSS, *THROUGH)),
    Verb("ziehen", "zieht", "pulling", HUMAN, some("Schlitten Koffer"), routes=(*ACROSS, *THROUGH)),
    Verb("folgen", "folgt", "following", HUMAN, (*PERSONS, *some("Hund Katze")), routes=THROUGH, case="dat"),
    Verb("werfen", "wirft", "throwing", HUMAN, some("Ball Stein Stock"), routes=(*WATER, *OVER)),
)

ACTIVITIES = (
    # no object
    Verb("spielen", "spielt", "playing", "child Hund Katze", places=PLAYGROUNDS),
    Verb(
        "tanzen",
        "tanzt",
        "dancing",
        HUMAN,
        places=(*STREETS, *BEACH, *STAGE, *_inside("in", "in", "Restaurant")),
    ),
    Verb("singen", "singt", "singing", HUMAN, places=(*STREETS, *STAGE, *FRONTS[2:3]), beside=MOVING),
    Verb("singen", "singt", "singing", "Vogel", places=PERCHES, beside="sitzen"),
    Verb("lachen", "lacht", "laughing", f"{HUMAN} baby", beside=MOVING),
    Verb("lächeln", "lächelt", "smiling", f"{HUMAN} baby", beside=RESTING),
    Verb("weinen", "weint", "crying", "child baby", beside="sitzen stehen liegen"),
    Verb(
        "arbeiten",
        "arbeitet",
        "working",
        "Mann Frau Bauer Gärtner",
        places=(*_places("in", "in", "Garten"), *_places("auf", "in", "Feld")),
    ),
    Verb(
        "arbeiten",
        "arbeitet",
        "working",
        "Mann Bauarbeiter Feuerwehrmann",
        places=(
            *_places("auf", "on", "Dach", THE, of="Haus Gebäude"),
            *_places("auf", "on", "Brücke Leiter"),
        ),
    ),
    Verb("arbeiten", "arbeitet", "working", "Mann Frau Student Lehrerin", places=_inside("in", "in", "Büro")),
    Verb(
        "arbeiten",
        "arbeitet",
        "working",
        "Koch Kellnerin",
        places=_inside("in", "in", "Küche Restaurant Café"),
    ),
    Verb("schlafen", "schläft", "sleeping", f"{HUMAN} baby pet", places=BEDS, beside="liegen"),
    Verb("schlafen", "schläft", "sleeping", "grazer wild", places=PASTURES, beside="liegen"),
    Verb("schlafen", "schläft", "sleeping", "Ente", places=SHORES, beside="sitzen"),
    Verb(
        "bellen",
        "bellt",
        "barking",
        "Hund",
        places=(*_places("hinter", "behind", "Zaun"), *STREETS),
        beside="stehen",
    ),
    Verb(
        "telefonieren",
        "telefoniert",
        "talking on the phone",
        "adult",
        places=(*OUTDOORS, *INDOORS),
        beside=MOVING,
    ),
    Verb(
        "angeln",
        "angelt",
        "fishing",
        "Mann Frau Junge Mädchen Herr",
        places=(*SHORES, *_places("auf", "on", "Brücke"), *_places("in", "in", "Boot")),
    ),
    Verb("schwimmen", "schwimmt", "swimming", f"{HUMAN} Hund Ente", places=_places("in", "in", "See Fluss")),
    Verb("schwimmen", "schwimmt", "swimming", f"{HUMAN} Hund", places=_places("in", "in", "Meer", THE)),
    Verb(
        "unterhalten",
        "unterhält",
        "chatting",
        HUMAN,
        places=(*OUTDOORS, *INDOORS),
        reflexive=True,
        beside=RESTING,
        together=True,
    ),
    # play
    Verb(
        "spielen",
        "spielt",
        "playing",
        HUMAN,
        INSTRUMENTS,
        (*STREETS, *STAGE, *GREENS, *INDOORS),
        beside=RESTING,
    ),
    Verb("spielen", "spielt", "playing", HUMAN, SPORTS, (*GREENS, *BEACH, *STREETS)),
    Verb(
        "spielen",
        "spielt",
        "playing",
        HUMAN,
        TABLE_GAMES,
        (*TABLE, *INDOORS, *GREENS),
        beside="sitzen",
        together=True,
    ),
    Verb(
        "spielen",
        "spielt",
        "playing",
        "child",
        some("Ball Hund Katze Puppe"),
        PLAYGROUNDS,
        case="dat",
        preposition=Text("mit", "with"),
        own=True,
    ),
    Verb(
        "spielen",
        "spielt",
        "playing",
        "pet",
        some("Ball Stock"),
        (*GREENS, *GROUND),
        case="dat",
        preposition=Text("mit", "with"),
    ),
    # eat and drink
    Verb(
        "essen",
        "isst",
        "eating",
        HUMAN,
        some("Apfel Birne Banane Orange Eis"),
        GREENS,
        beside=MOVING,
        each=True,
    ),
    Verb(
        "essen",
        "isst",
        "eating",
        HUMAN,
        some("Suppe Pizza Brot Obst Gemüse"),
        (*KITCHEN, *TABLE, *_inside("in", "in", "Restaurant")),
        beside="sitzen",
        each=True,
    ),
    Verb("fressen", "frisst", "eating", "grazer Kaninchen", some("Gras"), PASTURES[:4], beside="stehen"),
    Verb(
        "fressen",
        "frisst",
        "eating",
        "Pferd Esel Ziege Elefant Bär Kaninchen",
        some("Apfel Birne"),
        beside="stehen",
    ),
    Verb("fressen", "frisst", "eating", "Affe Elefant", some("Banane Orange"), beside="sitzen stehen"),
    Verb(
        "trinken",
        "trinkt",
        "drinking",
        HUMAN,
        some("Kaffee Tee Milch Wasser"),
        (*KITCHEN, *INDOORS),
        beside=RESTING,
    ),
    Verb("trinken", "trinkt", "drinking", HUMAN, CUPS, (*TABLE, *INDOORS), beside="sitzen"),
    Verb("trinken", "trinkt", "drinking", "pet grazer wild", some("Wasser"), SHORES[:2]),
    Verb("trinken", "trinkt", "drinking", "Katze", some("Milch"), KITCHEN),
    Verb("backen", "backt", "baking", "Koch Mann Frau Dame Mädchen", some("Kuchen Pizza Brot"), KITCHEN),
    Verb("kochen", "kocht", "cooking", "Koch Mann Frau Kellnerin", some("Suppe Gemüse"), KITCHEN),
    Verb(
        "schneiden",
        "schneidet",
        "cutting",
        HUMAN,
        some("Brot Gemüse Obst Kuchen"),
        (*KITCHEN, *TABLE),
        beside="stehen",
    ),
    # read, make, mend
    Verb(
        "lesen",
        "liest",
        "reading",
        HUMAN,
        some("Buch Zeitung Brief"),
        (*GREENS, *TABLE, *INDOORS),
        beside=RESTING,
        each=True,
    ),
    Verb(
        "malen",
        "malt",
        "painting",
        HUMAN,
        some("Bild Blume Haus Pferd"),
        (*GREENS, *INDOORS),
        beside="sitzen",
    ),
    Verb("bauen", "baut", "building", "child adult", some("Sandburg"), BEACH),
    Verb(
        "bauen",
        "baut",
        "building",
        "child adult",
        some("Schneemann Iglu"),
        (*FRONTS[:3], *GREENS[:2], *GROUND[1:2]),
    ),
    Verb(
        "reparieren",
        "repariert",
        "repairing",
        "adult",
        some("Auto Fahrrad Motorrad Boot"),
        (*FRONTS, *STREETS),
        own=True,
    ),
    Verb("reparieren", "repariert", "repairing", "adult", some("Dach Zaun")),
    Verb(
        "waschen",
        "wäscht",
        "washing",
        HUMAN,
        some("Auto Fahrrad Hund"),
        (*FRONTS[:2], *GREENS[1:2]),
        own=True,
    ),
    Verb(
        "fotografieren",
        "fotografiert",
        "photographing",
        HUMAN,
        some("Kirche Brunnen Turm Tänzerin Vogel Elefant Iglu"),
        beside=RESTING,
    ),
    Verb(
        "sehen",
        "sieht",
        "looking at",
        HUMAN,
        some("Bild Brunnen Kirche Turm Bär Affe"),
        prefix="an",
        beside=RESTING,
    ),
    # buy, sell, garden
    Verb(
        "kaufen",
        "kauft",
        "buying",
        HUMAN,
        some("Blume Apfel Birne Brot Obst"),
        (*MARKET, *_inside("in", "in", "Geschäft")),
        always_many=True,
    ),
    Verb(
        "verkaufen",
        "verkauft",
        "selling",
        "adult",
        some("Blume Apfel Kirsche Obst Gemüse Luftballon"),
        (*MARKET, *STREETS),
        always_many=True,
        beside="stehen",
    ),
    Verb("pflücken", "pflückt", "picking", HUMAN, some("Apfel Birne Kirsche"), GREENS[1:2], always_many=True),
    Verb("pflücken", "pflückt", "picking", HUMAN, some("Blume"), GREENS, always_many=True),
    Verb("gießen", "gießt", "watering", HUMAN, some("Blume"), (*GREENS[1:2], *FRONTS[:1]), always_many=True),
    # hold, lift, find, catch
    Verb(
        "halten",
        "hält",
        "holding",
        HUMAN,
        some("Ball Blume Regenschirm Schild Kamera Luftballon Korb Fahne"),
        beside=MOVING,
        each=True,
    ),
    Verb("halten", "hält", "holding", HUMAN, some("Katze Kaninchen Puppe"), beside=RESTING),
    Verb("heben", "hebt", "picking up", HUMAN, some("Ball Stein Blume Stock Buch"), prefix="auf"),
    Verb("heben", "hebt", "lifting", "adult", some("Baby Kind Koffer Korb Stein"), prefix="hoch"),
    Verb("suchen", "sucht", "looking for", HUMAN, some("Ball Hund Katze Buch Koffer"), own=True),
    Verb("jagen", "jagt", "chasing", "Hund", some("Katze Ente Kaninchen Ball"), (*GREENS, *BEACH)),
    Verb("jagen", "jagt", "chasing", "Katze", some("Vogel Ball"), GREENS),
    Verb("fangen", "fängt", "catching", "child Hund", some("Ball"), (*GREENS, *BEACH)),
    # be with others
    Verb(
        "umarmen",
        "umarmt",
        "hugging",
        HUMAN,
        some("Mann Frau Junge Mädchen Kind"),
        (*STREETS, *FRONTS),
        kin=True,
    ),
    Verb(
        "streicheln",
        "streichelt",
        "stroking",
        HUMAN,
        some("Hund Katze Kaninchen Pferd Esel Ziege Schaf"),
        GREENS,
        own=True,
        beside=RESTING,
    ),
    Verb("füttern", "füttert", "feeding", HUMAN, (*PETS, *GRAZERS, *BIRDS), GREENS, own=True),
    Verb(
        "füttern", "füttert", "feeding", HUMAN, BIRDS, (*SHORES, *STREETS), always_many=True, beside=RESTING
    ),
    Verb(
        "schauen",
        "schaut",
        "watching",
        HUMAN,
        (*PERSONS, *some("Tänzerin Musiker"), *ANIMALS),
        prefix="zu",
        case="dat",
        beside=RESTING,
    ),
    Verb(
        "hören",
        "hört",
        "listening to",
        HUMAN,
        some("Musiker Lehrerin Mann Frau"),
        (*STREETS, *INDOORS),
        prefix="zu",
        case="dat",
        beside=RESTING,
    ),
    Verb("helfen", "hilft", "helping", HUMAN, (*PERSONS, *some("Bauer Gärtner Koch")), case="dat", kin=True),
    Verb("winken", "winkt", "waving to", HUMAN, PERSONS, prefix="zu", case="dat", kin=True, beside="stehen"),
    # give
    Verb(
        "geben", "gibt", "giving", HUMAN, some("Apfel Banane Blume Ball Korb"), recipients=PERSONS, kin=True
    ),
    Verb("geben", "gibt", "giving", HUMAN, some("Apfel Banane"), recipients=some("Pferd Affe Elefant Esel")),
    Verb("zeigen", "zeigt", "showing", HUMAN, some("Bild Buch Brief"), recipients=PERSONS, kin=True),
    Verb(
        "lesen",
        "liest",
        "reading",
        "adult",
        some("Buch Brief"),
        recipients=some("Kind Junge Mädchen"),
        prefix="vor",
        kin=True,
    ),
    Verb("werfen", "wirft", "throwing", HUMAN, some("Ball Stock"), recipients=some("Hund"), prefix="zu"),
    Verb(
        "werfen",
        "wirft",
        "throwing",
        HUMAN,
        some("Ball"),
        recipients=some("Kind Junge Mädchen"),
        prefix="zu",
        kin=True,
    ),
    Verb(
        "servieren",
        "serviert",
        "serving",
        "Kellnerin Koch",
        (*CUPS, *some("Suppe Pizza")),
        recipients=PERSONS,
    ),
)

PURPOSES = {  # "Ein Hund springt, um einen Ball zu fangen."
    Verb("springen", "springt", "jumping", "child Hund"): Verb(
        "fangen", "fängt", "catching", "child Hund", some("Ball"), base="catch"
    ),
    Verb("bücken", "bückt", "bending down", HUMAN, reflexive=True): Verb(
        "heben", "hebt", "picking up", HUMAN, some("Ball Stein Blume Buch"), prefix="auf", base="pick up"
    ),
    Verb("gehen", "geht", "walking", HUMAN, routes=(*_to("auf", "to", "Markt"), *INTO[1:2])): Verb(
        "kaufen", "kauft", "buying", HUMAN, some("Blume Apfel Brot"), always_many=True, base="buy"
    ),
    Verb("klettern", "klettert", "climbing", HUMAN, routes=_to("auf", "up", "Baum Leiter")): Verb(
        "pflücken", "pflückt", "picking", HUMAN, some("Apfel Kirsche"), always_many=True, base="pick"
    ),
    Verb("klettern", "klettert", "climbing", "Mann Bauarbeiter", routes=_to("auf", "up", "Leiter")): Verb(
        "reparieren", "repariert", "repairing", "adult", some("Dach"), base="repair"
    ),
    Verb("gehen", "geht", "walking", HUMAN, routes=_places("zu", "to", "See Fluss")): Verb(
        "angeln", "angelt", "fishing", HUMAN, base="fish"
    ),
}

REASONS = (
    (
        Verb("tragen", "trägt", "wearing", HUMAN, some("Jacke Mantel Mütze Schal"), each=True),
        Text(", weil es schneit", "because it is snowing"),
    ),
    (
        Verb("halten", "hält", "holding", HUMAN, some("Regenschirm"), each=True),
        Text(", weil es regnet", "because it is raining"),
    ),
)
WEATHER = (
    Text(", obwohl es regnet", "although it is raining"),
    Text(", obwohl es schneit", "although it is snowing"),
    Text(", während es schneit", "while it is snowing"),
)
TIMES = (
    Text("am Morgen", "in the morning"),
    Text("am Abend", "in the evening"),
    Text("an einem sonnigen Tag", "on a sunny day"),
    Text("an einem kalten Tag", "on a cold day"),
    Text("bei schönem Wetter", "in fine weather"),
    Text("bei Sonnenuntergang", "at sunset"),
)

# someone to look after or to look at, and what has room for it
WITH_SOMEONE = tuple(
    verb
    for verb in ACTIVITIES
    if verb.name not in ("jagen", "waschen", "suchen")
    and verb.objects
    and all(isinstance(one, Noun) and one.kind != "thing" for one in verb.objects)
)
WITH_PLACE = tuple(verb for verb in ACTIVITIES if verb.places)

THINGS = (  # "Auf einem Tisch steht eine Tasse."
    Verb(
        "stehen",
        "steht",
        "standing",
        "Auto Fahrrad Motorrad Lastwagen Kinderwagen",
        places=(*FRONTS, *STREETS[:1]),
    ),
    Verb("stehen", "steht", "standing", "Traktor", places=(*PASTURES[1:2], *FRONTS[:1])),
    Verb("stehen", "steht", "standing", "Tasse Lampe Korb Kuchen", places=_inside("auf", "on", "Tisch")),
    Verb("stehen", "steht", "standing", "Koffer Korb", places=_places("neben", "next to", "Bank Stuhl Auto")),
    Verb("liegen", "liegt", "lying", "Ball Hut Puppe", places=(*COUCHES, *GROUND)),
    Verb(
        "liegen",
        "liegt",
        "lying",
        "Buch Brief Zeitung Kamera",
        places=(*COUCHES, *_inside("auf", "on", "Tisch Stuhl")),
    ),
    Verb(
        "liegen", "liegt", "lying", "Boot", places=(*BEACH, *_places("an", "on", "Ufer", THE, of="See Fluss"))
    ),
)

SIMPLE = (  # "Ein Hund läuft."
    Verb("laufen", "läuft", "running", f"{HUMAN} pet grazer wild"),
    Verb("springen", "springt", "jumping", f"{HUMAN} pet"),
    Verb("warten", "wartet", "waiting", "adult"),
    Verb("fliegen", "fliegt", "flying", "bird"),
    *(verb for verb in ACTIVITIES if not verb.objects),
)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A place with something going on there: "Ein Hund liegt unter einer Bank, auf der eine Frau sitzt"."""

    places: Where
    opening: Text
    verb: Verb
    actors: tuple[Noun, ...]


SIT = Verb("sitzen", "sitzt", "sitting", "")
STAND = Verb("stehen", "steht", "standing", "")
SCENES = (
    Scene(_places("unter", "under", "Bank Stuhl Sofa"), Text("auf", "on which"), SIT, COMMON),
    Scene(_places("neben", "next to", "Bank Stuhl Sofa"), Text("auf", "on which"), SIT, (*COMMON, *PETS)),
    Scene(_places("unter", "under", "Tisch"), Text("an", "at which"), SIT, COMMON),
    Scene(_places("unter", "under", "Baum"), Text("in", "in which"), SIT, some("Vogel Affe")),
    Scene(_places("neben", "next to", "Auto Baum"), Text("vor", "in front of which"), STAND, ADULTS),
    Scene(_places("hinter", "behind", "Zaun Mauer"), Text("auf", "on which"), SIT, some("Katze Vogel")),
)


# ------------------------------------------------------------------------------------------------------- clauses


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
    recipient: Text = NOTHING
    where: Text = NOTHING
    what: Text = NOTHING
    whither: Text = NOTHING
    outdoors: bool = False

    @property
    def itself(self) -> str:
        return "sich" if self.verb.reflexive else ""

    @property
    def middle(self) -> str:
        """The German between the finite verb and the end of the clause."""
        return _join(self.time.de, self.recipient.de, self.where.de, self.what.de, self.whither.de)

    @property
    def rest(self) -> str:
        """The English after the verb."""
        recipient = _join("to", self.recipient.en) if self.recipient.en else ""
        return _join(self.what.en, recipient, self.where.en, self.whither.en, self.time.en)

    def coordinated(self, subject: Subject) -> Text:
        """Without its subject: "... und schaut im Park einem Hund zu"."""
        finite = self.verb.finite(subject.plural)
        de = _join(finite, self.itself, self.middle, self.verb.prefix)
        return Text(de, _join(self.verb.english, self.rest))

    def main(self, subject: Subject) -> Text:
        """Verb second: "Ein Mann schaut im Park einem Hund zu"."""
        return _phrase(subject.text, Text("", subject.be), self.coordinated(subject))

    def inverted(self, subject: Subject, front: Text) -> Text:
        """Verb second after something else: "Am Abend schaut ein Mann einem Hund zu"."""
        finite = self.verb.finite(subject.plural)
        de = _join(front.de, finite, self.itself, subject.text.de, self.middle, self.verb.prefix)
        return Text(de, _join(front.en, ",", subject.text.en, subject.be, self.verb.english, self.rest))

    def verb_final(self, subject: Subject, opening: Text) -> Text:
        """A subordinate clause: ", der im Park einem Hund zuschaut,"."""
        finite = self.verb.prefix + self.verb.finite(subject.plural)
        de = _join(",", opening.de, self.itself, self.middle, finite, ",")
        return Text(de, _join(opening.en, subject.be, self.verb.english, self.rest))

    def purpose(self) -> Text:
        """An infinitive clause: ", um einen Ball aufzuheben"."""
        prefix, infinitive = self.verb.prefix, self.verb.infinitive
        de = _join(", um", self.middle, f"{prefix}zu{infinitive}" if prefix else f"zu {infinitive}")
        return Text(de, _join("to", self.verb.base, self.rest))


def _phrase(*parts: Text) -> Text:
    return Text(_join(*(part.de for part in parts)), _join(*(part.en for part in parts)))


def _nominative(phrase: NounPhrase) -> Text:
    return Text(phrase.german("nom"), phrase.english())


def _prepositional(preposition: Text, phrase: NounPhrase, case: Case) -> Text:
    german = prepositional(preposition.de, phrase.german(case))
    return Text(german, _join(preposition.en, phrase.english()))


def _written(words: str) -> str:
    """A capital, a full stop, and no comma twice or before the stop."""
    line = words.replace(" ,", ",").replace(",,", ",").rstrip(",")
    return line[0].upper() + line[1:] + "."


def _agreement(phrase: NounPhrase) -> Subject:
    """The subject that a noun phrase makes."""
    noun, plural = phrase.noun, phrase.plural
    human = noun.kind in PERSON_KINDS
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


@lru_cache(maxsize=None)
def _verbs(table: tuple[Verb, ...], nouns: tuple[Noun, ...], many: bool) -> tuple[Verb, ...]:
    """The verbs of a table that can be said of these nouns."""

    def suits(verb: Verb) -> bool:
        who = verb.who.split()
        return all(noun.kind in who or noun.german in who for noun in nouns)

    return tuple(verb for verb in table if suits(verb) and (many or not verb.together))


@lru_cache(maxsize=None)
def _at_once(nouns: tuple[Noun, ...], many: bool) -> tuple[tuple[Verb, Verb], ...]:
    """What these nouns can do at one time: a posture or movement, and something on top of it."""
    return tuple(
        (base, activity)
        for activity in _verbs(ACTIVITIES, nouns, many)
        for base in _verbs(POSTURES + MOTIONS, nouns, many)
        if base.infinitive in activity.beside.split() and not base.objects
    )


# -------------------------------------------------------------------------------------------------------- writer


class _Writer:
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
        self.combinations.append(f"{subject.head} {verb.prefix}{verb.infinitive} {complement}")

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
        garments = IN_CLOTHES if preposition.de == "in" else WITH_CLOTHES
        noun = self.one_of([garment for garment in garments if garment.worn_by in ("", wearer.pronoun)])
        plural = plural or noun.only_plural
        if plural and determiner is A:
            determiner = BARE
        # hair, beards and shirts go without saying: say which
        phrase = self.noun_phrase(noun, determiner, plural=plural, adjective=1)
        return _prepositional(preposition, phrase, "dat")

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
        if verb.kin and subject.possessive and not subject.many and self.chance(0.3):
            return self.noun_phrase(
                self.one_of(KIN[subject.nouns[0].kind]), subject.possessive, adjective=0.2
            )
        if not noun.plural:
            return self.noun_phrase(noun, BARE)
        if noun.only_plural or verb.always_many or (verb.each and subject.many):
            return self.noun_phrase(noun, BARE, plural=True)
        if verb.own and subject.possessive and self.chance(0.3):
            return self.noun_phrase(noun, subject.possessive)
        if noun.kind != "thing" and self.chance(0.12):
            return self.described(noun, self.one_of(QUANTITIES), plural=True)
        return self.described(noun, THE if self.chance(0.12) else A)

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
        return _agreement(self.described(noun, THE if self.chance(0.2) else A, clothes=clothes))

    def people(self, clothes: float) -> Subject:
        noun = self.one_of(GROUPED if self.chance(0.7) else ADULTS)
        determiner = THE if noun.german != "Mensch" and self.chance(0.15) else self.one_of(QUANTITIES)
        return _agreement(self.described(noun, determiner, plural=True, clothes=clothes))

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
        own = _agreement(NounPhrase(first, A)).possessive
        if own and self.chance(0.4):
            second = self.one_of((*KIN[first.kind], NOUNS["Hund"]))
        else:
            own, second = A, self.one_of([noun for noun in COMMON if noun is not first])
        pair = self.noun_phrase(first, A, adjective=0.3), self.noun_phrase(second, own, adjective=0.3)
        text = _phrase(_nominative(pair[0]), AND, _nominative(pair[1]))
        nouns = (first,) if second.kind == "kin" else (first, second)
        return Subject(text, f"{first.german}+{second.german}", nouns, plural=True, many=True, pronoun=THEY)

    def named(self, clothes: float) -> Subject:
        name = self.one_of(NAMES)
        text = Text(name.de, name.de)
        noun = NOUNS["Mann" if name.en == "he" else "Frau"]
        if self.chance(0.25):
            other = self.one_of([other for other in NAMES if other is not name])
            text = _phrase(text, AND, Text(other.de, other.de))
            return Subject(text, f"{name.de}+{other.de}", (noun,), plural=True, many=True, pronoun=THEY)
        return replace(_agreement(NounPhrase(noun, A)), text=text, head=name.de, relative=NOTHING)

    def animal(self, clothes: float) -> Subject:
        noun = self.one_of(PETS if self.chance(0.4) else ANIMALS)
        if self.chance(0.25):
            return _agreement(self.noun_phrase(noun, self.one_of(QUANTITIES), plural=True))
        return _agreement(self.noun_phrase(noun, THE if self.chance(0.2) else A))

    def baby(self, clothes: float) -> Subject:
        return _agreement(self.noun_phrase(NOUNS["Baby"], A))

    # ---- predicates

    def verb(self, subject: Subject, *tables: tuple[Verb, ...]) -> Verb:
        """A verb for the subject, from any of the tables that hold one."""
        fitting = [verbs for table in tables if (verbs := _verbs(table, subject.nouns, subject.many))]
        return self.one_of(self.one_of(fitting))

    def predicate(
        self,
        subject: Subject,
        verb: Verb,
        *,
        where: float = 0.5,
        time: float = 0,
        what: NounPhrase | None = None,
    ) -> Predicate:
        """A verb with its complements; `where` and `time` are the chances that a place and a time are said."""
        place = self.one_of(verb.places) if verb.places and self.chance(where) else None
        route = self.one_of(verb.routes) if verb.routes else None
        spots = [spot for spot in (place, route) if spot]
        for spot in spots:
            self.combine(subject, verb, spot.noun.german)
        outdoors = bool(spots) and all(spot.outdoors for spot in spots)
        return Predicate(
            verb,
            time=self.one_of(TIMES) if outdoors and self.chance(time) else NOTHING,
            recipient=self.recipient(subject, verb),
            where=self.place(place) if place else NOTHING,
            what=self.what(subject, verb, what),
            whither=self.place(route) if route else NOTHING,
            outdoors=outdoors,
        )

    def recipient(self, subject: Subject, verb: Verb) -> Text:
        if not verb.recipients:
            return NOTHING
        noun = self.one_of([noun for noun in verb.recipients if _possible(noun, subject)])
        phrase = self.thing(noun, subject, verb)
        self.combine(subject, verb, phrase.noun.german)
        return Text(phrase.german("dat"), phrase.english())

    def what(self, subject: Subject, verb: Verb, phrase: NounPhrase | None = None) -> Text:
        """The object, be it `phrase` or one of the verb's own."""
        if phrase is None:
            options = [one for one in verb.objects if isinstance(one, Text) or _possible(one, subject)]
            if not options:
                return NOTHING
            chosen = self.one_of(options)
            if isinstance(chosen, Text):
                self.combine(subject, verb, chosen.de)
                return chosen
            phrase = self.thing(chosen, subject, replace(verb, kin=False) if verb.recipients else verb)
        self.combine(subject, verb, phrase.noun.german)
        return _prepositional(verb.preposition, phrase, verb.case)

    def worn(self, subject: Subject) -> Predicate:
        """Wearing one thing, or one thing on the body and another on the head."""
        if self.chance(0.65):
            return self.predicate(subject, WEAR)
        garments = [one for one in IN_CLOTHES if _possible(one, subject)], HEADWEAR
        first, second = (self.thing(self.one_of(some), subject, WEAR) for some in garments)
        return Predicate(
            WEAR, what=_phrase(self.what(subject, WEAR, first), AND, self.what(subject, WEAR, second))
        )

    def aside(self, subject: Subject, *tables: tuple[Verb, ...]) -> Text:
        """A relative clause: what they wear, or what else they do."""
        if _verbs(WEARING, subject.nouns, subject.many) and not subject.dressed and self.chance(0.3):
            predicate = self.worn(subject)
        else:
            verb = self.verb(subject, *tables)
            predicate = self.predicate(subject, verb, where=1 if verb in POSTURES else 0.3)
        return predicate.verb_final(subject, subject.relative)

    # ---- captions

    def short(self) -> Text:
        """Ein Hund bellt."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, SIMPLE), where=0).main(subject)

    def being(self) -> Text:
        """Eine Gruppe von Menschen steht vor einem Gebäude."""
        subject = self.subject(ANYONE)
        verb = self.verb(subject, POSTURES, MOTIONS)
        return self.predicate(subject, verb, where=1, time=0.1).main(subject)

    def doing(self) -> Text:
        """Ein kleiner Junge baut am Strand eine Sandburg."""
        subject = self.subject(ANYONE)
        return self.predicate(subject, self.verb(subject, ACTIVITIES), time=0.1).main(subject)

    def wearing(self) -> Text:
        """Eine Frau trägt einen roten Rock und einen gelben Hut."""
        subject = self.subject(PEOPLE, clothes=0)
        if self.chance(0.6):
            return self.worn(subject).main(subject)
        return self.predicate(subject, self.verb(subject, WEARING)).main(subject)

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
            aside = self.aside(subject, (activity,))
            main = self.predicate(subject, base, where=1)
        else:
            aside = self.aside(subject, (base,))
            main = self.predicate(subject, activity, where=0)
        return main.main(replace(subject, text=_phrase(subject.text, aside)))

    def caring(self) -> Text:
        """Ein Mädchen füttert ein Pferd, das hinter einem Zaun steht."""
        subject = self.subject(PEOPLE)
        verb = self.verb(subject, WITH_SOMEONE)
        noun = self.one_of([one for one in verb.objects if isinstance(one, Noun) and _possible(one, subject)])
        several = self.chance(0.2)
        phrase = self.noun_phrase(noun, self.one_of(QUANTITIES) if several else A, plural=several)
        main = self.predicate(subject, verb, where=0, what=phrase).main(subject)
        return _phrase(main, self.aside(_agreement(phrase), POSTURES))

    def near(self) -> Text:
        """Ein Hund liegt neben einem Jungen, der ein Bild malt."""
        subject = self.subject(ANYONE, clothes=0.1)
        verb = self.verb(subject, POSTURES)
        noun = self.one_of([noun for noun in PERSONS if noun not in subject.nouns])
        several = self.chance(0.2)
        phrase = self.noun_phrase(noun, self.one_of(QUANTITIES) if several else A, plural=several)
        self.combine(subject, verb, noun.german)
        main = Predicate(verb, where=_prepositional(Text("neben", "next to"), phrase, "dat")).main(subject)
        other = _agreement(phrase)
        activities = tuple(activity for _, activity in _at_once(other.nouns, other.many))
        return _phrase(main, self.aside(other, activities))

    def scene(self) -> Text:
        """Eine Katze liegt neben einem Stuhl, auf dem ein Kind sitzt."""
        scene = self.one_of(SCENES)
        subject = self.subject(ANYONE, fit=lambda subject: subject.nouns[0].kind == "pet")
        verb = self.verb(subject, POSTURES)
        spot = self.one_of(scene.places)
        self.combine(subject, verb, spot.noun.german)
        main = Predicate(verb, where=self.place(spot)).main(subject)
        actor = self.described(self.one_of([noun for noun in scene.actors if noun not in subject.nouns]), A)
        pronoun = relative_pronoun(spot.noun, "dat", plural=spot.determiner is TWO)
        opening = Text(
            _join(scene.opening.de, pronoun, actor.german("nom")), _join(scene.opening.en, actor.english())
        )
        return _phrase(main, Predicate(scene.verb).verb_final(_agreement(actor), opening))

    def fronted(self) -> Text:
        """Am Abend spielen zwei Männer in einem Café Karten."""
        subject = self.subject(ANYONE)
        predicate = self.predicate(subject, self.verb(subject, WITH_PLACE), where=1, time=0.5)
        if predicate.time.de:
            return replace(predicate, time=NOTHING).inverted(subject, predicate.time)
        return replace(predicate, where=NOTHING).inverted(subject, predicate.where)

    def intending(self) -> Text:
        """Ein Hund springt, um einen Ball zu fangen."""
        bases = tuple(PURPOSES)
        subject = self.subject(ANYONE, fit=lambda subject: bool(_verbs(bases, subject.nouns, subject.many)))
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
        noun = self.one_of(some(verb.who))
        several = self.chance(0.25)
        subject = _agreement(
            self.noun_phrase(noun, self.one_of(QUANTITIES) if several else A, plural=several)
        )
        predicate = self.predicate(subject, verb, where=1)
        if self.chance(0.4):
            return predicate.main(subject)
        german = replace(predicate, where=NOTHING).inverted(subject, predicate.where).de
        return Text(german, _join("there", subject.be, subject.text.en, predicate.where.en))


def _often(*options: tuple[T, int]) -> tuple[T, ...]:
    """Each option as many times as its weight says, so that drawing one is drawing evenly."""
    return tuple(option for option, weight in options for _ in range(weight))


Shape = Callable[[_Writer, float], Subject]

PEOPLE: Sequence[Shape] = _often(
    (_Writer.person, 9),
    (_Writer.people, 4),
    (_Writer.group, 2),
    (_Writer.collective, 1),
    (_Writer.pair, 2),
    (_Writer.named, 2),
)
ANYONE: Sequence[Shape] = (*PEOPLE, *_often((_Writer.animal, 5), (_Writer.baby, 1)))
STRUCTURES = _often(
    (_Writer.short, 3),
    (_Writer.being, 12),
    (_Writer.doing, 20),
    (_Writer.wearing, 5),
    (_Writer.joined, 9),
    (_Writer.meanwhile, 7),
    (_Writer.side_by_side, 6),
    (_Writer.related, 9),
    (_Writer.caring, 6),
    (_Writer.near, 4),
    (_Writer.scene, 4),
    (_Writer.fronted, 8),
    (_Writer.intending, 4),
    (_Writer.braving, 4),
    (_Writer.reasoning, 2),
    (_Writer.lifeless, 6),
)


# -------------------------------------------------------------------------------------------------------- corpus


@lru_cache(maxsize=None)
def home(combination: str) -> str:
    """The split that a combination is for: one in 32 for each held-out split."""
    byte = hashlib.sha256(combination.encode()).digest()[0]
    return "val" if byte < 8 else "test" if byte < 16 else "train"


def drafts(seed: int = SEED) -> Iterator[tuple[str, Pair, tuple[str, ...]]]:
    """Captions without end, with split and combinations; no two share a source or a target."""
    writer = _Writer(seed)
    seen: set[str] = set()
    while True:
        pair, combinations = writer.caption()
        held_out = [split for split in ("val", "test") if any(home(one) == split for one in combinations)]
        too_long = max(pair.source.count(" "), pair.target.count(" ")) >= MAX_WORDS
        if too_long or len(held_out) > 1 or pair.source in seen or pair.target in seen:
            continue
        seen.update((pair.source, pair.target))
        yield held_out[0] if held_out else "train", pair, combinations


def words(text: str) -> list[str]:
    return re.findall(r"[\w-]+", text)


def generate() -> dict[str, list[Pair]]:
    """The corpus by split, "train", "val" and "test": German sources, English targets, the same on every machine.

    A held-out sentence has no word on either side that the training split does not show `MIN_SEEN` times.
    """
    captions = drafts()
    train: list[Pair] = []
    others: list[tuple[str, Pair]] = []
    while len(train) < SIZES["train"]:
        split, pair, _ = next(captions)
        if split == "train":
            train.append(pair)
        else:
            others.append((split, pair))

    seen = Counter(word for pair in train for word in (*words(pair.source), *words(pair.target)))
    splits = {"train": train, "val": [], "test": []}
    for split, pair in chain(others, ((split, pair) for split, pair, _ in captions)):
        familiar = all(seen[word] >= MIN_SEEN for word in (*words(pair.source), *words(pair.target)))
        if familiar and len(splits[split]) < SIZES[split]:
            splits[split].append(pair)
        if all(len(splits[name]) == size for name, size in SIZES.items()):
            break
    return splits
