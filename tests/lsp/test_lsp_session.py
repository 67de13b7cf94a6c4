"""The language server as an editor meets it: the real process, spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="the language server needs the extra lsp")

from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BAD = (ROOT / "tests" / "hook_scripts" / "bad.py").read_text()
GOOD = (ROOT / "tests" / "hook_scripts" / "good.py").read_text()
SECONDS = 30  # nothing waits that long unless it is broken


class Editor:
    """A client with the memory of an editor: the latest diagnostics of each document, and what was shown."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.client = LanguageClient("editor", "1")
        self.diagnostics: dict[str, list[types.Diagnostic]] = {}
        self.shown: list[str] = []
        self._published: asyncio.Queue[str] = asyncio.Queue()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.diagnostics[params.uri] = list(params.diagnostics)
            self._published.put_nowait(params.uri)

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def shown(params: types.ShowMessageParams) -> None:
            self.shown.append(params.message)

        @self.client.feature(types.WINDOW_LOG_MESSAGE)
        def logged(params: types.LogMessageParams) -> None:
            pass

    async def start(self, encodings=("utf-16",), debounce="0.05", environment=None):
        command = [sys.executable, "-m", "accumlint", "lsp", "--debounce", debounce]
        await self.client.start_io(*command, cwd=self.folder, env=environment)
        sync = types.NotebookDocumentSyncClientCapabilities()
        capabilities = types.ClientCapabilities(
            general=types.GeneralClientCapabilities(position_encodings=list(encodings)),
            notebook_document=types.NotebookDocumentClientCapabilities(sync),
        )
        folders = [types.WorkspaceFolder(self.folder.as_uri(), "work")]
        params = types.InitializeParams(
            capabilities, process_id=None, root_uri=self.folder.as_uri(), workspace_folders=folders
        )
        answer = await asyncio.wait_for(self.client.initialize_async(params), SECONDS)
        self.client.initialized(types.InitializedParams())
        return answer.capabilities

    async def stop(self) -> int:
        await asyncio.wait_for(self.client.shutdown_async(None), SECONDS)
        self.client.exit(None)
        await asyncio.wait_for(self.client.stop(), SECONDS)
        return self.client._server.returncode

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str, language: str = "python") -> str:
        uri = self.uri(name)
        item = types.TextDocumentItem(uri, language, 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return uri

    def change(self, uri: str, version: int, text: str) -> None:
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def published(self, uri: str) -> list[types.Diagnostic]:
        """The next diagnostics of a document."""
        while await asyncio.wait_for(self._published.get(), SECONDS) != uri:
            pass
        return self.diagnostics[uri]

    async def hover(self, uri: str, line: int) -> str:
        position = types.Position(line, 12)
        found = await self.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(uri), position)
        )
        return "" if found is None else found.contents.value

    async def actions(self, uri: str, line: int, only=None) -> dict[str, types.CodeAction]:
        place = types.Range(types.Position(line, 0), types.Position(line, 0))
        context = types.CodeActionContext([], only=only)
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(types.TextDocumentIdentifier(uri), place, context)
        )
        return {action.title: action for action in found or []}


def session(folder, script, **how):
    """Run one session: ``script`` is a coroutine function of an editor; the server must end well."""

    async def whole() -> None:
        editor = Editor(folder)
        capabilities = await editor.start(**how)
        try:
            await asyncio.wait_for(script(editor, capabilities), 3 * SECONDS)
        finally:
            assert await editor.stop() == 0

    asyncio.run(whole())


def rules(diagnostics):
    return [(each.code, each.range.start.line + 1) for each in diagnostics]


