"""The exercises of the labs, one file a lab."""
