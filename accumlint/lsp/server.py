"""The server: listens to an editor, asks the worker, and publishes what it said.

All state lives on the event loop; questions go one after another to one worker, so that a document is never
checked by two at once. A document that the byte sieve ends costs a scan of its text, whatever happens in it.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import logging
import os
import tokenize
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from accumlint import __version__
from accumlint.findings import Finding, Fix, Span
from accumlint.lsp import checking, documents
from accumlint.lsp.checking import Checked, Document
from accumlint.lsp.documents import Placed, Text
from accumlint.lsp.worker import Worker, WorkerError
from accumlint.static.notebooks import Notebook
from accumlint.static.sieve import may_accumulate

log = logging.getLogger(__name__)

DEBOUNCE = 0.3  # seconds of silence before a document that is being typed is checked
_MARK = b"accumlint:"  # a suppression comment may have become useless
_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithNotebook(
            notebook=types.NotebookDocumentFilterNotebookType(notebook_type="jupyter-notebook"),
            cells=[types.NotebookCellLanguage(language="python")],
        ),
    ]
)


class Known(NamedTuple):
    """What is known of a document, or of a notebook as a whole: its state when asked, and its findings."""

    version: int
    document: Document
    findings: tuple[Finding, ...]
    placed: tuple[Placed, ...]
    texts: tuple[Text, ...]  # the document, or the cells
    notebook: Notebook | None = None


class Server(LanguageServer):
    """One editor's server."""

    def __init__(self, debounce: float = DEBOUNCE):
        super().__init__(
            "accumlint",
            __version__,
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
            notebook_document_sync=_NOTEBOOKS,
        )
        self.debounce = debounce
        self.known: dict[str, Known] = {}
        self.waiting: dict[str, asyncio.Task] = {}
        self.offered: dict[str, dict[int, Fix | None]] = {}  # what was tried of the findings in ``known``
        self.told: set[str] = set()
        self.worker = Worker()
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accumlint-worker")

    # --- asking ---

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The worker's answer; raises WorkerError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, self.worker.ask, function, *arguments)

    def end(self) -> None:
        for task in self.waiting.values():
            task.cancel()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.worker.end()

    def tell(self, message: str) -> None:
        """Show a problem once."""
        if message not in self.told:
            self.told.add(message)
            self.window_show_message(
                types.ShowMessageParams(types.MessageType.Warning, f"accumlint: {message}")
            )

    # --- texts ---

    @property
    def encoding(self) -> str:
        chosen = self.server_capabilities.position_encoding
        return getattr(chosen, "value", chosen) or "utf-16"

    def notebook_of(self, uri: str) -> types.NotebookDocument | None:
        """The notebook with this address, or with a cell of this address."""
        found = self.workspace.get_notebook_document(notebook_uri=uri)
        return found or self.workspace.get_notebook_document(cell_uri=uri)

    def state(self, uri: str) -> tuple[int, Document, tuple[Text, ...]]:
        """A document or notebook as it is now."""
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        if notebook is None:
            text = self.workspace.get_text_document(uri)
            data = as_bytes(text.source)
            return (
                text.version or 0,
                self._document(uri, data),
                (documents.text_of(uri, text.source, self.encoding),),
            )
        cells = []
        texts = []
        for cell in notebook.cells:
            code = cell.kind == types.NotebookCellKind.Code
            source = self.workspace.get_text_document(cell.document).source if code else ""
            cells.append({"cell_type": "code" if code else "markdown", "source": source})
            texts.append(documents.text_of(cell.document, source, self.encoding))
        data = json.dumps({"cells": cells, "nbformat": 4}).encode()
        return notebook.version, self._document(uri, data), tuple(texts)

    def _document(self, uri: str, data: bytes) -> Document:
        path = uris.to_fs_path(uri)
        if not path or not uri.startswith("file:"):
            path = os.path.abspath(os.path.basename(uri.partition(":")[2]) or "untitled") + ".py"
        folder = os.path.dirname(path)
        for each in self.workspace.folders.values():
            root = uris.to_fs_path(each.uri)
            if root and path.startswith(root.rstrip(os.sep) + os.sep):
                folder = root.rstrip(os.sep)
        return Document(path, folder, data)

    # --- checking ---

    def check_soon(self, uri: str, seconds: float) -> None:
        """Check a document after a while, unless it is asked for again before."""
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.waiting[uri] = asyncio.ensure_future(self._check_later(uri, seconds))

    async def _check_later(self, uri: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            await self.check(uri)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("checking %s", uri)
        finally:
            if self.waiting.get(uri) is asyncio.current_task():
                del self.waiting[uri]

    async def check(self, uri: str) -> None:
        """Check a document as it is now and publish, unless it has changed meanwhile."""
        version, document, texts = self.state(uri)
        if may_accumulate(document.data) or _MARK in document.data or not _is_script(document.path):
            try:
                checked = await self.ask(checking.check, document)
            except WorkerError as error:
                self.tell(f"{document.name}: not analysed: {error}")
                checked = Checked(document.name)
        else:
            checked = Checked(document.name)
        if not self.is_open(uri) or self.state(uri)[0] != version:
            return
        if checked.problem:
            self.tell(checked.problem)
        placed = tuple(
            Placed(finding, *place)
            for finding in checked.findings
            if (place := _place(finding.span, checked.notebook, texts)) is not None
        )
        self.offered.pop(uri, None)
        self.known[uri] = Known(version, document, checked.findings, placed, texts, checked.notebook)
        for text in texts:
            own = [each for each in placed if each.text.uri == text.uri]
            self.publish(text.uri, [documents.diagnostic(each, self.related(each, uri)) for each in own])

    def publish(self, uri: str, found: list[types.Diagnostic]) -> None:
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def is_open(self, uri: str) -> bool:
        return uri in self.workspace.text_documents or uri in self.workspace.notebook_documents

    def forget(self, uri: str, texts: Sequence[str]) -> None:
        if (task := self.waiting.pop(uri, None)) is not None:
            task.cancel()
        self.known.pop(uri, None)
        self.offered.pop(uri, None)
        for each in texts:
            self.publish(each, [])

    def related(self, placed: Placed, uri: str) -> list[tuple[types.Location, str]]:
        """The other places that a finding speaks of; those of files that aren't open go to the line alone."""
        known = self.known[uri]
        found = []
        for each in placed.finding.related:
            if each.span.path == placed.finding.span.path:
                place = _place(each.span, known.notebook, known.texts)
                if place is not None:
                    text, span = place
                    found.append((types.Location(text.uri, text.range(span)), each.message))
                continue
            there = types.Position(max(each.span.line - 1, 0), 0)
            target = uris.from_fs_path(os.path.join(known.document.folder, each.span.path))
            if target:
                found.append((types.Location(target, types.Range(there, there)), each.message))
        return found

    def at(self, uri: str, first: int, last: int) -> tuple[str, Known | None, list[Placed]]:
        """The findings on some lines, counted from 0, of a document or cell, if it is still what was checked."""
        notebook = self.notebook_of(uri)
        whole = notebook.uri if notebook is not None else uri
        known = self.known.get(whole)
        if known is None or self.state(whole)[0] != known.version:
            return whole, None, []
        lines = range(first, last + 1)
        here = [each for each in known.placed if each.text.uri == uri and any(map(each.covers, lines))]
        return whole, known, here

    async def fixes(self, uri: str, known: Known, here: Sequence[Placed]) -> dict[int, Fix]:
        """Fixes by the id of the finding; each is tried out once for each version of a document."""
        document = known.document
        if known.notebook is not None:
            document = document._replace(data=known.notebook.programs[0])
        elif not document.path.endswith((".py", ".pyw")):
            return {}
        tried = self.offered.setdefault(uri, {})
        new = [each.finding for each in here if id(each.finding) not in tried]
        if new:
            try:
                offered = await self.ask(checking.fixes, document, new)
            except WorkerError as error:
                log.warning("fixes of %s: %s", document.name, error)
                offered = [None] * len(new)
            tried.update(zip(map(id, new), offered))
        return {key: fix for key, fix in tried.items() if fix is not None}


def _is_script(path: str) -> bool:
    return path.endswith((".py", ".pyw", ".ipynb"))


def as_bytes(source: str) -> bytes:
    """A source as its own encoding declaration says, so that it reads back as what the editor shows."""
    data = source.encode("utf-8", "surrogatepass")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return source.encode(encoding)
    except (SyntaxError, LookupError, UnicodeError):
        return data


def _place(span: Span, notebook: Notebook | None, texts: Sequence[Text]) -> tuple[Text, Span] | None:
    """Where the editor shows a span of the document: in its text, or in a cell."""
    if notebook is None:
        return texts[0], span
    cell, line = notebook.cell(span.line)
    if not 1 <= cell <= len(texts):
        return None
    end_line = (span.end_line or span.line) + line - span.line
    return texts[cell - 1], Span(span.path, line, span.column, end_line, span.end_column)


def _place_of_edit(span: Span, notebook: Notebook | None, texts: Sequence[Text]) -> tuple[Text, Span] | None:
    """Where an edit of the document is made; None where that is more than one cell, or unclear.

    Text between two cells could go into either; a line that holds a magic is another one in the program.
    """
    if notebook is None:
        return texts[0], span
    last = max(span.end_line - (span.end_column == 1), span.line)
    if last > len(notebook.lines):
        return None
    cell, line = notebook.cell(span.line)
    if notebook.cell(last)[0] != cell:
        return None
    if (span.end_line, span.end_column) == (span.line, span.column) and (line, span.column) == (1, 1):
        return None
    written = notebook.text.split("\n")[span.line - 1 : last]
    program = notebook.programs[0].decode("utf-8", "replace").split("\n")[span.line - 1 : last]
    if written != program:
        return None
    return texts[cell - 1], Span(
        span.path, line, span.column, span.end_line - span.line + line, span.end_column
    )


def create(debounce: float = DEBOUNCE) -> Server:
    """A server with its features."""
    server = Server(debounce)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
        ls.check_soon(params.text_document.uri, 0)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        if ls.workspace.get_notebook_document(cell_uri=uri) is None and _is_script(ls.state(uri)[1].path):
            ls.check_soon(uri, ls.debounce)  # a configuration is checked when it is saved

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
        for uri in list(ls.known):  # what one file says may depend on another, or on the settings
            ls.check_soon(uri, 0)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
        ls.forget(params.text_document.uri, [params.text_document.uri])

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_opened(ls: Server, params: types.DidOpenNotebookDocumentParams) -> None:
        ls.check_soon(params.notebook_document.uri, 0)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_changed(ls: Server, params: types.DidChangeNotebookDocumentParams) -> None:
        ls.check_soon(params.notebook_document.uri, ls.debounce)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(ls: Server, params: types.DidCloseNotebookDocumentParams) -> None:
        cells = [each.uri for each in params.cell_text_documents]
        ls.forget(params.notebook_document.uri, cells)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        line = params.position.line
        _, _, here = ls.at(params.text_document.uri, line, line)
        return documents.hover(here, _reads_markdown(ls.client_capabilities))

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(
            code_action_kinds=[types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
        ),
    )
    async def actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
        return await _actions(ls, params)

    @server.feature(types.SHUTDOWN)
    def shutdown(ls: Server, params: None) -> None:
        ls.end()

    return server


def _reads_markdown(capabilities: types.ClientCapabilities) -> bool:
    text = capabilities.text_document
    formats = text.hover.content_format if text is not None and text.hover is not None else None
    return formats is None or types.MarkupKind.Markdown in formats


def _wants(context: types.CodeActionContext, kind: str) -> bool:
    """Whether a client asks for a kind of action, by itself or by one that it belongs to."""
    only = context.only
    return only is None or any(
        kind == each or kind.startswith(f"{getattr(each, 'value', each)}.") for each in only
    )


async def _actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    uri = params.text_document.uri
    found: list[types.CodeAction] = []
    if _wants(params.context, types.CodeActionKind.QuickFix.value):
        whole, known, here = ls.at(uri, params.range.start.line, params.range.end.line)
        fixes = await ls.fixes(whole, known, here) if known is not None and here else {}
        offered = []
        for each in here:
            related = ls.related(each, whole)
            fix = fixes.get(id(each.finding))
            if fix is not None:
                where = functools.partial(_place_of_edit, notebook=known.notebook, texts=known.texts)
                offered.append(documents.fix_action(each, fix, where, related))
        for each in here:
            offered.append(documents.ignore_action(each, ls.related(each, whole)))
        found += [action for action in offered if action is not None]
    explicitly = params.context.only and _wants(params.context, types.CodeActionKind.SourceFixAll.value)
    known = ls.known.get(uri)
    if explicitly and known is not None and known.findings and known.document.path.endswith((".py", ".pyw")):
        version, document, (text, *_) = ls.state(uri)
        try:
            after = await ls.ask(checking.fixed, document, known.findings)
        except WorkerError as error:
            log.warning("fixes of %s: %s", document.name, error)
            return found
        if after != document.data and ls.state(uri)[0] == version:
            found.append(documents.fix_all_action(text, *map(_plain, (document.data, after))))
    return found


def _plain(data: bytes) -> str:
    from accumlint.audit import decode

    return decode(data).replace("\r\n", "\n").replace("\r", "\n")
