"""Plans for people: figures, a table, and a picture of what every CTA does."""

from attnloom.explain.cards import CARDS, Card, Limit
from attnloom.explain.explanation import Explanation, report

__all__ = ["CARDS", "Card", "Explanation", "Limit", "report"]
