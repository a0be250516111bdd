"""What learners answer wrongly and what they are told, one file a lab."""