def apply(text: str, edits) -> str:
    """A text after the edits of an action; columns as in ASCII."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
        start, end = edit.range.start, edit.range.end
        head, tail = lines[start.line][: start.character], lines[end.line][end.character :]
        lines[start.line : end.line + 1] = (head + edit.new_text + tail).split("\n")
    return "\n".join(lines)


LINE = BAD.split("\n").index("            scheduler.step()")


def test_a_session(tmp_path):
    async def script(editor, capabilities):
        assert capabilities.text_document_sync.change is types.TextDocumentSyncKind.Full
        uri = editor.open("train.py", BAD)
        found = await editor.published(uri)
        assert ("ACC202", LINE + 1) in rules(found)
        (one,) = [each for each in found if each.code == "ACC202"]
        assert one.severity is types.DiagnosticSeverity.Error and one.source == "accumlint"
        assert one.range == types.Range(types.Position(LINE, 12), types.Position(LINE, 28))
        assert one.code_description.href.endswith("/docs/rules/ACC202.md")
        (related,) = one.related_information
        assert related.location.uri == uri and "optimizer steps" in related.message

        text = await editor.hover(uri, LINE)
        assert "ACC202 scheduler-per-microbatch" in text and "#### Why it changes training" in text
        assert "window      1" in text and "scheduler   ▲" in text
        assert await editor.hover(uri, 0) == ""

        editor.change(uri, 2, GOOD)
        assert await editor.published(uri) == []
        editor.change(uri, 3, BAD)
        assert ("ACC202", LINE + 1) in rules(await editor.published(uri))
        editor.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri))
        )
        assert await editor.published(uri) == []
        assert editor.shown == []

    session(tmp_path, script)


def test_what_is_typed_is_checked_when_it_rests(tmp_path):
    async def script(editor, _):
        uri = editor.open("train.py", GOOD)
        assert await editor.published(uri) == []
        for version in range(2, 30):
            editor.change(uri, version, BAD + "#" * version)
        assert ("ACC202", LINE + 1) in rules(await editor.published(uri))
        await asyncio.sleep(1)
        assert editor._published.empty(), "one answer for many changes"

    session(tmp_path, script, debounce="0.5")


def test_actions_fix_and_ignore(tmp_path):
    async def script(editor, _):
        uri = editor.open("train.py", BAD)
        await editor.published(uri)
        actions = await editor.actions(uri, LINE)
        ignore = actions["Ignore ACC202 here"]
        ignored = apply(BAD, ignore.edit.changes[uri])
        assert "            scheduler.step()  # accumlint: ignore[ACC202]\n" in ignored
        (fix,) = [action for title, action in actions.items() if not title.startswith("Ignore")]
        fixed = apply(BAD, fix.edit.changes[uri])
        for version, text in ((2, ignored), (3, fixed)):
            editor.change(uri, version, text)
            assert "ACC202" not in [code for code, _ in rules(await editor.published(uri))]
        assert await editor.actions(uri, 0) == {}

    session(tmp_path, script)


def test_all_safe_fixes_when_asked_for(tmp_path):
    async def script(editor, _):
        uri = editor.open("train.py", BAD)
        before = rules(await editor.published(uri))
        assert not [a for a in await editor.actions(uri, LINE) if a.startswith("Apply all")]
        actions = await editor.actions(uri, LINE, only=[types.CodeActionKind.SourceFixAll])
        for action in actions.values():
            editor.change(uri, 2, apply(BAD, action.edit.changes[uri]))
            assert len(rules(await editor.published(uri))) < len(before)
        from accumlint.lsp import checking

        document = checking.Document(str(tmp_path / "train.py"), str(tmp_path), BAD.encode())
        assert bool(actions) is (checking.fixed(document, checking.check(document).findings) != BAD.encode())

    session(tmp_path, script)


@pytest.mark.parametrize(("encoding", "width"), [("utf-8", 4), ("utf-16", 2), ("utf-32", 1)])
def test_columns_are_counted_as_the_client_counts(tmp_path, encoding, width):
    text = BAD.replace("            scheduler.step()", "            '\U0001f600'; scheduler.step()")

    async def script(editor, capabilities):
        assert capabilities.position_encoding == encoding
        uri = editor.open("train.py", text)
        (one,) = [each for each in await editor.published(uri) if each.code == "ACC202"]
        start = 12 + width + 4
        assert (one.range.start.character, one.range.end.character) == (start, start + 16)

    session(tmp_path, script, encodings=(encoding,))


def test_settings_and_comments_count(tmp_path):
    (tmp_path / "accumlint.toml").write_text('ignore = ["ACC502"]\n[severity]\nACC202 = "advice"\n')

    async def script(editor, _):
        uri = editor.open("train.py", BAD + "x = 1  # accumlint: ignore[ACC101]\n")
        found = await editor.published(uri)
        assert [code for code, _ in rules(found)] == ["ACC202", "ACC002"]
        assert found[0].severity is types.DiagnosticSeverity.Information
        (tmp_path / "accumlint.toml").write_text('ignore = "no list"\n')
        editor.client.text_document_did_save(
            types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri))
        )
        assert await editor.published(uri) == []
        assert any("accumlint.toml: ignore: must be a list" in message for message in editor.shown)

    session(tmp_path, script)


def test_a_syntax_error_is_a_diagnostic(tmp_path):
    async def script(editor, _):
        uri = editor.open("train.py", BAD + "def f(:\n")
        assert rules(await editor.published(uri)) == [("ACC001", BAD.count("\n") + 1)]
        other = editor.open("other.py", BAD)
        assert ("ACC202", LINE + 1) in rules(await editor.published(other))

    session(tmp_path, script)


def test_a_crash_costs_one_request(tmp_path):
    """The process that reads the documents dies under one of them; the server goes on with another process."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'spawn_main' in ' '.join(sys.orig_argv):\n"
        "    import os, accumlint.audit as audit\n"
        "    real = audit.audit\n"
        "    def dies(targets, collection, settings, asked, stdin):\n"
        "        if b'die here' in stdin: os._exit(139)\n"
        "        if b'raise here' in stdin: raise KeyError('no such thing')\n"
        "        return real(targets, collection, settings, asked, stdin)\n"
        "    audit.audit = dies\n"
    )
    import os

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    async def script(editor, _):
        for name, word in (("a.py", "die here"), ("b.py", "raise here")):
            uri = editor.open(name, BAD + f"# {word}\n")
            assert await editor.published(uri) == []
            assert any(message.startswith(f"accumlint: {name}: not analysed: ") for message in editor.shown)
            other = editor.open("good_" + name, BAD)
            assert ("ACC202", LINE + 1) in rules(await editor.published(other))

    session(tmp_path, script, environment=environment)


