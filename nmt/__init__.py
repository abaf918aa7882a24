"""Train a translator from parallel text, and use it."""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.translate import Translation, Translator

__all__ = ["Translation", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for, so that `import nmt` costs nothing."""
    if name in ("Translation", "Translator"):
        from nmt import translate

        return getattr(translate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
