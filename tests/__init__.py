"""Tests of every language-independent promise; run by pytest from the checkout."""
