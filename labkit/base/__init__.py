"""What every other room stands on: arguments, files, locks, where the project is. No MindSpore."""
