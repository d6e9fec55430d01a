"""Statements in a binlog, as far as a capture must understand them.

The parser is small and strict: it knows the common forms of ALTER TABLE exactly, and says of every other statement only
which names occur in it. It never guesses: ``Statement.changes`` is ``None`` for an ALTER that it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from trunkline.delivery.capture.mariadb.catalog import Name
from trunkline.delivery.capture.mariadb.events import Query

ANSI_QUOTES, ORACLE, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 9, 1 << 20
UNREADABLE: Final = "\ufffd"  # stands for bytes of a session whose character set is not UTF-8
STRICT: Final = 1 << 21 | 1 << 22
_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|/\*(?![!M]).*?\*/|--(?=\s|$)[^\n]*|\#[^\n]*)
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<text>'(?:[^'\\]|''|\\.)*')
    |(?P<double>"(?:[^"\\]|""|\\.)*")
    |(?P<number>\d+(?:\.\d*)?(?![\w$])|\.\d+)
    |(?P<word>[\w$@\u0080-\uffff]+)
    |(?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
# First words of statements that change no captured row.
HARMLESS: Final = frozenset(
    {
        *("ANALYZE", "BEGIN", "CHECK", "FLUSH", "GRANT", "OPTIMIZE", "REPAIR", "REVOKE", "SAVEPOINT", "RELEASE", "SET"),
        *("USE", "START", "INSTALL", "UNINSTALL", "SHUTDOWN", "LOCK", "UNLOCK", "KILL", "RESET", "PURGE", "CHANGE"),
    }
)
# What CREATE, ALTER and DROP may name instead of a table.
HARMLESS_OBJECTS: Final = frozenset(
    {
        *(
            "USER",
            "ROLE",
            "VIEW",
            "TRIGGER",
            "PROCEDURE",
            "FUNCTION",
            "EVENT",
            "INDEX",
            "UNIQUE",
            "FULLTEXT",
            "SPATIAL",
        ),
        *("SEQUENCE", "SERVER", "DEFINER", "ALGORITHM", "SQL", "AGGREGATE", "PACKAGE", "TABLESPACE", "TEMPORARY"),
    }
)
NEUTRAL_OPTIONS: Final = frozenset({"COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "STATS_PERSISTENT", "KEY_BLOCK_SIZE"})


class Token(Struct, frozen=True):
    kind: str
    text: str  # of names and texts without their quotes

    def names(self) -> bool:
        return self.kind in ("word", "quoted")


class ColumnChange(Struct, frozen=True):
    """``type`` as it is declared; ``default``: a text or number, if ``stated``; ``after``: "" is first."""

    what: Literal["add", "drop", "rename", "modify", "change"]
    column: str
    new_name: str = ""
    type: str = ""
    nullable: bool = True
    default: str | None = None
    stated: bool = False
    after: str | None = None


class Statement(Struct, frozen=True):
    """``kind``: NOTHING, COMMIT, ROLLBACK, ROLLBACK TO, XA ..., TRUNCATE, CREATE, DROP, DROP DATABASE, RENAME, ALTER,
    ROWS (a statement that changes rows), UNCLEAR.
    """

    kind: str
    text: str = ""
    names: tuple[Name, ...] = ()  # RENAME: old and new in turn
    changes: tuple[ColumnChange, ...] | None = None
    words: frozenset[str] = frozenset()  # all names in it, in lower case
    strict: bool = True


class _Unclear(Exception):
    pass


def parsed(query: Query) -> Statement:
    """Never raises: a statement that is not understood is UNCLEAR."""
    tokens = _tokens(query)
    words = frozenset(token.text.lower() for token in tokens if token.names())
    text = query.statement
    first = tokens[0].text.upper() if tokens else ""
    second = tokens[1].text.upper() if len(tokens) > 1 else ""
    if not tokens or first in HARMLESS:
        return Statement("NOTHING")
    if first == "COMMIT":
        return Statement("COMMIT")
    if first == "ROLLBACK":
        return Statement("ROLLBACK TO" if second else "ROLLBACK")
    if first == "XA":
        return Statement(
            f"XA {second}" if second in ("END", "COMMIT", "ROLLBACK") else "NOTHING", text.split(None, 2)[-1]
        )
    if first in ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "SELECT", "EXECUTE", "HANDLER"):
        return Statement("ROWS", text, words=words)
    unclear = Statement("UNCLEAR", text, words=words)
    if query.sql_mode & (ANSI_QUOTES | ORACLE | NO_BACKSLASH_ESCAPES) or any(token.kind == "odd" for token in tokens):
        return unclear
    if UNREADABLE in text:
        return unclear
    try:
        found = _Parser(tokens, query.database).statement()
    except _Unclear:
        return unclear
    return Statement(found.kind, text, found.names, found.changes, words, bool(query.sql_mode & STRICT))


def _tokens(query: Query) -> list[Token]:
    found = []
    for match in _TOKEN.finditer(query.statement):
        kind, text = str(match.lastgroup), match[0]
        if kind == "quoted":
            found.append(Token(kind, text[1:-1].replace("``", "`")))
        elif kind in ("text", "double"):
            found.append(Token("text", _unescaped(text)))
        elif (kind == "symbol" and text in "'\"`") or (
            text == "/" and query.statement[match.start() : match.start() + 2] == "/*"
        ):
            found.append(Token("odd", text))  # an open quote, or a comment that is executed
        elif kind != "space":
            found.append(Token(kind, text))
    return found


def _unescaped(text: str) -> str:
    quote = text[0]
    inner = text[1:-1].replace(quote * 2, quote)
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), inner, flags=re.DOTALL)


class _Parser:
    def __init__(self, tokens: Sequence[Token], database: str) -> None:
        self._tokens, self._at, self._database = [token for token in tokens if token.text != ";"], 0, database

    def statement(self) -> Statement:
        if self._takes("TRUNCATE"):
            self._takes("TABLE")
            name = self._name()
            self._takes("WAIT", 1) or self._takes("NOWAIT")
            return self._ended(Statement("TRUNCATE", names=(name,)))
        if self._takes("RENAME"):
            return self._renaming()
        if self._takes("DROP"):
            return self._dropping()
        if self._takes("CREATE"):
            return self._creating()
        if self._takes("ALTER"):
            return self._altering()
        raise _Unclear

    # --- tokens ---

    def _peek(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        return token.text.upper() if token is not None and token.kind in ("word", "symbol") else ""

    def _takes(self, *words: object) -> bool:
        """Take these words if they come next; a number stands for any so many tokens."""
        at = self._at
        for word in words:
            if isinstance(word, int):
                self._at += word
            elif self._peek() != word:
                self._at = at
                return False
            else:
                self._at += 1
        return True

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise _Unclear
        self._at += 1
        return self._tokens[self._at - 1]

    def _word(self) -> str:
        token = self._next()
        if not token.names():
            raise _Unclear
        return token.text

    def _name(self) -> Name:
        first = self._word()
        return (first, self._word()) if self._takes(".") else (self._database, first)

    def _ended(self, statement: Statement) -> Statement:
        if self._at < len(self._tokens):
            raise _Unclear
        return statement

    def _harmless(self) -> bool:
        """Whether it is about something else than a table."""
        while self._peek() in ("OR", "REPLACE", "ONLINE", "OFFLINE", "IGNORE"):
            self._at += 1
        return self._peek() in HARMLESS_OBJECTS

    # --- statements about whole tables ---

    def _renaming(self) -> Statement:
        if not (self._takes("TABLE") or self._takes("TABLES")):
            if self._peek() in HARMLESS_OBJECTS:
                return Statement("NOTHING")
            raise _Unclear
        self._takes("IF", "EXISTS")
        names: list[Name] = []
        while True:
            names.append(self._name())
            self._takes("WAIT", 1) or self._takes("NOWAIT")
            if not self._takes("TO"):
                raise _Unclear
            names.append(self._name())
            if not self._takes(","):
                return self._ended(Statement("RENAME", names=tuple(names)))

    def _dropping(self) -> Statement:
        if self._takes("DATABASE") or self._takes("SCHEMA"):
            self._takes("IF", "EXISTS")
            return Statement("DROP DATABASE", names=((self._word(), ""),))
        if self._harmless():
            return Statement("NOTHING")
        if not (self._takes("TABLE") or self._takes("TABLES")):
            raise _Unclear
        self._takes("IF", "EXISTS")
        names = [self._name()]
        while self._takes(","):
            names.append(self._name())
        return Statement("DROP", names=tuple(names))

    def _creating(self) -> Statement:
        replaces = self._takes("OR", "REPLACE")
        if self._peek() in ("DATABASE", "SCHEMA") or self._harmless():
            return Statement("NOTHING")
        if not self._takes("TABLE"):
            raise _Unclear
        absent = self._takes("IF", "NOT", "EXISTS")
        name = self._name()
        return Statement("CREATE", names=(name,), text="OR REPLACE" if replaces else "IF NOT EXISTS" if absent else "")

    # --- ALTER TABLE ---

    def _altering(self) -> Statement:
        if self._peek() in ("DATABASE", "SCHEMA") or self._peek() in HARMLESS_OBJECTS:
            return Statement("NOTHING")
        self._takes("ONLINE")
        if not self._takes("TABLE"):
            raise _Unclear  # ALTER IGNORE removes rows
        self._takes("IF", "EXISTS")
        name = self._name()
        start = self._at
        renamed: tuple[Name, ...] = ()
        try:
            changes: list[ColumnChange] = []
            while True:
                if self._peek() == "RENAME" and (new := self._table_renamed()) is not None:
                    renamed = (name, new)
                else:
                    changes += self._change()
                if not self._takes(","):
                    break
            self._ended(Statement("ALTER"))
        except _Unclear:
            self._at = start
            return Statement("ALTER", names=(name,), changes=None)
        if renamed and changes:
            return Statement("ALTER", names=(name, renamed[1]), changes=None)
        if renamed:
            return Statement("RENAME", names=renamed)
        return Statement("ALTER", names=(name,), changes=tuple(changes))

    def _table_renamed(self) -> Name | None:
        at = self._at
        self._takes("RENAME")
        if self._peek() in ("COLUMN", "INDEX", "KEY"):
            self._at = at
            return None
        self._takes("TO") or self._takes("AS") or self._takes("=")
        return self._name()

    def _change(self) -> list[ColumnChange]:
        if self._takes("ADD"):
            return self._added()
        if self._takes("DROP"):
            return self._dropped()
        if self._takes("RENAME"):
            if self._takes("INDEX") or self._takes("KEY"):
                self._word(), self._takes("TO"), self._word()
                return []
            if not self._takes("COLUMN"):
                raise _Unclear
            old = self._word()
            if not self._takes("TO"):
                raise _Unclear
            return [ColumnChange("rename", old, self._word())]
        if self._takes("MODIFY"):
            self._takes("COLUMN"), self._takes("IF", "EXISTS")
            column = self._word()
            return [self._defined("modify", column, column)]
        if self._takes("CHANGE"):
            self._takes("COLUMN"), self._takes("IF", "EXISTS")
            column = self._word()
            return [self._defined("change", column, self._word())]
        if (
            self._takes("ALGORITHM")
            or self._takes("LOCK")
            or (self._peek() in NEUTRAL_OPTIONS and self._takes(self._peek()))
        ):
            self._option()
            return []
        raise _Unclear

    def _option(self) -> None:
        self._takes("=")
        if self._at < len(self._tokens) and self._peek() != ",":
            self._next()

    def _added(self) -> list[ColumnChange]:
        if self._peek() in ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL"):
            self._skip_definition()
            return []
        if self._takes("CONSTRAINT") and self._peek() not in ("FOREIGN", "UNIQUE", "CHECK", "PRIMARY"):
            self._word()
        if self._peek() in ("FOREIGN", "CHECK", "UNIQUE"):
            self._skip_definition()
            return []
        if self._peek() in ("PRIMARY", "PARTITION", "SYSTEM", "PERIOD"):
            raise _Unclear
        self._takes("COLUMN")
        if self._takes("IF", "NOT", "EXISTS"):
            raise _Unclear
        if self._takes("("):
            found = [self._defined("add", "", self._word())]
            while self._takes(","):
                found.append(self._defined("add", "", self._word()))
            if not self._takes(")"):
                raise _Unclear
            return found
        return [self._defined("add", "", self._word())]

    def _dropped(self) -> list[ColumnChange]:
        if self._takes("INDEX") or self._takes("KEY"):
            self._takes("IF", "EXISTS")
            self._word()
            return []
        if self._peek() in ("PRIMARY", "PARTITION", "CHECK", "SYSTEM", "PERIOD"):
            raise _Unclear
        if self._takes("FOREIGN", "KEY") or self._takes("CONSTRAINT"):
            self._takes("IF", "EXISTS")
            self._word()
            return []
        self._takes("COLUMN")
        if self._takes("IF", "EXISTS"):
            raise _Unclear
        column = self._word()
        self._takes("RESTRICT")
        return [ColumnChange("drop", column)]

    def _skip_definition(self) -> None:
        """Of an index or a check, up to the next change; but not of a foreign key that changes rows by itself."""
        deep = 0
        while self._at < len(self._tokens) and (deep or self._peek() != ","):
            if self._peek() in ("CASCADE", "SET", "PRIMARY"):
                raise _Unclear
            deep += {"(": 1, ")": -1}.get(self._peek(), 0)
            self._at += 1

    def _defined(self, what: Literal["add", "modify", "change"], column: str, name: str) -> ColumnChange:
        kind = self._type()
        nullable, default, stated, after = True, None, False, None
        while (word := self._peek()) and word not in (",", ")"):
            if self._takes("NOT", "NULL"):
                nullable = False
            elif self._takes("NULL"):
                nullable = True
            elif self._takes("DEFAULT"):
                default, stated = self._literal(), True
            elif self._takes("COMMENT"):
                self._next()
            elif self._takes("FIRST"):
                after = ""
            elif self._takes("AFTER"):
                after = self._word()
            elif not (self._takes("INVISIBLE") or self._takes("VISIBLE")):
                raise _Unclear  # a key, a check, a formula, AUTO_INCREMENT
        return ColumnChange(what, column or name, name, kind, nullable, default, stated, after)

    def _type(self) -> str:
        """As text; texts in it (labels) are left out."""
        words = [self._word()]
        if words[0].upper() in ("DOUBLE", "CHARACTER", "CHAR", "LONG", "NATIONAL") and self._peek() in (
            "PRECISION",
            "VARYING",
        ):
            self._next()
        if self._takes("("):
            words.append("(")
            while not self._takes(")"):
                token = self._next()
                words.append(token.text if token.kind == "number" else "," if token.text == "," else "")
            words.append(")")
        while self._peek() in ("UNSIGNED", "SIGNED", "ZEROFILL", "CHARACTER", "CHARSET", "COLLATE", "BINARY", "BYTE"):
            word = self._next().text
            if word.upper() == "CHARACTER":
                word += " " + self._next().text
            words.append(word)
            if word.upper() in ("CHARACTER SET", "CHARSET", "COLLATE"):
                self._takes("=")
                words.append(self._next().text)
        return " ".join(words)

    def _literal(self) -> str | None:
        sign = "-" if self._takes("-") else ""
        token = self._next()
        if token.kind == "word" and token.text.upper() in ("TRUE", "FALSE"):
            return str(int(token.text.upper() == "TRUE"))
        if token.kind == "word" and token.text.upper() == "NULL" and not sign:
            return None
        if token.kind not in ("text", "number"):
            raise _Unclear
        return sign + token.text
