"""A link that outlives connections and processes: numbered records, logged before they travel."""
