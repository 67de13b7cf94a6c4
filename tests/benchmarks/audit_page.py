"""How large the page of an audit is, and how long a browser takes to open it, over the number of scripts.

``python tests/benchmarks/audit_page.py [SCRIPTS ...]`` (default: 25 100). The scripts are those of the fixture tree,
repeated. Needs Playwright and a Chromium (``ACCUMLINT_BROWSER`` names it); without them only sizes are printed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"
REPETITIONS = 5


def tree(folder: Path, number: int) -> None:
    """``number`` scripts with training loops."""
    scripts = sorted([*(FIXTURES / "scripts").glob("*.py"), *(FIXTURES / "frameworks").glob("*.py")])
    for index in range(number):
        source = scripts[index % len(scripts)]
        shutil.copy(source, folder / f"{index:03}_{source.name}")


def load_times(page: Path) -> list[float]:
    """Milliseconds until the load event, in a fresh page each time; empty where there is no browser."""
    chromium = (
        os.environ.get("ACCUMLINT_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if not chromium:
        return []
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        times = []
        for _ in range(REPETITIONS):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            times.append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
            tab.close()
        browser.close()
    return times


def main() -> None:
    print("scripts  audit s  page KiB  KiB/script  opened ms (median, worst)")
    for number in [int(each) for each in sys.argv[1:]] or [25, 100]:
        with tempfile.TemporaryDirectory() as name:
            folder, page = Path(name) / "tree", Path(name) / "audit.html"
            folder.mkdir()
            tree(folder, number)
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "accumlint", "audit", folder, "--output", page],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            took = time.perf_counter() - start
            size, times = page.stat().st_size / 1024, load_times(page)
            opened = f"{statistics.median(times):.0f}, {max(times):.0f}" if times else "no browser"
            print(f"{number:>7}  {took:>7.1f}  {size:>8.0f}  {size / number:>10.1f}  {opened}")


if __name__ == "__main__":
    main()
