"""The commands of ``trunkline``. Only this package prints."""

INTERRUPTED = 130  # exit code after Ctrl-C


class WrongInput(Exception):
    """The user's input is not valid; the text is shown on one line."""
