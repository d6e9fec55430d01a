"""The Spark job of one flush group: executors read, settle and write; the driver plans and never sees a row."""
