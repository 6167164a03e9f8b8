"""The dashboard in a real browser (Debian's Chromium, by Playwright), over sources made for it."""
