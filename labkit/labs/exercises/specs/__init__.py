"""What the exercises ask for, one file a lab: slow, plain functions to compare answers with."""