def test_ordinary_files_are_not_read(tmp_path):
    """A document without a word of training is answered by the byte sieve: no process is started for it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'spawn_main' in ' '.join(sys.orig_argv): open('started', 'w').close()\n"
    )
    import os

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    async def script(editor, _):
        uri = editor.open("web.py", "import flask\n\nstep = 1\n")
        assert await editor.published(uri) == []
        assert not (tmp_path / "started").exists()
        await editor.published(editor.open("train.py", BAD))
        assert (tmp_path / "started").exists()

    session(tmp_path, script, environment=environment)


def test_notebooks(tmp_path):
    head, _, rest = BAD.partition("def train")
    sources = ["!pip install torch\n" + head, "# Training", "def train" + rest]

    async def script(editor, capabilities):
        assert capabilities.notebook_document_sync is not None
        uri = editor.uri("a.ipynb")
        cells = [f"{uri.replace('file', 'vscode-notebook-cell')}#{number}" for number in range(3)]
        kinds = [types.NotebookCellKind.Code, types.NotebookCellKind.Markup, types.NotebookCellKind.Code]
        notebook = types.NotebookDocument(
            uri, "jupyter-notebook", 1, [types.NotebookCell(kind, cell) for kind, cell in zip(kinds, cells)]
        )
        items = [types.TextDocumentItem(cell, "python", 1, source) for cell, source in zip(cells, sources)]
        items[1].language_id = "markdown"
        editor.client.notebook_document_did_open(types.DidOpenNotebookDocumentParams(notebook, items))
        found = await editor.published(cells[2])
        line = sources[2].split("\n").index("            scheduler.step()")
        assert ("ACC202", line + 1) in rules(found)
        assert editor.diagnostics[cells[0]] == []
        (one,) = [each for each in found if each.code == "ACC202"]
        assert one.related_information[0].location.uri == cells[2]
        assert "ACC202 scheduler-per-microbatch" in await editor.hover(cells[2], line)
        actions = await editor.actions(cells[2], line)
        (fix,) = [action for title, action in actions.items() if not title.startswith("Ignore")]
        assert list(fix.edit.changes) == [cells[2]]
        fixed = apply(sources[2], fix.edit.changes[cells[2]])
        assert "\n                scheduler.step()\n" in fixed and fixed.count("scheduler.step()") == 1
        ignored = apply(sources[2], actions["Ignore ACC202 here"].edit.changes[cells[2]])
        change = types.NotebookDocumentCellContentChanges(
            types.VersionedTextDocumentIdentifier(2, cells[2]),
            [types.TextDocumentContentChangeWholeDocument(ignored)],
        )
        editor.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                types.VersionedNotebookDocumentIdentifier(2, uri),
                types.NotebookDocumentChangeEvent(
                    cells=types.NotebookDocumentCellChanges(text_content=[change])
                ),
            )
        )
        assert "ACC202" not in [code for code, _ in rules(await editor.published(cells[2]))]

    session(tmp_path, script)


def test_configurations_are_checked_when_they_are_saved(tmp_path):
    text = (ROOT / "fixtures/configs/deepspeed-duplicate-key/ds.json").read_text()
    (tmp_path / "ds.json").write_text(text)

    async def script(editor, _):
        uri = editor.open("ds.json", text, "json")
        assert [code for code, _ in rules(await editor.published(uri))] == ["ACC902"]
        (tmp_path / "ds.json").write_text("{}\n")
        editor.client.text_document_did_save(
            types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri))
        )
        assert await editor.published(uri) == []

    session(tmp_path, script)
