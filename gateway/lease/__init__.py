"""Where replicas of the gate keep their common table (see `core.lease`): a store with one operation."""
