"""The notebook as a reader sees it: JupyterLab in a browser without a screen.

Requires optional packages (pip install -r requirements-docs.txt) and Chromium: the system's, or
that of `playwright install chromium`.
"""
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import spawn

ROOT = pathlib.Path(__file__).resolve().parents[2]
# JupyterLab renames the ids of a notebook, so that they cannot be mistaken for its own.
SHOWN = """anchor => {
    const cell = document.querySelector(`[data-jupyter-id="${anchor}"]`).closest('.jp-Cell');
    const box = cell.getBoundingClientRect();
    return box.top < window.innerHeight && box.bottom > 0;
}"""
# Scrolls on until a picture is there: JupyterLab draws a cell when it comes into sight.
PICTURE = """() => {
    const shown = [...document.querySelectorAll('.jp-OutputArea img, .jp-OutputArea svg')].some(
        picture => {
            const box = picture.getBoundingClientRect();
            return picture.complete !== false && box.height > 50 && box.top > 0
                && box.top < window.innerHeight;
        });
    shown || document.querySelector('.jp-WindowedPanel-outer').scrollBy(0, 200);
    return shown;
}"""


@pytest.fixture
def address(tmp_path):
    """The address of the notebook in a JupyterLab that serves a copy of it."""
    pytest.importorskip('jupyterlab', reason='requires jupyterlab')
    shutil.copy(ROOT / 'docs/tutorial.ipynb', tmp_path)
    command = [sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root', '--port=0',
               '--ip=127.0.0.1', '--IdentityProvider.token=', f'--ServerApp.root_dir={tmp_path}']
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                          env={**spawn.environment(), 'HOME': str(tmp_path)}) as server:
        try:
            line = next(line for line in server.stderr if 'http://127.0.0.1:' in line)
            port, = re.findall(r'http://127.0.0.1:(\d+)', line)
            yield f'http://127.0.0.1:{port}/doc/tree/tutorial.ipynb'
        finally:
            server.terminate()


@pytest.fixture
def page():
    """A page in Chromium: the system's, or else Playwright's own."""
    driver = pytest.importorskip('playwright.sync_api', reason='requires playwright')
    with driver.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=shutil.which('chromium'), args=['--no-sandbox'])
        except driver.Error as error:
            pytest.skip(f'requires Chromium: {str(error).splitlines()[0]}')
        yield browser.new_page(viewport={'width': 1200, 'height': 900})
        browser.close()


@pytest.mark.slow
def test_links_and_pictures_in_jupyterlab(address, page):
    """Three links of the contents lead to their sections, and a picture follows each."""
    page.set_default_timeout(1000 * spawn.PATIENCE)
    page.goto(address)
    page.wait_for_selector('[data-jupyter-id="16-where-to-go-next"]', state='attached')
    for anchor in ('4-distortions', '5-the-network', '10-several-gpus-towers'):
        page.locator(f'a[href$="#{anchor}"]').first.click()
        page.wait_for_function(SHOWN, arg=anchor)
        page.wait_for_function(PICTURE, polling=500)
