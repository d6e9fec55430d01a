"""The commands of ``trunkline``. This package prints; nothing else in the project does."""

INTERRUPTED = 130  # exit code after Ctrl-C


class WrongInput(Exception):
    """What the user gave cannot be used; the text is the one line that is shown."""
