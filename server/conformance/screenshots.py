"""Takes the pictures of the playground and of a report in the documentation again, with the embedded demo checkpoint of NTL_SERVER:

    NTL_SERVER=… NTL_EVAL=… python server/conformance/screenshots.py     # with the packages of requirements.txt, and chromium
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from served import Server

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# File, width, colours, question, and the last element of the picture.
PICTURES = [
    ("playground.png", 1180, "light", "How many stars: decent room, opinions are divided?", "article.panel"),
    ("playground-phone.png", 390, "dark", "About how many beans are in 3 cups?", ".slider"),
]


def main():
    with Server() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for file, width, scheme, question, last in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(server.url)
            page.get_by_label("Ask for a number").fill(question)
            page.locator("#submit").click()
            expect(page.locator("article[aria-busy=false]")).to_have_count(1)
            box = page.locator(last).first.bounding_box()
            height = box["y"] + box["height"] + 10
            page.screenshot(path=DOCS / file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
        picture_of_report(server, browser)
        browser.close()


def picture_of_report(server, browser):
    with tempfile.TemporaryDirectory() as folder:
        ratings = ["rjokes", "--data", ROOT / "server/demo/reviews.jsonl", "--mode", "regress"]
        subprocess.run([os.environ["NTL_EVAL"], *ratings, "--endpoint", server.url, "--out", folder], check=True)
        subprocess.run([os.environ["NTL_EVAL"], "report", folder], check=True)
        page = browser.new_page(viewport={"width": 1180, "height": 900}, color_scheme="light")
        page.goto(f"file://{folder}/report.html")
        height = page.get_by_role("heading", name="Largest errors").bounding_box()["y"] - 10
        page.screenshot(path=DOCS / "report.png", full_page=True, clip={"x": 0, "y": 0, "width": 1180, "height": height})


if __name__ == "__main__":
    main()
