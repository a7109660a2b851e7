"""What a party does from the first round to the last: `feature_program` and `label_program`."""
