import sys
from pathlib import Path

RECIPES = Path(__file__).parents[1]
sys.path[:0] = [str(RECIPES), str(RECIPES.parent / "server/conformance")]
