"""Changes on their way from a source to destinations: windows of versions, columns, and the changes themselves."""
