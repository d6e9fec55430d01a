"""A deterministic fuzz over real lakes: the exact read and the rule are held to the difference of two snapshots."""
