"""The Spark session that a deliverer runs on: its Java, its master, its directory and its workers."""
